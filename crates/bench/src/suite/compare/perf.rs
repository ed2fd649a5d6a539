//! The samples that perf takes of one run of the work, and the part of the program of each sample.
//!
//! The work tells perf through one pipe when to begin and when to end, so that loading is not sampled; through another
//! pipe perf confirms this. The work also reports the address at which the program is mapped. A sample is an address in
//! memory, for which the program's debug information has the line of source. Only samples of the thread that does the
//! work are counted.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use addr2line::Loader;
use fusee_cli::failure::Failure;

use super::parts::{ProgramPart, ProgramPartCounts};
use crate::temporary::InstallableProgram;

/// Samples per second.
const RATE: u32 = 10_000;

/// Names of files: the pipe to perf, the pipe back, perf's samples, and the report of the work.
const CONTROL: &str = "control";
const ANSWER: &str = "answer";
const SAMPLES: &str = "samples";
const ABOUT: &str = "about";

/// Does the work while perf samples it.
pub fn work(
    directory: &Path,
    measured: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut control = OpenOptions::new().write(true).open(directory.join(CONTROL))?;
    let mut answer = BufReader::new(File::open(directory.join(ANSWER))?);
    let mut tell = |what: &str| {
        let mut answered = String::new();
        control.write_all(what.as_bytes()).and_then(|()| answer.read_line(&mut answered))
    };
    tell("enable\n")?;
    let begun = Instant::now();
    measured()?;
    let took = begun.elapsed();
    tell("disable\n")?;
    // The address of the program's first byte in memory: the first mapping of its file has the file's beginning.
    let maps = fs::read_to_string("/proc/self/maps")?;
    let program = std::env::current_exe()?;
    let is_program = |line: &&str| line.ends_with(&*program.to_string_lossy());
    let base = maps.lines().find(is_program).and_then(|line| line.split('-').next());
    let base = base.unwrap_or("0");
    let about = format!("{} {base} {}", std::process::id(), took.as_nanos());
    Ok(fs::write(directory.join(ABOUT), about)?)
}

/// Samples of the work, by part, and the nanoseconds that the work took.
pub struct PerfSamples {
    pub parts: ProgramPartCounts,
    pub ns: f64,
}

/// Lets perf sample a command that does the work.
pub fn sample(
    program: InstallableProgram,
    directory: &Path,
    command: impl FnOnce(&mut Command),
) -> Result<PerfSamples, Failure> {
    for pipe in [CONTROL, ANSWER] {
        let made = rustix::fs::mkfifoat(rustix::fs::CWD, directory.join(pipe), 0o600.into());
        made.map_err(|error| Failure::operation(format!("cannot make a pipe: {error}")))?;
    }
    let path = |name: &str| directory.join(name).display().to_string();
    let mut perf = Command::new(program.name);
    perf.args(["record", "--delay", "-1", "--event", "cpu-clock", "--freq", &RATE.to_string()]);
    // Without this option, perf copies the program into a cache in the home directory, which is never emptied.
    perf.arg("--no-buildid-cache");
    perf.args(["--control", &format!("fifo:{},{}", path(CONTROL), path(ANSWER))]);
    perf.args(["--output", &path(SAMPLES), "--"]).arg(std::env::current_exe()?);
    command(&mut perf);
    perf.args(["--perf", &directory.display().to_string()]);
    let recorded = program.run(&mut perf).map_err(explain)?.stdout;
    let about = fs::read_to_string(directory.join(ABOUT))
        .map_err(|_| Failure::operation(format!("perf did not sample:\n{recorded}")))?;
    let mut about = about.split(' ');
    let thread = about.next().unwrap_or_default();
    let base = about.next().and_then(|base| u64::from_str_radix(base, 16).ok()).unwrap_or(0);
    let ns = about.next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
    let mut script = Command::new(program.name);
    script.args(["script", "--input", &path(SAMPLES), "--fields", "tid,ip,sym,dso"]);
    let written = program.run(&mut script).map_err(explain)?.stdout;
    Ok(PerfSamples { parts: count_samples(&written, thread, base)?, ns })
}

fn explain(failure: Failure) -> Failure {
    Failure::operation(format!(
        "{failure}\nIt may need /proc/sys/kernel/perf_event_paranoid at 1, or root."
    ))
}

/// Returns the samples of one thread, by part.
fn count_samples(written: &str, thread: &str, base: u64) -> Result<ProgramPartCounts, Failure> {
    let program = std::env::current_exe()?;
    let loader = Loader::new(&program)
        .map_err(|error| Failure::operation(format!("{}: {error}", program.display())))?;
    let mut known: BTreeMap<u64, ProgramPart> = BTreeMap::new();
    let mut parts = ProgramPartCounts::new();
    for line in written.lines() {
        let Some(sample) = PerfSample::of(line).filter(|sample| sample.thread == thread) else {
            continue;
        };
        let in_program = Path::new(sample.file) == program;
        let part = match sample.file {
            _ if in_program => *known
                .entry(sample.address)
                .or_insert_with(|| of_address(&loader, sample.address.wrapping_sub(base))),
            file if file.starts_with('[') => ProgramPart::Kernel,
            _ => ProgramPart::of_function(sample.function),
        };
        *parts.entry(part).or_default() += 1;
    }
    Ok(parts)
}

/// Returns the part to which an address belongs. Inlined code of the standard library is counted for the function that
/// contains it.
fn of_address(loader: &Loader, address: u64) -> ProgramPart {
    let Ok(mut frames) = loader.find_frames(address) else { return ProgramPart::Rest };
    while let Ok(Some(frame)) = frames.next() {
        if let Some(part) = frame.location.and_then(|at| at.file).and_then(ProgramPart::of_file) {
            return part;
        }
    }
    ProgramPart::Rest
}

/// A line of `perf script`: thread, address, function, and in brackets the file of the function.
struct PerfSample<'l> {
    thread: &'l str,
    address: u64,
    function: &'l str,
    file: &'l str,
}

impl<'l> PerfSample<'l> {
    fn of(line: &'l str) -> Option<PerfSample<'l>> {
        let (thread, rest) = line.trim().split_once(char::is_whitespace)?;
        let (address, rest) = rest.trim_start().split_once(' ')?;
        let (function, file) = rest.rsplit_once(" (")?;
        let address = u64::from_str_radix(address, 16).ok()?;
        Some(PerfSample { thread, address, function, file: file.strip_suffix(')')? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_perf_are_understood() {
        let line =
            "  4711     55b22d298e55 fusee_core::store::write (with, commas) (/usr/bin/fusee)";
        let sample = PerfSample::of(line).unwrap();
        assert_eq!((sample.thread, sample.address), ("4711", 0x55b2_2d29_8e55));
        assert_eq!(sample.file, "/usr/bin/fusee");
        assert_eq!(sample.function, "fusee_core::store::write (with, commas)");
        assert!(PerfSample::of("4711 zz memmove (/lib/libc.so.6)").is_none());
        assert!(PerfSample::of("").is_none());
    }

    #[test]
    fn samples_are_of_their_thread_and_part() {
        let written = "  7 ffffffff821eb5f6 copy_page ([kernel.kallsyms])\n  \
            7 7f6371a552cf _int_free (/usr/lib/libc.so.6)\n  \
            7 7f6371a552cf __memmove_avx (/usr/lib/libc.so.6)\n  \
            8 7f6371a552cf __memmove_avx (/usr/lib/libc.so.6)\n";
        let found = count_samples(written, "7", 0).unwrap();
        assert_eq!(
            found,
            ProgramPartCounts::from([
                (ProgramPart::Kernel, 1),
                (ProgramPart::Heap, 1),
                (ProgramPart::Copies, 1)
            ])
        );
    }
}
