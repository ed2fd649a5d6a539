//! Mistakes in settings, with their origins.

use std::fmt;

use fusee_cli::failure::Failure;
use serde::Serialize;

use super::{SettingOrigin, SettingOrigins};

/// A mistake in the settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingProblem {
    /// The name of the setting, if it is known.
    pub setting: Option<String>,
    /// The origin of the wrong value.
    #[serde(flatten)]
    pub origin: SettingOrigin,
    /// Text that describes the mistake and how to correct it.
    pub message: String,
}

impl SettingProblem {
    /// Returns line and column of the mistake in a file, if they are known.
    pub fn place(&self) -> Option<(usize, usize)> {
        match &self.origin {
            SettingOrigin::File { place, .. } => place.map(|place| (place.line, place.column)),
            _ => None,
        }
    }
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            SettingOrigin::File { .. } => write!(f, "{}: {}", self.origin, self.message),
            SettingOrigin::Environment { .. } => write!(f, "{} ({})", self.message, self.origin),
            SettingOrigin::Flag { .. } | SettingOrigin::Default => f.write_str(&self.message),
        }
    }
}

/// All mistakes in the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingProblems(pub Vec<SettingProblem>);

impl SettingProblems {
    /// Records the error of a result as a mistake in this setting, or returns the result's value.
    pub fn about<T, E: fmt::Display>(&mut self, setting: &str, result: Result<T, E>) -> Option<T> {
        let error = result.map_err(|error| self.add(Some(setting), error.to_string()));
        error.ok()
    }

    /// Records the error of a result as a mistake, or returns the result's value. The text of the error names the
    /// settings.
    pub fn note<T, E: fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(None, error.to_string())).ok()
    }

    fn add(&mut self, setting: Option<&str>, message: String) {
        let setting = setting.map(str::to_owned);
        self.0.push(SettingProblem { setting, origin: SettingOrigin::Default, message });
    }

    /// Returns the value if no mistake was recorded.
    pub fn into_result<T>(self, value: T) -> Result<T, SettingProblems> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Adds the origin to each mistake: the origin of the mistake's setting, if a source sets that setting; else the
    /// origin of the first setting that the message names and a source sets; else the file of settings.
    pub fn located(mut self, origins: &SettingOrigins) -> SettingProblems {
        for problem in &mut self.0 {
            let own = problem.setting.iter().map(String::as_str);
            let mut names = own.chain(mentioned(&problem.message));
            let set = names.find_map(|name| Some((name.to_owned(), origins.of(name)?.clone())));
            drop(names);
            if let Some((setting, origin)) = set {
                (problem.setting, problem.origin) = (Some(setting), origin);
            } else if let Some(file) = &origins.file {
                problem.origin = SettingOrigin::File { file: file.clone(), place: None };
            }
        }
        self
    }
}

/// Returns the names of settings in a text: `--lease`, `redundancy.rules`.
fn mentioned(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'));
    let is_below = |word: &str| word.find('.').is_some_and(|at| at > 0);
    words.filter_map(move |word| {
        let word = word.trim_end_matches('.');
        word.strip_prefix("--").or_else(|| is_below(word).then_some(word))
    })
}

impl fmt::Display for SettingProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(SettingProblem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl From<SettingProblems> for Failure {
    fn from(problems: SettingProblems) -> Failure {
        Failure::usage(problems.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_settings() {
        let text = "--lease is 3; see redundancy.rules[1].from, or lower --index-replicas.";
        let names: Vec<&str> = mentioned(text).collect();
        assert_eq!(names, ["lease", "redundancy.rules", "index-replicas"]);
    }
}
