//! `fusee import`: writes the pairs of an export into this cluster.
//!
//! A file is read to its end before any pair is written, so a damaged or incomplete file changes nothing. Pairs from
//! standard input are written as they come.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, Read, Seek, stdin};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_cli::{interrupt, output, stderr};
use fusee_client::BlockingClient;
use fusee_core::verbs::ClusterId;
use fusee_export::format::{
    ExportBlock, ExportHead, ExportPart, ExportReader, ExportTotals, FormatError,
};
use fusee_export::{ExistingPairs, ImportTotals, Importer, KeptOnImport};
use serde::Serialize;

use super::export_directory::ExportListing;
use super::{PairProgress, export_directory, rate, when};

/// Arguments of `fusee import`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee import pairs.fusee\n  \
    fusee import /backups                      the newest export in a directory\n  \
    zstd -dc pairs.fusee.zst | fusee import -\n  \
    fusee import pairs.fusee --existing keep --redundancy rules\n  \
    fusee import pairs.fusee --check           without any cluster\n\n\
    The cluster may have other memory nodes, other replicas and other sizes than the one that was exported. An\n\
    import that was interrupted can be made again: the same pairs are written again.\n\n\
    Exit codes: 0 done; 1 something failed, or the export is damaged or not whole; 2 wrong usage; 3 the\n\
    cluster cannot be reached; 128 and the number of the signal that ended it.")]
pub struct ImportArgs {
    /// The file; a directory of exports, for the newest of this cluster; or - for standard input
    #[arg(value_name = "FILE|DIR")]
    file: PathBuf,

    /// Only check whether the export is good
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    how: ImportOptions,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Options that `import` and `restore` share.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct ImportOptions {
    /// For keys that exist: replace their values, or keep them
    #[arg(long, default_value = "replace", value_name = "HOW")]
    existing: ExistingArg,

    /// Redundancy of the pairs: as exported, if there are enough memory nodes (kept); or by the rules of the
    /// cluster (rules)
    #[arg(long, default_value = "kept", value_name = "HOW")]
    redundancy: RedundancyArg,

    /// In a directory, use the exports of this cluster, as their names show it [default: the one to import into]
    #[arg(long, value_name = "CLUSTER", value_parser = cluster_id)]
    pub of: Option<ClusterId>,

    /// Also accept an interrupted, truncated or damaged export, as far as it is good; for restore, also one
    /// that lacks pairs
    #[arg(long)]
    partial: bool,
}

/// Parses the id of a cluster in the form of the status and of exports' names.
fn cluster_id(text: &str) -> Result<ClusterId, String> {
    let word = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
    word.and_then(ClusterId::from_word)
        .ok_or_else(|| format!("`{text}` is no cluster; write it like 00c0ffee00c0ffee"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExistingArg {
    Replace,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RedundancyArg {
    Kept,
    Rules,
}

/// The result of an import.
#[derive(Debug, Serialize)]
struct ImportReport {
    file: String,
    /// The cluster that was exported. `begun` is the time at which the export began, in seconds since 1970.
    of_cluster: String,
    begun: u64,
    /// Whether the file contains the end of the export.
    whole: bool,
    /// Number of pairs that were read. `bytes` is the sum of their lengths.
    pairs: u64,
    bytes: u64,
    /// Number of pairs that the export lacks because they were damaged.
    damaged: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<WrittenPairs>,
    seconds: f64,
    pairs_per_s: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct WrittenPairs {
    pairs: u64,
    existed: u64,
    by_rules: u64,
}

impl ImportReport {
    fn missing(&self) -> String {
        let missing = count_with_noun(self.damaged, "pair");
        format!("{}: {missing} missing, since they were damaged when it was made", self.file)
    }

    fn text(&self) -> String {
        let ImportReport { file, of_cluster, seconds, pairs_per_s, .. } = self;
        let pairs = count_with_noun(self.pairs, "pair");
        let bytes = ByteSize(self.bytes);
        let Some(written) = self.written else {
            let whole = if self.whole { "whole" } else { "not whole, but good as far as it goes" };
            return format!("{file}: {pairs} of cluster {of_cluster}, {bytes}; {whole}\n");
        };
        // If the file was not read to its end, the number of its pairs is unknown.
        let of = if self.whole { "of" } else { "of the first" };
        let mut text = format!(
            "{file}: {} {of} {} written, in {seconds:.1} s, {pairs_per_s:.0} a second\n",
            written.pairs, pairs
        );
        if written.existed > 0 {
            text += &format!("{} were there, and stay\n", written.existed);
        }
        if written.by_rules > 0 {
            let what =
                "by the rules of the cluster: there are too few memory nodes for their codes";
            text += &format!("{} {what}\n", written.by_rules);
        }
        text
    }
}

/// Runs `fusee import`.
pub fn run(args: &ImportArgs) -> Result<(), Failure> {
    interrupt::watch()?;
    // In a directory, the cluster to import into selects the exports, unless `--of` names another one. A check has no
    // cluster, so without `--of` all exports have to be of one cluster.
    let asks = !args.check && args.how.of.is_none() && args.file.is_dir();
    let client = asks.then(|| args.connect.connect()).transpose()?;
    let asking = client.as_ref().map(|client| client.view().cluster);
    let mut source = ImportSource::of(&args.file, args.how.of.or(asking), args.json)?;
    if args.check {
        return tell(args.json, &source.check(args.how.partial, args.json)?);
    }
    if source.file.is_some() {
        source.check(args.how.partial, args.json)?;
    }
    let client = client.map_or_else(|| args.connect.connect(), Ok)?;
    tell(args.json, &source.import(&client, args.how, args.json)?)
}

fn tell(is_json: bool, report: &ImportReport) -> Result<(), Failure> {
    output::text(&if is_json {
        serde_json::to_string(report).expect("numbers and names") + "\n"
    } else {
        report.text()
    })?;
    if let Some(interrupted) = interrupt::failure() {
        return Err(interrupted);
    }
    match report.damaged {
        0 => Ok(()),
        _ => Err(Failure::operation(report.missing())),
    }
}

/// Returns the newest export of this cluster in a directory. Without a cluster, returns the newest export, and fails if
/// the exports are of several clusters.
fn newest(
    directory: &Path,
    cluster: Option<ClusterId>,
    is_quiet: bool,
) -> Result<PathBuf, Failure> {
    let failed =
        |what: &dyn Display| Failure::operation(format!("{}: {what}", directory.display()));
    let ExportListing { whole, others } =
        export_directory::all(directory).map_err(|error| failed(&error))?;
    for (path, error) in others {
        stderr::tell(&format!("{} is left out: {error}", path.display()));
    }
    let clusters: BTreeSet<u64> = whole.iter().map(|snapshot| snapshot.head.cluster).collect();
    let named: Vec<String> = clusters.iter().map(|cluster| format!("{cluster:016x}")).collect();
    let of = match (cluster.map(ClusterId::word), clusters.first()) {
        (_, None) => return Err(failed(&"there is no whole export in it")),
        (Some(of), _) if clusters.contains(&of) => of,
        (None, Some(of)) if clusters.len() == 1 => *of,
        (Some(of), Some(first)) => {
            return Err(failed(&format!(
                "its exports are of {}, and not of {of:016x}; `--of {first:016x}` takes the newest of that cluster",
                named.join(", ")
            )));
        }
        (None, Some(_)) => {
            return Err(failed(&format!(
                "there are exports of several clusters in it: {}; say with --of which",
                named.join(", ")
            )));
        }
    };
    let mut own = whole.iter().filter(|snapshot| snapshot.head.cluster == of);
    let newest = own.next_back().expect("there is one of that cluster");
    if !is_quiet {
        let path = newest.path.display();
        let begun = when(newest.head.begun);
        stderr::tell(&format!(
            "{path} is the newest export of cluster {of:016x}, begun at {begun}"
        ));
    }
    Ok(newest.path.clone())
}

/// The source of the pairs to import.
struct ImportSource {
    name: String,
    /// The file, if the source can be read twice.
    file: Option<File>,
    /// Otherwise a stream, which can be read only once.
    stream: Option<Box<dyn Read>>,
}

impl ImportSource {
    /// Opens a file, or, in a directory, the newest export of this cluster.
    fn of(
        path: &Path,
        cluster: Option<ClusterId>,
        is_quiet: bool,
    ) -> Result<ImportSource, Failure> {
        if path.as_os_str() == "-" {
            let stream: Box<dyn Read> = Box::new(stdin().lock());
            return Ok(ImportSource {
                name: "standard input".into(),
                file: None,
                stream: Some(stream),
            });
        }
        let path = if path.is_dir() { newest(path, cluster, is_quiet)? } else { path.to_owned() };
        let name = path.display().to_string();
        let cannot = |error| Failure::operation(format!("{name}: {error}"));
        let file = File::open(&path).map_err(cannot)?;
        Ok(if file.metadata().map_err(cannot)?.is_file() {
            ImportSource { name, file: Some(file), stream: None }
        } else {
            ImportSource { name, file: None, stream: Some(Box::new(file)) }
        })
    }

    /// Returns a reader that starts at the beginning.
    fn open(&mut self) -> Result<Box<dyn Read>, Failure> {
        let Some(file) = &self.file else {
            return Ok(self.stream.take().expect("it is read once"));
        };
        let again = file.try_clone().and_then(|mut file| file.rewind().map(|()| file));
        let again = again.map_err(|error| self.failed(&error))?;
        Ok(Box::new(BufReader::with_capacity(1 << 20, again)))
    }

    fn failed(&self, error: &dyn Display) -> Failure {
        Failure::operation(format!("{}: {error}", self.name))
    }

    /// Reads the export to its end, and writes no pair.
    fn check(&mut self, partial: bool, is_quiet: bool) -> Result<ImportReport, Failure> {
        self.each(partial, "checked", is_quiet, |_| Ok(None))
    }

    /// Writes the pairs of the export.
    fn import(
        &mut self,
        client: &BlockingClient,
        how: ImportOptions,
        is_quiet: bool,
    ) -> Result<ImportReport, Failure> {
        let import = Importer {
            existing: match how.existing {
                ExistingArg::Replace => ExistingPairs::Replaced,
                ExistingArg::Keep => ExistingPairs::Kept,
            },
            kept: match how.redundancy {
                RedundancyArg::Kept => KeptOnImport::Redundancy,
                RedundancyArg::Rules => KeptOnImport::Nothing,
            },
            rules: client.admin().redundancy_rules()?,
        };
        let mut imported = ImportTotals::default();
        self.each(how.partial, "imported", is_quiet, |block| {
            let written = import.block(client, block, &mut imported);
            written.map_err(|error| Failure::operation(error.to_string()))?;
            let ImportTotals { written, existed, by_rules, .. } = imported;
            Ok(Some(WrittenPairs { pairs: written, existed, by_rules }))
        })
    }

    /// Passes each block to `show`, until the end of the export or a signal.
    fn each(
        &mut self,
        partial: bool,
        verb: &str,
        is_quiet: bool,
        mut show: impl FnMut(&ExportBlock) -> Result<Option<WrittenPairs>, Failure>,
    ) -> Result<ImportReport, Failure> {
        let mut reader = ExportReader::begin(self.open()?).map_err(|error| self.failed(&error))?;
        let mut block = ExportBlock::default();
        let mut progress = PairProgress::new(is_quiet);
        block.clear();
        let mut written = show(&block)?;
        let mut whole = false;
        while !interrupt::is_requested() {
            match reader.next(&mut block) {
                Ok(ExportPart::End(_)) => {
                    whole = true;
                    break;
                }
                Ok(ExportPart::Block(_)) => written = show(&block)?,
                Err(FormatError::CutOff { .. } | FormatError::Damaged { .. }) if partial => break,
                Err(error) => {
                    let hint = match error {
                        FormatError::CutOff { .. } => "; --partial takes it",
                        FormatError::Damaged { .. } => "; --partial takes what is before",
                        _ => "",
                    };
                    return Err(Failure::operation(format!("{}: {error}{hint}", self.name)));
                }
            }
            let ExportTotals { pairs, bytes, .. } = reader.totals();
            progress.show(verb, pairs, bytes, None);
        }
        progress.end();
        let (ExportHead { cluster, begun, .. }, seconds) = (reader.head(), progress.seconds());
        let ExportTotals { pairs, bytes, damaged, .. } = reader.totals();
        Ok(ImportReport {
            file: self.name.clone(),
            of_cluster: format!("{cluster:016x}"),
            begun,
            whole,
            pairs,
            bytes,
            damaged,
            written,
            seconds,
            pairs_per_s: rate(pairs, seconds),
        })
    }
}

/// Imports for `fusee restore`: checks the file, calls `cluster` to form a cluster, and writes the pairs there.
pub fn restore(
    path: &Path,
    of_cluster: Option<ClusterId>,
    how: ImportOptions,
    is_json: bool,
    cluster: impl FnOnce() -> Result<BlockingClient, Failure>,
) -> Result<(), Failure> {
    let mut source = ImportSource::of(path, how.of.or(of_cluster), is_json)?;
    if source.file.is_none() {
        return Err(Failure::usage("a cluster is restored from a file, which is checked before"));
    }
    let report = source.check(how.partial, is_json)?;
    if let Some(interrupted) = interrupt::failure() {
        return Err(interrupted);
    }
    // An older export possibly has the missing pairs.
    if report.damaged > 0 && !how.partial {
        return Err(Failure::operation(format!(
            "{}; --partial takes it. Nothing was changed",
            report.missing()
        )));
    }
    tell(is_json, &source.import(&cluster()?, how, is_json)?)
}
