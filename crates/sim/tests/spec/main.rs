//! The protocol's TLA+ specification (`spec/`), checked by TLC.
//!
//! A model is a file in `spec/small` or `spec/large`. A model whose name begins with `without-` takes a
//! countermeasure out, and TLC must find a violation; all other models must hold.
//!
//! `FUSEE_TESTS=all cargo test` runs the small models, in a few minutes on two cores. To run the large ones:
//!
//! ```text
//! FUSEE_TESTS=all cargo test -p fusee-sim --test spec -- --ignored --nocapture
//! FUSEE_SPEC_MODELS=crash    only models with this in their name, small and large
//! FUSEE_SPEC_SECONDS=480     the time for each large model
//! FUSEE_SPEC_AGAIN=1         also models that were checked before and have not changed
//! FUSEE_SPEC_REQUIRED=1      fail if TLC is not available, instead of skipping
//! ```
//!
//! Without `java`, or without `mvn` to fetch TLC, no model can run: the test prints SKIPPED and passes. The tests
//! bypass the output capture of the test harness, so their output is always visible.

// Promise LIN-17: In TLA+: no duplicate, no divergence, no stuck operation.
// Promise CHK-4: The [TLA+ models](../spec/README.md) hold, and fail without each countermeasure.

mod tlc;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tlc::{Tlc, TlcLimits, TlcVerdict};

/// The line of a model that takes no countermeasure out.
const NOTHING: &str = "Removed = {}";

/// Prints a line that the test harness does not capture.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn spec() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec")
}

/// Returns the files with this extension in a directory of `spec/`, in order.
fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(spec().join(dir)).expect("the specification is in spec/");
    let paths = entries.map(|entry| entry.expect("a directory can be read").path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

fn name(model: &Path) -> String {
    model.file_stem().expect("a model has a name").to_string_lossy().into_owned()
}

fn is_mutant(model: &Path) -> bool {
    name(model).starts_with("without-")
}

fn next(left: &Mutex<impl Iterator<Item = PathBuf>>) -> Option<PathBuf> {
    left.lock().expect("nobody panics here").next()
}

/// Runs the models of a directory. Returns the models with unexpected results.
fn run(dir: &str, limits: &TlcLimits) -> Vec<String> {
    let is_asked = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !["FUSEE_TESTS", "FUSEE_SPEC_REQUIRED", "FUSEE_SPEC_MODELS"].into_iter().any(is_asked) {
        say(&format!("SKIPPED: the models in spec/{dir} take minutes: FUSEE_TESTS=all"));
        return Vec::new();
    }
    let tlc = match Tlc::get() {
        Ok(tlc) => tlc,
        Err(why) => {
            assert!(std::env::var_os("FUSEE_SPEC_REQUIRED").is_none(), "no TLC: {why}");
            say(&format!("SKIPPED: the models in spec/{dir} were not checked: {why}"));
            return Vec::new();
        }
    };
    let only = std::env::var("FUSEE_SPEC_MODELS").unwrap_or_default();
    let started = Instant::now();
    let mut models = files(dir, "cfg");
    models.retain(|model| name(model).contains(&only));
    let checked = models.len();
    assert!(checked > 0, "no model in spec/{dir} has {only:?} in its name");
    let left = Mutex::new(models.into_iter());
    let wrong = Mutex::new(Vec::new());
    let check_some = || {
        while let Some(model) = next(&left) {
            let name = name(&model);
            let run = tlc.check(&spec(), &model, limits);
            say(&format!("spec/{dir}/{name:<28}{run}"));
            let as_it_must_be = match &run.verdict {
                TlcVerdict::Holds => !is_mutant(&model),
                TlcVerdict::Violated(_) => is_mutant(&model),
                // A small model must finish. For a large model the progress is printed.
                TlcVerdict::Unfinished => !limits.short,
            };
            if !as_it_must_be {
                wrong.lock().expect("nobody panics here").push(format!("{name}: {run}"));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..limits.together).for_each(|_| drop(scope.spawn(check_some)));
    });
    say(&format!("spec/{dir}: {checked} models in {:.0} s", started.elapsed().as_secs_f64()));
    wrong.into_inner().expect("nobody panics here")
}

#[test]
fn small_models_hold_and_their_mutants_do_not() {
    // On two idle cores every model takes less than 15 s, but the machine is possibly busy.
    let time = Duration::from_secs(240);
    let limits = TlcLimits { time, heap_mib: 1024, short: true, workers: 1, together: 2 };
    let wrong = run("small", &limits);
    assert!(wrong.is_empty(), "not as they must be:\n{}", wrong.join("\n"));
}

#[test]
#[ignore = "takes an hour; the models in spec/large"]
fn large_models_hold_and_their_mutants_do_not() {
    let seconds = std::env::var("FUSEE_SPEC_SECONDS").map(|s| s.parse().expect("a number"));
    let time = Duration::from_secs(seconds.unwrap_or(480));
    let limits = TlcLimits { time, heap_mib: 4096, short: false, workers: 2, together: 1 };
    let wrong = run("large", &limits);
    assert!(wrong.is_empty(), "not as they must be:\n{}", wrong.join("\n"));
}

/// Returns the names of the countermeasures in a text: quoted words in front of `\in Removed` or `\notin Removed`, and
/// the arguments of `Has`.
fn switches(text: &str) -> BTreeSet<String> {
    let before = |end: &'static str| text.match_indices(end).map(|(at, _)| &text[..at]);
    let quoted =
        |before: &str| before.trim_end().strip_suffix('"')?.rsplit('"').next().map(str::to_owned);
    let asked = text.match_indices("Has(\"").filter_map(|(at, has)| {
        let (name, _) = text[at + has.len()..].split_once('"')?;
        Some(name.to_owned())
    });
    let removed = before("\\in Removed").chain(before("\\notin Removed")).filter_map(quoted);
    removed.chain(asked).collect()
}

/// Every countermeasure of the specification is taken out by some model, and every model takes out countermeasures that
/// exist: a misspelt name would take nothing out.
#[test]
fn every_countermeasure_is_taken_out_by_a_model() {
    let read = |path: &PathBuf| fs::read_to_string(path).expect("the specification is text");
    let known: BTreeSet<String> =
        files("", "tla").iter().flat_map(|path| switches(&read(path))).collect();
    let mut used = BTreeSet::new();
    for model in files("small", "cfg").iter().chain(&files("large", "cfg")) {
        let text = read(model);
        let line = text.lines().map(str::trim).find(|line| line.starts_with("Removed = "));
        let line = line.unwrap_or_else(|| panic!("{model:?} does not say what it takes out"));
        assert!(!is_mutant(model) || line != NOTHING, "{model:?} takes nothing out");
        used.extend(line.split('"').skip(1).step_by(2).map(str::to_owned));
    }
    assert_eq!(known, used, "switches in the modules, and those that models use");
}
