//! `fusee keys` and `fusee count`: print keys, and count them.

use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_cli::{interrupt, output};
use fusee_client::{BlockingClient, ScanCursor, ScannedPair};
use serde::Serialize;

use super::PairProgress;

/// Arguments of `fusee keys`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee keys\n  fusee keys --prefix user: | head\n  \
    fusee keys --hex --prefix 00ff\n\n\
    One key a line, in no order, as it is; in hexadecimal digits with --hex, which is safe for any key. A key\n\
    that is deleted and inserted again meanwhile may be shown twice, or not at all.")]
pub struct KeysArgs {
    #[command(flatten)]
    which: KeyPrefixArgs,

    /// Stop after this many keys
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// Arguments of `fusee count`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  fusee count\n  fusee count --prefix user: --json\n\n\
    All pairs are read, as by `fusee keys`.")]
pub struct CountArgs {
    #[command(flatten)]
    which: KeyPrefixArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(clap::Args, Debug)]
struct KeyPrefixArgs {
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,

    /// Read the prefix, and show keys, as hexadecimal digits
    #[arg(long)]
    hex: bool,
}

#[derive(Debug, Default, Serialize)]
struct PairCount {
    pairs: u64,
    key_bytes: u64,
    value_bytes: u64,
    damaged: u64,
}

impl KeyPrefixArgs {
    fn prefix(&self) -> Result<Vec<u8>, Failure> {
        if !self.hex {
            return Ok(self.prefix.as_bytes().to_vec());
        }
        crate::kv::from_hex(&self.prefix).ok_or_else(|| {
            let what = "is no even number of hexadecimal digits";
            Failure::usage(format!("`{}` {what}", self.prefix))
        })
    }

    /// Passes the pairs of each piece of a scan to `show`, until the scan ends or `goes_on` returns false. Returns the
    /// number of damaged pairs.
    fn each(
        &self,
        client: &BlockingClient,
        mut show: impl FnMut(ScannedPair<'_>),
        mut goes_on: impl FnMut(&ScanCursor) -> Result<bool, Failure>,
    ) -> Result<u64, Failure> {
        let mut cursor = ScanCursor::start();
        let prefix = self.prefix()?;
        let mut damaged = 0;
        while !cursor.is_done() {
            damaged += piece(client, &mut cursor, &prefix, &mut show)?;
            if interrupt::is_requested() || !goes_on(&cursor)? {
                break;
            }
        }
        interrupt::failure().map_or(Ok(damaged), Err)
    }
}

/// Passes the pairs of one piece of a scan to `show`, if their keys begin with `prefix`. Returns the number of damaged
/// pairs.
fn piece(
    client: &BlockingClient,
    cursor: &mut ScanCursor,
    prefix: &[u8],
    mut show: impl FnMut(ScannedPair<'_>),
) -> Result<u64, Failure> {
    Ok(client.scan(cursor, |pair| {
        if pair.key.starts_with(prefix) {
            show(pair);
        }
    })?)
}

/// Passes all pairs to `show`, if their keys begin with `prefix`. Returns the number of damaged pairs.
pub fn each(
    client: &BlockingClient,
    prefix: &[u8],
    mut show: impl FnMut(ScannedPair<'_>),
) -> Result<u64, Failure> {
    let mut cursor = ScanCursor::start();
    let mut damaged = 0;
    while !cursor.is_done() {
        damaged += piece(client, &mut cursor, prefix, &mut show)?;
    }
    Ok(damaged)
}

/// Prints keys.
pub fn keys(args: &KeysArgs) -> Result<(), Failure> {
    let client = args.connect.connect()?;
    interrupt::watch()?;
    let left = std::cell::Cell::new(args.limit.unwrap_or(u64::MAX));
    let lines = std::cell::RefCell::new(Vec::new());
    let show = |pair: ScannedPair<'_>| {
        if let Some(less) = left.get().checked_sub(1) {
            left.set(less);
            let mut lines = lines.borrow_mut();
            if args.which.hex {
                lines.extend(pair.key.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()))
            } else {
                lines.extend_from_slice(pair.key)
            }
            lines.push(b'\n');
        }
    };
    let damaged = args.which.each(&client, show, |_| {
        let mut lines = lines.borrow_mut();
        output::raw(&lines)?;
        lines.clear();
        Ok(output::is_read() && left.get() > 0)
    })?;
    missing(damaged)
}

/// Prints the number of pairs.
pub fn count(args: &CountArgs) -> Result<(), Failure> {
    let client = args.connect.connect()?;
    interrupt::watch()?;
    let counts = std::cell::Cell::new([0; 3]);
    let mut progress = PairProgress::new(args.json);
    let show = |pair: ScannedPair<'_>| {
        let [pairs, keys, values] = counts.get();
        counts.set([pairs + 1, keys + pair.key.len() as u64, values + pair.value.len() as u64]);
    };
    let damaged = args.which.each(&client, show, |cursor| {
        let [pairs, keys, values] = counts.get();
        progress.show("counted", pairs, keys + values, Some(cursor.progress()));
        Ok(true)
    })?;
    progress.end();
    let [pairs, key_bytes, value_bytes] = counts.get();
    let found = PairCount { pairs, key_bytes, value_bytes, damaged };
    output::text(&if args.json {
        serde_json::to_string(&found).expect("numbers") + "\n"
    } else {
        format!(
            "{}, {} of keys, {} of values\n",
            count_with_noun(pairs, "pair"),
            ByteSize(key_bytes),
            ByteSize(value_bytes)
        )
    })?;
    missing(damaged)
}

/// Returns a failure if the number of damaged pairs is not 0.
pub fn missing(damaged: u64) -> Result<(), Failure> {
    match damaged {
        0 => Ok(()),
        damaged => Err(Failure::operation(format!(
            "{} damaged on all replicas, and missing",
            count_with_noun(damaged, "pair")
        ))),
    }
}
