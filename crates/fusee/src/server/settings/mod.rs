//! Settings of a server, from flags, environment, file and defaults, each with its origin.
//!
//! A server's settings are one struct. From it clap derives the flags, environment variables, help and defaults, and
//! serde the lines of a file. [`GivenSettings`] holds the settings of the command line and the environment, and the
//! name of the file. In [`EffectiveSettings`] these override the file's settings, which override the defaults. A
//! setting under the heading [`LIVE`] can change while the server runs.

// Promise API-22

pub mod file;
pub mod problem;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use self::file::SettingsFile;
use self::problem::{SettingProblem, SettingProblems};
use fusee_cli::logging::LogFilter;

/// Heading in the help for settings that a running server changes when it reads its file again.
pub const LIVE: &str = "Settings that SIGHUP changes in a running server";

/// Settings that all commands have as flags: name, id in clap, environment variable.
const FILES: [(&str, &str, &str); 4] = [
    ("secret", "secret", fusee_cli::secret::VARIABLE),
    ("tls-ca", "tls_ca", fusee_cli::tls::CA),
    ("tls-cert", "tls_cert", fusee_cli::tls::CERT),
    ("tls-key", "tls_key", fusee_cli::tls::KEY),
];

/// Settings of a server.
pub trait ServerSettings: clap::Args + Clone + Default + Serialize + DeserializeOwned {
    /// The configuration with which the server starts.
    type Config;

    /// Returns the filter of the server's log.
    fn log(&self) -> Option<&LogFilter>;

    /// Sets missing settings whose defaults follow from other settings.
    fn filled(self) -> Self;

    /// Returns the configuration, or all mistakes that can be found before the server starts.
    fn config(&self) -> Result<Self::Config, SettingProblems>;
}

/// A position in a file. Both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FilePosition {
    /// The number of the line in the file.
    pub line: usize,
    /// The number of the character in the line.
    pub column: usize,
}

impl FilePosition {
    /// Returns the position of the byte at `offset`.
    fn of(text: &str, offset: usize) -> FilePosition {
        let before = &text[..text.floor_char_boundary(offset)];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        FilePosition { line, column: before[start..].chars().count() + 1 }
    }
}

/// The origin of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "origin", rename_all = "lowercase")]
pub enum SettingOrigin {
    /// A flag of the command line.
    Flag {
        /// The flag in the form that the user has written.
        flag: String,
    },
    /// An environment variable.
    Environment {
        /// The name of the variable.
        variable: String,
    },
    /// A file of settings.
    File {
        /// The path of the file.
        file: PathBuf,
        /// The position in the file, if it is known.
        #[serde(flatten)]
        place: Option<FilePosition>,
    },
    /// The default, because no source sets the value.
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Flag { flag } => f.write_str(flag),
            SettingOrigin::Environment { variable } => write!(f, "{variable} in the environment"),
            SettingOrigin::File { file, place: None } => write!(f, "{}", file.display()),
            SettingOrigin::File { file, place: Some(FilePosition { line, column }) } => {
                write!(f, "{}:{line}:{column}", file.display())
            }
            SettingOrigin::Default => f.write_str("default"),
        }
    }
}

/// The origins of all values.
#[derive(Clone, Debug, Default)]
pub struct SettingOrigins {
    /// Origins of the settings that a source sets, by name.
    set: BTreeMap<String, SettingOrigin>,
    /// The file of settings, if there is one.
    pub file: Option<PathBuf>,
}

impl SettingOrigins {
    /// Returns the origin of a setting; `None` if no source sets it.
    pub fn of(&self, name: &str) -> Option<&SettingOrigin> {
        self.set.get(name)
    }
}

/// Settings from the command line and the environment.
#[derive(Clone, Debug)]
pub struct GivenSettings<S> {
    config: Option<PathBuf>,
    values: Map<String, Value>,
    origins: BTreeMap<String, SettingOrigin>,
    settings: PhantomData<S>,
}

impl<S: ServerSettings> GivenSettings<S> {
    /// Creates settings that come from this file only.
    pub fn file(config: PathBuf) -> GivenSettings<S> {
        let values = Map::new();
        let origins = BTreeMap::new();
        GivenSettings { config: Some(config), values, origins, settings: PhantomData }
    }

    /// Returns whether there is a file of settings, which can be read again.
    pub fn has_file(&self) -> bool {
        self.config.is_some()
    }

    /// Reads the file, and returns the settings merged from all sources.
    pub fn effective(&self) -> Result<EffectiveSettings<S>, SettingProblems> {
        let (file, problems) = self.read();
        self.over(problems.into_result(file)?)
    }

    /// Returns all mistakes: the mistakes in the file, and the mistakes of the file's correct settings together with
    /// the other sources.
    pub fn problems(&self) -> SettingProblems {
        let (file, SettingProblems(mut all)) = self.read();
        let rest = self.over(file).and_then(|effective| effective.config().map(drop));
        all.extend(rest.err().into_iter().flat_map(|SettingProblems(rest)| rest));
        all.sort_by_key(SettingProblem::place);
        SettingProblems(all)
    }

    fn read(&self) -> (SettingsFile, SettingProblems) {
        self.config.as_deref().map_or_else(Default::default, file::read::<S>)
    }

    /// Merges these settings over those of a file, which they override.
    fn over(&self, file: SettingsFile) -> Result<EffectiveSettings<S>, SettingProblems> {
        let mut origins = SettingOrigins { set: BTreeMap::new(), file: self.config.clone() };
        for (name, place) in file.places {
            let file = self.config.clone().unwrap_or_default();
            origins.set.insert(name, SettingOrigin::File { file, place: Some(place) });
        }
        origins.set.extend(self.origins.clone());
        let mut values = file.values;
        merge_values(&mut values, self.values.clone());
        let settings = serde_json::from_value::<S>(Value::Object(values));
        let mut problems = SettingProblems::default();
        match problems.note(settings) {
            Some(settings) => Ok(EffectiveSettings { settings: settings.filled(), origins }),
            None => Err(problems.located(&origins)),
        }
    }

    fn set(&mut self, name: &str, value: Value, origin: &SettingOrigin) {
        for (name, _) in leaves(name, &value).into_iter().filter(|(_, value)| !value.is_null()) {
            self.origins.insert(name, origin.clone());
        }
        self.values.insert(name.to_owned(), value);
    }
}

/// The settings that a server uses.
#[derive(Clone, Debug)]
pub struct EffectiveSettings<S> {
    /// The settings, with defaults.
    pub settings: S,
    /// Origins of the settings.
    pub origins: SettingOrigins,
}

impl<S: ServerSettings> EffectiveSettings<S> {
    /// Returns the configuration that the server starts with.
    pub fn config(&self) -> Result<S::Config, SettingProblems> {
        self.settings.config().map_err(|problems| problems.located(&self.origins))
    }

    /// Returns all settings by name. Settings in tables are named `table.name`.
    pub fn values(&self) -> Vec<(String, Value)> {
        leaves("", &value(&self.settings))
    }

    /// Returns the names of settings that have another value in `other`. A table is one setting here.
    pub fn changes(&self, other: &EffectiveSettings<S>) -> Vec<String> {
        let own = value(&self.settings);
        let other = value(&other.settings);
        let names = own.as_object().into_iter().flat_map(Map::keys);
        names.filter(|name| own[*name] != other[*name]).cloned().collect()
    }

    /// Returns these settings, but with the values of `other` for the settings in `names`.
    pub fn with(&self, other: &EffectiveSettings<S>, names: &[String]) -> EffectiveSettings<S> {
        let mut own = value(&self.settings);
        let new = value(&other.settings);
        for name in names {
            own[name] = new[name].clone();
        }
        let settings = serde_json::from_value(own).expect("each is a setting");
        EffectiveSettings { settings, origins: other.origins.clone() }
    }

    /// Returns the origin of a setting, which is the default if no source sets the setting.
    pub fn origin(&self, name: &str) -> SettingOrigin {
        self.origins.of(name).cloned().unwrap_or(SettingOrigin::Default)
    }
}

impl<S: ServerSettings> clap::FromArgMatches for GivenSettings<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<GivenSettings<S>, clap::Error> {
        let all = value(&S::from_arg_matches(matches)?);
        let config = matches.get_one::<PathBuf>("config").cloned();
        let values = Map::new();
        let origins = BTreeMap::new();
        let mut given = GivenSettings { config, values, origins, settings: PhantomData };
        for arg in arguments::<S>() {
            let (Some(name), Some(origin)) = (arg.get_long(), origin(matches, &arg)) else {
                continue;
            };
            // An empty RUST_LOG has no effect.
            if all[name] != "" {
                given.set(name, all[name].clone(), &origin);
            }
        }
        // Some flags that all commands have are also settings of servers.
        let verbose = matches.try_get_one::<u8>("verbose").ok().flatten();
        if let Some(verbose @ 1..) = verbose.filter(|_| !given.origins.contains_key("log")) {
            let origin = SettingOrigin::Flag { flag: "-v".into() };
            given.set("log", value(&LogFilter::of_server(*verbose)), &origin);
        }
        for (name, id, variable) in FILES {
            if let Ok(Some(file)) = matches.try_get_one::<PathBuf>(id)
                && names::<S>().iter().any(|known| known == name)
            {
                let arg = Arg::new(id).long(name).env(variable);
                given.set(
                    name,
                    value(file),
                    &origin(matches, &arg).unwrap_or(SettingOrigin::Default),
                );
            }
        }
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = GivenSettings::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<S: ServerSettings> clap::Args for GivenSettings<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config").long("config").env("FUSEE_CONFIG").value_name("FILE");
        let config = config.value_parser(clap::value_parser!(PathBuf));
        S::augment_args(command.arg(config.help("Read settings from this TOML file")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        GivenSettings::<S>::augment_args(command)
    }
}

fn origin(matches: &ArgMatches, arg: &Arg) -> Option<SettingOrigin> {
    match matches.value_source(arg.get_id().as_str())? {
        ValueSource::CommandLine => {
            Some(SettingOrigin::Flag { flag: format!("--{}", arg.get_long()?) })
        }
        ValueSource::EnvVariable => {
            let variable = arg.get_env()?.to_string_lossy().into_owned();
            Some(SettingOrigin::Environment { variable })
        }
        _ => None,
    }
}

/// Returns the flags of a struct of settings.
fn arguments<S: clap::Args>() -> Vec<Arg> {
    S::augment_args(Command::new("settings")).get_arguments().cloned().collect()
}

/// Returns the names of a server's settings in a file.
pub fn names<S: ServerSettings>() -> Vec<String> {
    value(&S::default()).as_object().into_iter().flat_map(Map::keys).cloned().collect()
}

/// Returns whether a running server can change this setting.
pub fn is_live<S: clap::Args>(name: &str) -> bool {
    let name = name.split_once('.').map_or(name, |(table, _)| table);
    let arguments = arguments::<S>();
    let found = arguments.iter().find(|arg| arg.get_long() == Some(name));
    found.is_some_and(|arg| arg.get_help_heading() == Some(LIVE))
}

/// Returns the defaults that the flags define, without regard to the environment.
pub fn defaults<S: clap::Args>() -> S {
    let command = S::augment_args(Command::new("settings").no_binary_name(true));
    let command = command.mut_args(|arg| arg.env(None::<&'static str>));
    let matches = command.try_get_matches_from([""; 0]);
    matches.and_then(|matches| S::from_arg_matches(&matches)).expect("every setting has a default")
}

/// Merges two structs of settings: those set in `over` replace those in `under`.
pub fn merge_settings<S: Serialize + DeserializeOwned>(under: &S, over: &S) -> S {
    let mut values = value(under);
    let over = value(over);
    if let (Value::Object(values), Value::Object(over)) = (&mut values, over) {
        merge_values(values, over);
    }
    serde_json::from_value(values).expect("they were settings before")
}

/// Returns the settings of a file, without other sources.
pub fn of_file<S: DeserializeOwned + Default>(path: Option<&Path>) -> Result<S, SettingProblems> {
    let Some(path) = path else { return Ok(S::default()) };
    let (file, problems) = file::read::<S>(path);
    let values = problems.into_result(file)?.values;
    let mut problems = SettingProblems::default();
    let settings = serde_json::from_value(Value::Object(values));
    let settings = problems.note(settings).unwrap_or_default();
    problems.into_result(settings)
}

/// Merges values by name: those set in `over` replace those in `under`.
fn merge_values(under: &mut Map<String, Value>, over: Map<String, Value>) {
    for (name, value) in over {
        match (under.get_mut(&name), value) {
            (_, Value::Null) => {}
            (Some(Value::Object(under)), Value::Object(over)) => merge_values(under, over),
            (_, value) => drop(under.insert(name, value)),
        }
    }
}

/// Returns all values that are not tables, with their full names.
fn leaves(name: &str, value: &Value) -> Vec<(String, Value)> {
    let Value::Object(table) = value else { return vec![(name.to_owned(), value.clone())] };
    let below = table.iter().flat_map(|(below, value)| match name {
        "" => leaves(below, value),
        _ => leaves(&format!("{name}.{below}"), value),
    });
    below.collect()
}

fn value(settings: &impl Serialize) -> Value {
    serde_json::to_value(settings).expect("settings have names and plain values")
}

#[cfg(test)]
pub mod tests {
    use clap::{FromArgMatches, Parser};
    use fusee_cli::quantity::ByteSize;
    use serde::Deserialize;

    use super::*;

    #[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
    pub struct ExampleSettings {
        #[arg(long, default_value_t = 3, help_heading = LIVE)]
        counts: u32,
        #[arg(long, default_value = "1MiB")]
        size: ByteSize,
        #[arg(long, value_delimiter = ',', default_value = "x,y")]
        names: Vec<String>,
        #[arg(skip)]
        inner: Option<ExampleTable>,
        #[arg(long)]
        other: Option<String>,
    }

    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct ExampleTable {
        few: Option<u8>,
        more: Option<u8>,
    }

    impl Default for ExampleSettings {
        fn default() -> ExampleSettings {
            defaults()
        }
    }

    impl ServerSettings for ExampleSettings {
        type Config = ();

        fn log(&self) -> Option<&LogFilter> {
            None
        }

        fn filled(mut self) -> ExampleSettings {
            self.other.get_or_insert_with(|| format!("of {}", self.counts));
            self
        }

        fn config(&self) -> Result<(), SettingProblems> {
            let mut problems = SettingProblems::default();
            problems.about("size", if self.size.0 > 0 { Ok(()) } else { Err("is none") });
            problems.note(if self.counts < 9 { Ok(()) } else { Err("--counts is too large") });
            problems.into_result(())
        }
    }

    #[derive(Parser)]
    struct ExampleCli {
        #[command(flatten)]
        given: GivenSettings<ExampleSettings>,
    }

    /// Returns the settings of a file that has this text.
    pub fn of_text<S: ServerSettings>(text: &str) -> Result<EffectiveSettings<S>, String> {
        let (file, problems) = file::parse::<S>(Path::new("f"), text);
        let file = problems.into_result(file).map_err(|error| error.to_string())?;
        let given = GivenSettings::<S>::file("f".into());
        given.over(file).map_err(|error| error.to_string())
    }

    /// Asserts that every setting is a line of the file, a flag, and an environment variable of the same name, and has
    /// documentation.
    pub fn all_settings<S: ServerSettings>() {
        let lines = names::<S>();
        let arguments = arguments::<S>();
        for arg in &arguments {
            let name = arg.get_long().expect("every setting is a flag");
            assert!(lines.iter().any(|line| line == name), "{name} is no line of the file");
            let variable = format!("FUSEE_{}", name.replace('-', "_").to_uppercase());
            let variable = if name == "log" { "RUST_LOG" } else { &variable };
            assert_eq!(arg.get_env().unwrap(), variable, "{name}");
        }
        let document = include_str!("../../../../../docs/operations/configuration.md");
        for line in &lines {
            let is_flag = arguments.iter().any(|arg| arg.get_long() == Some(line));
            let of_all = FILES.iter().any(|(name, ..)| name == line);
            assert!(is_flag || of_all, "{line} is no flag");
            assert!(document.contains(&format!("\n| `{line}`")), "{line} is not documented");
        }
    }

    fn given(line: &[&str]) -> GivenSettings<ExampleSettings> {
        ExampleCli::try_parse_from([&["x"], line].concat()).unwrap().given
    }

    #[test]
    fn flags_beat_the_file_and_the_file_beats_defaults() {
        let path = std::env::temp_dir().join(format!("fusee-settings-{}", std::process::id()));
        std::fs::write(&path, "size = 5\nnames = [\"f\"]\n[inner]\nfew = 1\n").unwrap();
        let given = given(&["--names=a,b", "--config", path.to_str().unwrap()]);
        let effective = given.effective();
        std::fs::remove_file(&path).unwrap();
        let effective = effective.unwrap();
        let ExampleSettings { counts, size, names, inner, other } = &effective.settings;
        assert_eq!((*counts, size.0, names.len()), (3, 5, 2));
        assert_eq!((inner.as_ref().unwrap().few, other.as_deref()), (Some(1), Some("of 3")));
        let origin = |name: &str| effective.origin(name).to_string();
        assert_eq!((&*origin("counts"), &*origin("names")), ("default", "--names"));
        assert_eq!(origin("inner.few"), format!("{}:4:1", path.display()));
        let names: Vec<String> = effective.values().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["counts", "inner.few", "inner.more", "names", "other", "size"]);
    }

    #[test]
    fn what_is_wrong_is_found_all_at_once() {
        let effective = given(&["--counts=9", "--size=0"]).effective().unwrap();
        let problems = effective.config().unwrap_err().0;
        assert_eq!(problems.len(), 2);
        assert_eq!(problems[0].setting.as_deref(), Some("size"));
        assert_eq!(problems[1].origin, SettingOrigin::Flag { flag: "--counts".into() });
    }

    #[test]
    fn defaults_are_those_of_the_flags_and_the_heading_says_what_is_live() {
        let ExampleSettings { counts, size, .. } = defaults();
        assert_eq!((counts, size), (3, ByteSize(1 << 20)));
        assert!(is_live::<ExampleSettings>("counts") && !is_live::<ExampleSettings>("size"));
        let mut one = GivenSettings::<ExampleSettings>::from_arg_matches(
            &GivenSettings::<ExampleSettings>::augment_args(Command::new("x"))
                .get_matches_from(["x"]),
        )
        .unwrap();
        one.update_from_arg_matches(
            &GivenSettings::<ExampleSettings>::augment_args(Command::new("x"))
                .get_matches_from(["x", "--size=7"]),
        )
        .unwrap();
        assert_eq!(one.effective().unwrap().settings.size, ByteSize(7));
    }

    use clap::Args as _;
}
