//! Temporary directories, and temporary processes of other programs, which are removed and ended even if a signal ends
//! this program.
//!
//! Dropping a [`TemporaryHandle`] ends its process and removes its directory. A signal ends this process without
//! dropping anything; [`end_with_signals`] makes it first end all temporary processes and remove all temporary
//! directories.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use tempfile::TempDir;

/// The interval between checks whether a process has ended.
const POLL: Duration = Duration::from_millis(2);

/// All temporary directories and processes that exist.
static ALL: Mutex<Vec<Option<TemporaryResource>>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Option<TemporaryResource>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TemporaryResource {
    process: Option<Child>,
    // Declared last, so that the directory is removed after the process has ended.
    _directory: TempDir,
}

impl Drop for TemporaryResource {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _gone_already = process.kill();
            let _as_well = process.wait();
        }
    }
}

/// A temporary directory, possibly with a process.
pub struct TemporaryHandle {
    number: usize,
    path: PathBuf,
    id: u32,
}

impl TemporaryHandle {
    /// Makes a directory.
    pub fn directory() -> io::Result<TemporaryHandle> {
        TemporaryHandle::new(|_| Ok(None))
    }

    /// Starts a program without input and output, and with a directory.
    pub fn process(
        program: &str,
        args: impl FnOnce(&Path) -> Vec<String>,
    ) -> io::Result<TemporaryHandle> {
        TemporaryHandle::new(|path| {
            let mut command = Command::new(program);
            command.args(args(path)).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(Some)
        })
    }

    /// Starts a program whose output goes to files in its directory: see [`TemporaryHandle::output_so_far`].
    pub fn with_output_files(command: &mut Command) -> io::Result<TemporaryHandle> {
        TemporaryHandle::new(|path| {
            let file = |name| std::fs::File::create(path.join(name));
            command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?);
            command.spawn().map(Some)
        })
    }

    fn new(start: impl FnOnce(&Path) -> io::Result<Option<Child>>) -> io::Result<TemporaryHandle> {
        // The lock lets a signal wait until this process is in the list, so that the signal ends it too.
        let mut all = all();
        let directory = tempfile::tempdir()?;
        let path = directory.path().to_owned();
        let process = start(&path)?;
        let id = process.as_ref().map_or(0, Child::id);
        all.push(Some(TemporaryResource { process, _directory: directory }));
        Ok(TemporaryHandle { number: all.len() - 1, path, id })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the status with which the process has ended, if it has ended.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let mut all = all();
        let process = all[self.number].as_mut().and_then(|held| held.process.as_mut());
        process.map_or(Ok(None), Child::try_wait)
    }

    /// Returns the output of the process so far.
    pub fn output_so_far(&self) -> ProcessText {
        let text = |name| std::fs::read(self.path.join(name)).unwrap_or_default();
        let text = |name| String::from_utf8_lossy(&text(name)).into_owned();
        ProcessText { stdout: text("stdout"), stderr: text("stderr") }
    }

    /// Waits until the process has ended, no longer than `patience`. Returns its output if it succeeded; otherwise the
    /// failure names `program` and has the output.
    pub fn finish(
        &self,
        program: &str,
        patience: Option<Duration>,
    ) -> Result<ProcessText, Failure> {
        let start = Instant::now();
        let failed = |what: &str| Failure::operation(format!("{program} failed: {what}"));
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(self.output_so_far()),
                Some(status) => {
                    let ProcessText { stdout, stderr } = self.output_so_far();
                    return Err(failed(&format!("{status}\n{stdout}{stderr}")));
                }
                None if patience.is_some_and(|patience| start.elapsed() >= patience) => {
                    return Err(failed(&format!(
                        "it did not end within {} s",
                        start.elapsed().as_secs()
                    )));
                }
                None => std::thread::sleep(POLL),
            }
        }
    }
}

impl Drop for TemporaryHandle {
    fn drop(&mut self) {
        let held = all()[self.number].take();
        drop(held);
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP end all temporary processes, remove all temporary directories, and then end this
/// process.
pub fn end_with_signals() -> Result<(), Failure> {
    interrupt::end_after(|| {
        let mut all = all();
        all.clear();
        // The lock stays taken, so that no further process is started.
        std::mem::forget(all);
    })
}

/// Returns a port that is free at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The output of a process.
pub struct ProcessText {
    pub stdout: String,
    pub stderr: String,
}

/// A program that benchmarks need and that is possibly not installed, with the Debian package that contains it.
#[derive(Clone, Copy, Debug)]
pub struct InstallableProgram {
    pub name: &'static str,
    pub package: &'static str,
}

impl InstallableProgram {
    /// Returns whether the program is installed.
    pub fn is_installed(self) -> bool {
        let dirs = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&dirs).any(|dir| dir.join(self.name).is_file())
    }

    /// Fails, and names the package to install, if the program is not installed.
    pub fn check(self) -> Result<(), Failure> {
        if self.is_installed() {
            return Ok(());
        }
        let InstallableProgram { name, package } = self;
        Err(Failure::operation(format!(
            "{name} is not installed (Debian: apt-get install {package})"
        )))
    }

    /// Runs a command of this program to its end, and returns its output if it succeeded.
    pub fn run(self, command: &mut Command) -> Result<ProcessText, Failure> {
        TemporaryHandle::with_output_files(command)?.finish(self.name, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_directory_end_together() {
        let sleeps = TemporaryHandle::process("sleep", |_| vec!["600".into()]).unwrap();
        let path = sleeps.path().to_owned();
        let process = format!("/proc/{}", sleeps.id());
        assert!(sleeps.ended().unwrap().is_none() && path.is_dir());
        drop(sleeps);
        assert!(!path.exists() && !Path::new(&process).exists());
        let program = |name| InstallableProgram { name, package: "a package" };
        assert!(program("sleep").check().is_ok());
        let failure = program("no-such-program").check().unwrap_err().to_string();
        assert!(failure.contains("apt-get install a package"), "{failure}");
    }

    #[test]
    fn a_program_that_fails_is_named_with_its_output() {
        let running =
            TemporaryHandle::with_output_files(Command::new("sh").args(["-c", "echo no; exit 3"]));
        let failure = running.unwrap().finish("sh", None).err().unwrap().to_string();
        assert!(failure.contains("sh failed") && failure.contains("no"), "{failure}");
        let sleeps = TemporaryHandle::with_output_files(Command::new("sleep").arg("600")).unwrap();
        let failure = sleeps.finish("sleep", Some(Duration::ZERO)).err().unwrap().to_string();
        assert!(failure.contains("did not end"), "{failure}");
    }
}
