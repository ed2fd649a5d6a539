//! `fusee export`: writes all pairs to a file, while clients read and write.
//!
//! A file is called `FILE.part` until it is complete and on the disk. So every `FILE` is complete, and the part of an
//! interrupted export can be resumed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write, stdout};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_cli::{interrupt, output, stderr};
use fusee_client::BlockingClient;
use fusee_export::format::{ExportHead, ExportTotals};
use fusee_export::{ExportError, Exporter, ResumedExport};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::{PairProgress, export_directory, rate, when};

/// Arguments of `fusee export`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee export pairs.fusee\n  \
    fusee export pairs.fusee --resume          go on with one that was interrupted\n  \
    fusee export - | zstd > pairs.fusee.zst\n  \
    fusee export --dir /backups --every 1h --keep 24\n\n\
    Every pair that is there from the beginning to the end is in it exactly once, with a value that it had\n\
    meanwhile. One that is deleted and inserted again meanwhile may be in it twice, or not at all.\n\
    A file is called FILE.part until it is whole; `fusee import FILE --check` says whether it is.\n\n\
    Exit codes: 0 done; 1 something failed, or pairs are damaged on all replicas and missing; 2 wrong\n\
    usage; 3 the cluster cannot be reached; 128 and the number of the signal that ended it.")]
pub struct ExportArgs {
    /// File to write, which must not exist; - is standard output
    #[arg(required_unless_present = "dir", value_name = "FILE")]
    file: Option<PathBuf>,

    /// Resume an interrupted export to this file
    #[arg(long)]
    resume: bool,

    /// Export into this directory; the file's name tells its cluster, number, and time
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    dir: Option<PathBuf>,

    /// Export repeatedly until a signal comes, with this time from one start to the next, like `30min` or `1h`
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    every: Option<Duration>,

    /// Keep this many exports of the cluster in the directory, the new one included, and remove older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,

    /// Print one JSON object for each export, and no progress
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

impl ExportArgs {
    /// Returns whether the command exports repeatedly until a signal comes.
    pub fn repeats(&self) -> bool {
        self.every.is_some()
    }
}

/// The result of an export.
#[derive(Debug, Serialize)]
struct ExportReport {
    file: String,
    cluster: String,
    /// Whether the export is complete. It is not if a signal ended it.
    whole: bool,
    pairs: u64,
    bytes: u64,
    damaged: u64,
    seconds: f64,
    pairs_per_s: f64,
    /// Files that were removed: exports beyond `--keep`, and parts of interrupted exports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<String>,
}

impl ExportReport {
    fn text(&self) -> String {
        let ExportReport { file, pairs, bytes, seconds, pairs_per_s, .. } = self;
        let pairs = count_with_noun(*pairs, "pair");
        let bytes = ByteSize(*bytes);
        let mut text =
            format!("{file}: {pairs}, {bytes}, in {seconds:.1} s, {pairs_per_s:.0} a second\n");
        for removed in &self.removed {
            text += &format!("{removed}: removed\n");
        }
        text
    }
}

/// Runs `fusee export`.
pub fn run(args: &ExportArgs) -> Result<(), Failure> {
    if args.every.is_some_and(|every| every < Duration::from_secs(1)) {
        return Err(Failure::usage("--every is at least 1s"));
    }
    // Clap's `requires` does not help here, because it regards a required argument as given if that argument conflicts
    // with a given one.
    if args.dir.is_none() && (args.every.is_some() || args.keep.is_some()) {
        return Err(Failure::usage("--every and --keep are for exports into a directory: --dir"));
    }
    if args.dir.is_some() && args.resume {
        return Err(Failure::usage(
            "--resume goes on with a file: name it without `.part`, and no --dir",
        ));
    }
    if let Some(directory) = &args.dir {
        fs::create_dir_all(directory).map_err(|error| cannot(directory, &error))?;
    }
    let client = args.connect.connect()?;
    interrupt::watch()?;
    match (&args.file, &args.dir) {
        (Some(file), _) if file.as_os_str() == "-" => to_stdout(args, &client),
        (Some(file), _) => to_file(args, &client, file),
        (None, Some(directory)) => to_directory(args, client, directory),
        (None, None) => unreachable!("one of them is required"),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn cluster_of(client: &BlockingClient) -> u64 {
    client.view().cluster.word()
}

/// Returns the head of an export that begins at this time.
fn head_of(client: &BlockingClient, number: u32) -> ExportHead {
    ExportHead { cluster: cluster_of(client), begun: now(), number }
}

fn cannot(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::operation(format!("{}: {error}", path.display()))
}

/// Writes the rest of the export. Stops when a signal comes. Returns whether the export has all pairs.
fn write<W: Write>(
    args: &ExportArgs,
    client: &BlockingClient,
    export: &mut Exporter<W>,
    progress: &mut PairProgress,
) -> Result<bool, ExportError> {
    let is_done = loop {
        if !export.step(client)? {
            break true;
        }
        if interrupt::is_requested() || (args.file.is_some() && !output::is_read()) {
            break false;
        }
        let ExportTotals { pairs, bytes, .. } = export.totals();
        progress.show("exported", pairs, bytes, Some(export.progress()));
    };
    progress.end();
    Ok(is_done)
}

fn report(
    client: &BlockingClient,
    file: String,
    whole: bool,
    totals: ExportTotals,
    seconds: f64,
) -> ExportReport {
    let ExportTotals { pairs, bytes, damaged, .. } = totals;
    let cluster = client.view().cluster.to_string();
    let pairs_per_s = rate(pairs, seconds);
    let removed = Vec::new();
    ExportReport { file, cluster, whole, pairs, bytes, damaged, seconds, pairs_per_s, removed }
}

/// Prints a report, on standard error if the pairs go to standard output.
fn tell(args: &ExportArgs, report: &ExportReport, is_out_taken: bool) -> Result<(), Failure> {
    let text = if args.json {
        serde_json::to_string(report).expect("numbers and names") + "\n"
    } else {
        report.text()
    };
    if is_out_taken {
        stderr::text(&text);
    } else {
        output::text(&text)?;
    }
    match report.damaged {
        0 => Ok(()),
        damaged => Err(Failure::operation(format!(
            "{}: {} damaged on all replicas, and missing",
            report.file,
            count_with_noun(damaged, "pair")
        ))),
    }
}

fn to_stdout(args: &ExportArgs, client: &BlockingClient) -> Result<(), Failure> {
    let failed = |error: ExportError| Failure::operation(format!("standard output: {error}"));
    let head = head_of(client, 0);
    let out = BufWriter::with_capacity(1 << 20, stdout().lock());
    let mut export = Exporter::begin(out, &head).map_err(failed)?;
    let mut progress = PairProgress::new(args.json);
    let is_done = write(args, client, &mut export, &mut progress).map_err(failed)?;
    let seconds = progress.seconds();
    if !is_done {
        export.pause().map_err(failed)?;
        return interrupt::failure().map_or(Ok(()), Err);
    }
    let (_, totals) = export.end(seconds as u64).map_err(failed)?;
    tell(args, &report(client, "standard output".into(), true, totals, seconds), true)
}

/// Returns the name that a file has until it is complete.
fn part_of(file: &Path) -> PathBuf {
    let mut name: OsString = file.into();
    name.push(export_directory::PART);
    name.into()
}

fn to_file(args: &ExportArgs, client: &BlockingClient, file: &Path) -> Result<(), Failure> {
    let report = export_to_file(args, client, head_of(client, 0), file)?;
    let told = tell(args, &report, false);
    match interrupt::failure().filter(|_| !report.whole) {
        Some(interrupted) => {
            let what = format!("{interrupted}; go on with --resume");
            Err(Failure::of(interrupted.code(), what))
        }
        None => told,
    }
}

/// Returns whether a file or link with this name exists, even a broken link.
fn is_there(file: &Path) -> bool {
    file.symlink_metadata().is_ok()
}

/// Executes one export into a file.
fn export_to_file(
    args: &ExportArgs,
    client: &BlockingClient,
    head: ExportHead,
    file: &Path,
) -> Result<ExportReport, Failure> {
    let part = part_of(file);
    if is_there(file) {
        return Err(Failure::operation(format!(
            "{} is there already; remove it, or name another file",
            file.display()
        )));
    }
    let failed = |error: ExportError| match error {
        ExportError::Store(_) | ExportError::Write(_) if args.dir.is_none() => Failure::operation(
            format!("{}: {error}; what is there is good: go on with --resume", part.display()),
        ),
        error => cannot(&part, &error),
    };
    let mut options = OpenOptions::new();
    // Only the user of this process is allowed to read the pairs.
    options.read(true).write(true).mode(0o600);
    let export = if args.resume {
        let opened = options.open(&part).map_err(|error| cannot(&part, &error))?;
        lock_part(&opened, &part)?;
        let (resumed, head) = Exporter::resume(opened, cluster_of(client)).map_err(failed)?;
        let export = match resumed {
            ResumedExport::Part(export) => export,
            // The file is complete, and only has to be renamed.
            ResumedExport::Whole(written, totals) => {
                rename_part(&written, &part, file).map_err(|error| cannot(file, &error))?;
                let name = file.display().to_string();
                let seconds = totals.seconds as f64;
                return Ok(report(client, name, true, totals, seconds));
            }
        };
        if !args.json {
            let since = when(head.begun);
            let pairs = count_with_noun(export.totals().pairs, "pair");
            stderr::tell(&format!("goes on with {pairs} of an export begun at {since}"));
        }
        Ok(export)
    } else {
        let opened = options.create_new(true).open(&part);
        let opened = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::operation(format!(
                "{} is left of an export that was interrupted; go on with it by --resume, or remove it",
                part.display()
            )),
            _ => cannot(&part, &error),
        })?;
        lock_part(&opened, &part)?;
        Exporter::begin(opened, &head)
    };
    let went = export.and_then(|export| finish(args, client, export, &part, file));
    // In a directory an unfinished part is useless, because the next export starts from the beginning and needs its
    // room.
    if args.dir.is_some() && !went.as_ref().is_ok_and(|report| report.whole) {
        let _gone = fs::remove_file(&part);
    }
    went.map_err(failed)
}

/// Writes the rest of the export. If a signal comes before the end, the file stays a part; otherwise it gets its final
/// name.
fn finish(
    args: &ExportArgs,
    client: &BlockingClient,
    mut export: Exporter<File>,
    part: &Path,
    file: &Path,
) -> Result<ExportReport, ExportError> {
    let mut progress = PairProgress::new(args.json);
    let is_done = write(args, client, &mut export, &mut progress)?;
    let seconds = progress.seconds();
    if !is_done {
        let totals = export.totals();
        export.pause()?;
        return Ok(report(client, part.display().to_string(), false, totals, seconds));
    }
    let (written, totals) = export.end(seconds as u64)?;
    rename_part(&written, part, file).map_err(ExportError::Write)?;
    Ok(report(client, file.display().to_string(), true, totals, seconds))
}

/// Locks the part. So no other process writes into it, and none removes it as the part of an interrupted export.
fn lock_part(file: &File, part: &Path) -> Result<(), Failure> {
    let taken =
        |_| Failure::operation(format!("{}: another process writes it now", part.display()));
    file.try_lock().map_err(taken)?;
    if file.metadata().is_ok_and(|known| known.nlink() > 0) {
        Ok(())
    } else {
        Err(cannot(part, &"another export has removed it; try again"))
    }
}

/// Renames the part to its final name. The data is on the disk before that, and the name is on the disk on return.
fn rename_part(written: &File, part: &Path, file: &Path) -> io::Result<()> {
    written.sync_all()?;
    // If another process has created the file meanwhile, the renaming fails.
    match rustix::fs::renameat_with(CWD, part, CWD, file, RenameFlags::NOREPLACE) {
        // Not every file system can rename without replacing.
        Err(Errno::INVAL | Errno::NOSYS) if !is_there(file) => fs::rename(part, file)?,
        renamed => renamed?,
    }
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn to_directory(
    args: &ExportArgs,
    client: BlockingClient,
    directory: &Path,
) -> Result<(), Failure> {
    let mut client = Some(client);
    loop {
        let begun = Instant::now();
        let went = match client.take() {
            Some(client) => Ok(client),
            None => args.connect.connect(),
        };
        let went = went.and_then(|client| snapshot(args, &client, directory));
        if let Some(interrupted) = interrupt::failure() {
            return Err(interrupted);
        }
        let Some(every) = args.every else { return went };
        // After a failure the command continues, because the next export can succeed.
        if let Err(failure) = went {
            stderr::tell(&format!("error: {failure}"));
        }
        while begun.elapsed() < every {
            if let Some(interrupted) = interrupt::failure() {
                return Err(interrupted);
            }
            thread::sleep(Duration::from_millis(100).min(every - begun.elapsed().min(every)));
        }
    }
}

/// Executes one export into a directory.
fn snapshot(args: &ExportArgs, client: &BlockingClient, directory: &Path) -> Result<(), Failure> {
    let cluster = cluster_of(client);
    let failed = |error| cannot(directory, &error);
    // Parts of interrupted exports occupy room that this export needs.
    let parts = export_directory::remove_parts(directory, cluster).map_err(failed)?;
    let number = export_directory::next_number(directory, cluster).map_err(failed)?;
    let head = head_of(client, number);
    let file = directory.join(export_directory::name(&head));
    let mut report = export_to_file(args, client, head, &file)?;
    if !report.whole {
        return Ok(());
    }
    let mut removed = parts;
    // If this export lacks damaged pairs, older exports stay, because they possibly have these pairs.
    if let Some(kept) = args.keep.filter(|_| report.damaged == 0) {
        let old = export_directory::keep_newest(directory, cluster, kept as usize, &file);
        removed.extend(old.map_err(failed)?);
    }
    report.removed = removed.iter().map(|path| path.display().to_string()).collect();
    tell(args, &report, false)
}
