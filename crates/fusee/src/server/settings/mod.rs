//! Settings of a server, from flags, environment, file and defaults, each with its origin.
//!
//! A server's settings are one struct. Clap derives its flags, environment variables, help and defaults from
//! it, and serde its lines in a file. [`Given`] holds the settings of the command line and the environment,
//! with the file's name; [`Effective`] merges those over the file, and the file over the defaults. A setting
//! under the heading [`LIVE`] may change while the server runs.

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

use self::file::File;
use self::problem::{Problem, Problems};
use crate::logging::Filter;

/// Heading in the help for settings that a running server takes over when it reads its file again.
pub const LIVE: &str = "Settings that SIGHUP changes in a running server";

/// Settings that are flags of all commands: name, id in clap, environment variable.
const FILES: [(&str, &str, &str); 4] = [
    ("secret", "secret", fusee_cli::secret::VARIABLE),
    ("tls-ca", "tls_ca", fusee_cli::tls::CA),
    ("tls-cert", "tls_cert", fusee_cli::tls::CERT),
    ("tls-key", "tls_key", fusee_cli::tls::KEY),
];

/// Settings of a server.
pub trait Settings: clap::Args + Clone + Default + Serialize + DeserializeOwned {
    /// The configuration that the server starts with.
    type Config;

    /// Returns the filter of the log.
    fn log(&self) -> Option<&Filter>;

    /// Fills in unset settings that follow from others.
    fn filled(self) -> Self;

    /// Returns the configuration, or all mistakes that can be found before the start.
    fn config(&self) -> Result<Self::Config, Problems>;
}

/// A place in a file. Both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The character of the line.
    pub column: usize,
}

impl Place {
    /// Returns the place of the byte at `offset`.
    fn of(text: &str, offset: usize) -> Place {
        let before = &text[..text.floor_char_boundary(offset)];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        Place { line, column: before[start..].chars().count() + 1 }
    }
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "origin", rename_all = "lowercase")]
pub enum Origin {
    /// A flag of the command line.
    Flag {
        /// The flag as it is written.
        flag: String,
    },
    /// The environment.
    Environment {
        /// The name of the variable.
        variable: String,
    },
    /// A file.
    File {
        /// The path of the file.
        file: PathBuf,
        /// The place in the file, if known.
        #[serde(flatten)]
        place: Option<Place>,
    },
    /// The default: the value is not set anywhere.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag { flag } => f.write_str(flag),
            Origin::Environment { variable } => write!(f, "{variable} in the environment"),
            Origin::File { file, place: None } => write!(f, "{}", file.display()),
            Origin::File { file, place: Some(Place { line, column }) } => {
                write!(f, "{}:{line}:{column}", file.display())
            }
            Origin::Default => f.write_str("default"),
        }
    }
}

/// Origins of all values.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// Origins of the settings that are set, by name.
    set: BTreeMap<String, Origin>,
    /// The file, if there is one.
    pub file: Option<PathBuf>,
}

impl Origins {
    /// Returns the origin of a setting that is set.
    pub fn of(&self, name: &str) -> Option<&Origin> {
        self.set.get(name)
    }
}

/// Settings from the command line and the environment.
#[derive(Clone, Debug)]
pub struct Given<S> {
    config: Option<PathBuf>,
    values: Map<String, Value>,
    origins: BTreeMap<String, Origin>,
    settings: PhantomData<S>,
}

impl<S: Settings> Given<S> {
    /// Creates settings that come from this file only.
    pub fn file(config: PathBuf) -> Given<S> {
        let values = Map::new();
        let origins = BTreeMap::new();
        Given { config: Some(config), values, origins, settings: PhantomData }
    }

    /// Whether there is a file, which can be read again.
    pub fn has_file(&self) -> bool {
        self.config.is_some()
    }

    /// Returns the settings from all sources; reads the file.
    pub fn effective(&self) -> Result<Effective<S>, Problems> {
        let (file, problems) = self.read();
        self.over(problems.or(file)?)
    }

    /// Returns all mistakes: those of the file by itself, and those of the correct part together with the rest.
    pub fn problems(&self) -> Problems {
        let (file, Problems(mut all)) = self.read();
        let rest = self.over(file).and_then(|effective| effective.config().map(drop));
        all.extend(rest.err().into_iter().flat_map(|Problems(rest)| rest));
        all.sort_by_key(Problem::place);
        Problems(all)
    }

    fn read(&self) -> (File, Problems) {
        self.config.as_deref().map_or_else(Default::default, file::read::<S>)
    }

    /// Merges these settings over those of a file.
    fn over(&self, file: File) -> Result<Effective<S>, Problems> {
        let mut origins = Origins { set: BTreeMap::new(), file: self.config.clone() };
        for (name, place) in file.places {
            let file = self.config.clone().unwrap_or_default();
            origins.set.insert(name, Origin::File { file, place: Some(place) });
        }
        origins.set.extend(self.origins.clone());
        let mut values = file.values;
        lay(&mut values, self.values.clone());
        let settings = serde_json::from_value::<S>(Value::Object(values));
        let mut problems = Problems::default();
        match problems.note(settings) {
            Some(settings) => Ok(Effective { settings: settings.filled(), origins }),
            None => Err(problems.located(&origins)),
        }
    }

    fn set(&mut self, name: &str, value: Value, origin: &Origin) {
        for (name, _) in leaves(name, &value).into_iter().filter(|(_, value)| !value.is_null()) {
            self.origins.insert(name, origin.clone());
        }
        self.values.insert(name.to_owned(), value);
    }
}

/// The settings in force.
#[derive(Clone, Debug)]
pub struct Effective<S> {
    /// All settings, with defaults.
    pub settings: S,
    /// Origins of the settings.
    pub origins: Origins,
}

impl<S: Settings> Effective<S> {
    /// Returns the configuration that the server starts with.
    pub fn config(&self) -> Result<S::Config, Problems> {
        self.settings.config().map_err(|problems| problems.located(&self.origins))
    }

    /// Returns all settings by name; those in tables as `table.name`.
    pub fn values(&self) -> Vec<(String, Value)> {
        leaves("", &value(&self.settings))
    }

    /// Returns the names of settings with another value in `other`; a table is one setting.
    pub fn changes(&self, other: &Effective<S>) -> Vec<String> {
        let own = value(&self.settings);
        let other = value(&other.settings);
        let names = own.as_object().into_iter().flat_map(Map::keys);
        names.filter(|name| own[*name] != other[*name]).cloned().collect()
    }

    /// Returns these settings, with the values of `other` for these names.
    pub fn with(&self, other: &Effective<S>, names: &[String]) -> Effective<S> {
        let mut own = value(&self.settings);
        let new = value(&other.settings);
        for name in names {
            own[name] = new[name].clone();
        }
        let settings = serde_json::from_value(own).expect("each is a setting");
        Effective { settings, origins: other.origins.clone() }
    }

    /// Returns the origin of a setting.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.of(name).cloned().unwrap_or(Origin::Default)
    }
}

impl<S: Settings> clap::FromArgMatches for Given<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given<S>, clap::Error> {
        let all = value(&S::from_arg_matches(matches)?);
        let config = matches.get_one::<PathBuf>("config").cloned();
        let values = Map::new();
        let origins = BTreeMap::new();
        let mut given = Given { config, values, origins, settings: PhantomData };
        for arg in arguments::<S>() {
            let (Some(name), Some(origin)) = (arg.get_long(), origin(matches, &arg)) else {
                continue;
            };
            // An empty RUST_LOG counts as unset.
            if all[name] != "" {
                given.set(name, all[name].clone(), &origin);
            }
        }
        // Some flags of all commands are also settings of servers.
        let verbose = matches.try_get_one::<u8>("verbose").ok().flatten();
        if let Some(verbose @ 1..) = verbose.filter(|_| !given.origins.contains_key("log")) {
            let origin = Origin::Flag { flag: "-v".into() };
            given.set("log", value(&Filter::of_server(*verbose)), &origin);
        }
        for (name, id, variable) in FILES {
            if let Ok(Some(file)) = matches.try_get_one::<PathBuf>(id)
                && names::<S>().iter().any(|known| known == name)
            {
                let arg = Arg::new(id).long(name).env(variable);
                given.set(name, value(file), &origin(matches, &arg).unwrap_or(Origin::Default));
            }
        }
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<S: Settings> clap::Args for Given<S> {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config").long("config").env("FUSEE_CONFIG").value_name("FILE");
        let config = config.value_parser(clap::value_parser!(PathBuf));
        S::augment_args(command.arg(config.help("Read settings from this TOML file")))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::<S>::augment_args(command)
    }
}

fn origin(matches: &ArgMatches, arg: &Arg) -> Option<Origin> {
    match matches.value_source(arg.get_id().as_str())? {
        ValueSource::CommandLine => Some(Origin::Flag { flag: format!("--{}", arg.get_long()?) }),
        ValueSource::EnvVariable => {
            let variable = arg.get_env()?.to_string_lossy().into_owned();
            Some(Origin::Environment { variable })
        }
        _ => None,
    }
}

/// Returns the flags of settings.
fn arguments<S: clap::Args>() -> Vec<Arg> {
    S::augment_args(Command::new("settings")).get_arguments().cloned().collect()
}

/// Returns the names of settings, as in a file.
pub fn names<S: Settings>() -> Vec<String> {
    value(&S::default()).as_object().into_iter().flat_map(Map::keys).cloned().collect()
}

/// Whether a running server takes over changes of this setting.
pub fn is_live<S: clap::Args>(name: &str) -> bool {
    let name = name.split_once('.').map_or(name, |(table, _)| table);
    let arguments = arguments::<S>();
    let found = arguments.iter().find(|arg| arg.get_long() == Some(name));
    found.is_some_and(|arg| arg.get_help_heading() == Some(LIVE))
}

/// Returns the defaults that the flags declare, regardless of the environment.
pub fn defaults<S: clap::Args>() -> S {
    let command = S::augment_args(Command::new("settings").no_binary_name(true));
    let command = command.mut_args(|arg| arg.env(None::<&'static str>));
    let matches = command.try_get_matches_from([""; 0]);
    matches.and_then(|matches| S::from_arg_matches(&matches)).expect("every setting has a default")
}

/// Merges settings of flags over those of a file.
pub fn laid<S: Serialize + DeserializeOwned>(under: &S, over: &S) -> S {
    let mut values = value(under);
    let over = value(over);
    if let (Value::Object(values), Value::Object(over)) = (&mut values, over) {
        lay(values, over);
    }
    serde_json::from_value(values).expect("they were settings before")
}

/// Returns the settings of a file alone.
pub fn of_file<S: DeserializeOwned + Default>(path: Option<&Path>) -> Result<S, Problems> {
    let Some(path) = path else { return Ok(S::default()) };
    let (file, problems) = file::read::<S>(path);
    let values = problems.or(file)?.values;
    let mut problems = Problems::default();
    let settings = serde_json::from_value(Value::Object(values));
    let settings = problems.note(settings).unwrap_or_default();
    problems.or(settings)
}

/// Merges values name by name: those set in `over` replace those in `under`.
fn lay(under: &mut Map<String, Value>, over: Map<String, Value>) {
    for (name, value) in over {
        match (under.get_mut(&name), value) {
            (_, Value::Null) => {}
            (Some(Value::Object(under)), Value::Object(over)) => lay(under, over),
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
    use fusee_cli::quantity::Bytes;
    use serde::Deserialize;

    use super::*;

    #[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
    pub struct Example {
        #[arg(long, default_value_t = 3, help_heading = LIVE)]
        counts: u32,
        #[arg(long, default_value = "1MiB")]
        size: Bytes,
        #[arg(long, value_delimiter = ',', default_value = "x,y")]
        names: Vec<String>,
        #[arg(skip)]
        inner: Option<Inner>,
        #[arg(long)]
        other: Option<String>,
    }

    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        few: Option<u8>,
        more: Option<u8>,
    }

    impl Default for Example {
        fn default() -> Example {
            defaults()
        }
    }

    impl Settings for Example {
        type Config = ();

        fn log(&self) -> Option<&Filter> {
            None
        }

        fn filled(mut self) -> Example {
            self.other.get_or_insert_with(|| format!("of {}", self.counts));
            self
        }

        fn config(&self) -> Result<(), Problems> {
            let mut problems = Problems::default();
            problems.about("size", if self.size.0 > 0 { Ok(()) } else { Err("is none") });
            problems.note(if self.counts < 9 { Ok(()) } else { Err("--counts is too large") });
            problems.or(())
        }
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        given: Given<Example>,
    }

    /// Returns the settings of a file with this text.
    pub fn of_text<S: Settings>(text: &str) -> Result<Effective<S>, String> {
        let (file, problems) = file::parse::<S>(Path::new("f"), text);
        let file = problems.or(file).map_err(|error| error.to_string())?;
        let given = Given::<S>::file("f".into());
        given.over(file).map_err(|error| error.to_string())
    }

    /// Asserts that every setting is a line of the file, a flag and a variable of the same name, and documented.
    pub fn all_settings<S: Settings>() {
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

    fn given(line: &[&str]) -> Given<Example> {
        Line::try_parse_from([&["x"], line].concat()).unwrap().given
    }

    #[test]
    fn flags_beat_the_file_and_the_file_beats_defaults() {
        let path = std::env::temp_dir().join(format!("fusee-settings-{}", std::process::id()));
        std::fs::write(&path, "size = 5\nnames = [\"f\"]\n[inner]\nfew = 1\n").unwrap();
        let given = given(&["--names=a,b", "--config", path.to_str().unwrap()]);
        let effective = given.effective();
        std::fs::remove_file(&path).unwrap();
        let effective = effective.unwrap();
        let Example { counts, size, names, inner, other } = &effective.settings;
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
        assert_eq!(problems[1].origin, Origin::Flag { flag: "--counts".into() });
    }

    #[test]
    fn defaults_are_those_of_the_flags_and_the_heading_says_what_is_live() {
        let Example { counts, size, .. } = defaults();
        assert_eq!((counts, size), (3, Bytes(1 << 20)));
        assert!(is_live::<Example>("counts") && !is_live::<Example>("size"));
        let mut one = Given::<Example>::from_arg_matches(
            &Given::<Example>::augment_args(Command::new("x")).get_matches_from(["x"]),
        )
        .unwrap();
        one.update_from_arg_matches(
            &Given::<Example>::augment_args(Command::new("x")).get_matches_from(["x", "--size=7"]),
        )
        .unwrap();
        assert_eq!(one.effective().unwrap().settings.size, Bytes(7));
    }

    use clap::Args as _;
}
