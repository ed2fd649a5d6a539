//! The program `fusee`, which launched servers run.

use std::env;
use std::path::{Path, PathBuf};

use fusee_cli::failure::Failure;

use crate::child::Child;

/// Name of the program's file.
const NAME: &str = "fusee";

/// The program `fusee`, which runs servers and tools.
#[derive(Clone, Debug)]
pub struct ServerProgram {
    path: PathBuf,
    verbose: u8,
}

impl ServerProgram {
    /// Returns the program of this process. Servers get the argument `--verbose` that many times.
    pub fn this(verbose: u8) -> Result<ServerProgram, Failure> {
        Ok(ServerProgram { path: of_process()?, verbose })
    }

    /// Returns the program `fusee` in the directory of this process's program.
    pub fn beside() -> Result<ServerProgram, Failure> {
        ServerProgram::beside_program(&of_process()?)
    }

    fn beside_program(other: &Path) -> Result<ServerProgram, Failure> {
        let path = other.with_file_name(NAME);
        if !path.is_file() {
            let release = if cfg!(debug_assertions) { "" } else { "--release " };
            return Err(Failure::operation(format!(
                "there is no program {}, which runs the servers: build it (`cargo build {release}-p fusee`), or \
                 install both programs in one directory",
                path.display()
            )));
        }
        Ok(ServerProgram { path, verbose: 0 })
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a server with these arguments. `name` is for messages.
    pub fn spawn(&self, name: &str, arguments: &[String]) -> Result<Child, Failure> {
        Child::spawn(&self.path, name, self.verbose, arguments)
    }
}

fn of_process() -> Result<PathBuf, Failure> {
    env::current_exe()
        .map_err(|error| Failure::operation(format!("cannot find this program's file: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_program_its_place_and_the_next_step_are_named() {
        let missing = ServerProgram::beside_program(Path::new("/no/such/fusee-bench"));
        let says = missing.unwrap_err().to_string();
        assert!(says.contains("/no/such/fusee,") && says.contains("-p fusee`"), "{says}");
    }
}
