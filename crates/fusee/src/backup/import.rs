//! `fusee import`: the pairs of an export, into this cluster.
//!
//! A file is read to its end before anything is written, so that one that is damaged, or not whole, changes nothing.
//! Standard input is written as it comes.

use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fusee_backup::format::{Block, FormatError, Head, Part, Reader, Totals};
use fusee_backup::{Existing, Import, Imported, Kept};
use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::{Bytes, counted};
use fusee_cli::{interrupt, output};
use fusee_client::Client;
use serde::Serialize;

use super::{Progress, rate, snapshots};

/// From where, and how.
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
pub struct Args {
    /// The file; a directory with exports, of which the newest is taken; or - for standard input
    #[arg(value_name = "FILE|DIR")]
    file: PathBuf,

    /// Only say whether the export is good
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    how: How,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// How pairs are written.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct How {
    /// What becomes of keys that are there: they get the value of the export, or keep theirs
    #[arg(long, default_value = "replace", value_name = "HOW")]
    existing: ExistingArg,

    /// The redundancy of pairs: what they had, as far as there are memory nodes enough; or what the rules of the
    /// cluster say
    #[arg(long, default_value = "kept", value_name = "HOW")]
    redundancy: RedundancyArg,

    /// Also an export that was interrupted, or cut off: what there is of it
    #[arg(long)]
    partial: bool,
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

/// What came of an import.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    /// The cluster that was exported, and when that was begun, in seconds since 1970.
    of_cluster: String,
    begun: u64,
    /// Whether the export has its end.
    whole: bool,
    /// Pairs and bytes that were read.
    pairs: u64,
    bytes: u64,
    /// Pairs that the export lacks, since they were damaged.
    damaged: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<Written>,
    seconds: f64,
    pairs_per_s: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Written {
    pairs: u64,
    existed: u64,
    by_rules: u64,
}

impl Report {
    fn text(&self) -> String {
        let Report { file, of_cluster, seconds, pairs_per_s, .. } = self;
        let (pairs, bytes) = (counted(self.pairs, "pair"), Bytes(self.bytes));
        let Some(written) = self.written else {
            let whole = if self.whole { "whole" } else { "not whole, but good as far as it goes" };
            return format!("{file}: {pairs} of cluster {of_cluster}, {bytes}; {whole}\n");
        };
        let mut text = format!(
            "{file}: {} of {} written, in {seconds:.1} s, {pairs_per_s:.0} a second\n",
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

/// Imports.
pub fn run(args: &Args) -> Result<(), Failure> {
    interrupt::watch()?;
    let source = Source::of(&args.file)?;
    if args.check {
        return tell(args.json, &source.check(args.how.partial, args.json)?);
    }
    if let Source::File(_) = source {
        source.check(args.how.partial, args.json)?;
    }
    let client = args.connect.connect()?;
    tell(args.json, &source.import(&client, args.how, args.json)?)
}

fn tell(is_json: bool, report: &Report) -> Result<(), Failure> {
    output::text(&match is_json {
        true => serde_json::to_string(report).expect("numbers and names") + "\n",
        false => report.text(),
    })?;
    interrupt::failure().map_or(Ok(()), Err)
}

/// Where the pairs come from.
pub enum Source {
    File(PathBuf),
    Stdin,
}

impl Source {
    /// What is named so; of a directory, the newest export.
    pub fn of(path: &Path) -> Result<Source, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Source::Stdin);
        }
        if !path.is_dir() {
            return Ok(Source::File(path.into()));
        }
        let cannot = |error| Failure::operation(format!("{}: {error}", path.display()));
        let newest = snapshots::all(path, None).map_err(cannot)?.pop();
        let none = || Failure::operation(format!("{}: there is no export in it", path.display()));
        newest.map(Source::File).ok_or_else(none)
    }

    fn name(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::Stdin => "standard input".into(),
        }
    }

    fn open(&self) -> Result<Box<dyn Read>, Failure> {
        Ok(match self {
            Source::Stdin => Box::new(stdin().lock()),
            Source::File(path) => {
                let opened = File::open(path);
                let opened = opened.map_err(|error| self.failed(&error))?;
                Box::new(BufReader::with_capacity(1 << 20, opened))
            }
        })
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::operation(format!("{}: {error}", self.name()))
    }

    /// Reads it to its end.
    fn check(&self, partial: bool, is_quiet: bool) -> Result<Report, Failure> {
        self.each(partial, ("checked", is_quiet), |_| Ok(None))
    }

    /// Writes its pairs.
    fn import(&self, client: &Client, how: How, is_quiet: bool) -> Result<Report, Failure> {
        let import = Import {
            existing: match how.existing {
                ExistingArg::Replace => Existing::Replaced,
                ExistingArg::Keep => Existing::Kept,
            },
            kept: match how.redundancy {
                RedundancyArg::Kept => Kept::Redundancy,
                RedundancyArg::Rules => Kept::Nothing,
            },
            rules: client.redundancy_rules()?,
        };
        let mut imported = Imported::default();
        self.each(how.partial, ("imported", is_quiet), |block| {
            let written = import.block(client, block, &mut imported);
            written.map_err(|error| self.failed(&error))?;
            let Imported { written, existed, by_rules, .. } = imported;
            Ok(Some(Written { pairs: written, existed, by_rules }))
        })
    }

    /// Shows all blocks, or those up to a signal.
    fn each(
        &self,
        partial: bool,
        (verb, is_quiet): (&str, bool),
        mut show: impl FnMut(&Block) -> Result<Option<Written>, Failure>,
    ) -> Result<Report, Failure> {
        let mut reader = Reader::begin(self.open()?).map_err(|error| self.failed(&error))?;
        let (mut block, mut progress) = (Block::default(), Progress::new(is_quiet));
        block.clear();
        let (mut written, mut whole) = (show(&block)?, false);
        while !interrupt::requested() {
            match reader.next(&mut block) {
                Ok(Part::End(_)) => {
                    whole = true;
                    break;
                }
                Ok(Part::Block(_)) => written = show(&block)?,
                Err(FormatError::CutOff { .. }) if partial => break,
                Err(error) => {
                    let hint = match error {
                        FormatError::CutOff { .. } => "; --partial takes it",
                        _ => "",
                    };
                    return Err(Failure::operation(format!("{}: {error}{hint}", self.name())));
                }
            }
            let Totals { pairs, bytes, .. } = reader.totals();
            progress.show(verb, pairs, bytes, None);
        }
        progress.end();
        let (Head { cluster, begun }, seconds) = (reader.head(), progress.seconds());
        let Totals { pairs, bytes, damaged, .. } = reader.totals();
        Ok(Report {
            file: self.name(),
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

/// For `restore`: checks a file, then has a cluster made for it, and writes its pairs there.
pub fn restore(
    path: &Path,
    how: How,
    is_json: bool,
    cluster: impl FnOnce() -> Result<Client, Failure>,
) -> Result<(), Failure> {
    let source = Source::of(path)?;
    if let Source::Stdin = source {
        return Err(Failure::usage("a cluster is restored from a file, which is checked before"));
    }
    source.check(how.partial, is_json)?;
    if let Some(interrupted) = interrupt::failure() {
        return Err(interrupted);
    }
    tell(is_json, &source.import(&cluster()?, how, is_json)?)
}
