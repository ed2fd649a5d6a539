//! The processor time of a process's threads.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A thread of a process, as its directory in `/proc`.
#[derive(Clone, Debug)]
pub struct ProcessThread(PathBuf);

/// Returns all threads of a process, or only the threads with this name.
pub fn process_threads(process: u32, name: Option<&str>) -> io::Result<Vec<ProcessThread>> {
    let mut tasks = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = task?.path();
        // A thread that ends meanwhile has no name any more.
        let own_name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.is_none_or(|name| own_name.trim_end() == name) {
            tasks.push(ProcessThread(path));
        }
    }
    Ok(tasks)
}

/// Returns the sum of the threads' processor times, in nanoseconds.
pub fn time_ns(tasks: &[ProcessThread]) -> io::Result<u64> {
    let time = |task: &ProcessThread| {
        let text = fs::read_to_string(task.0.join("schedstat"))?;
        first_number(&text).ok_or_else(|| io::Error::other("schedstat has another form"))
    };
    tasks.iter().map(time).sum()
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_this_thread_passes() {
        let own = std::thread::Builder::new().name("a name".into()).spawn(|| {
            let own = process_threads(std::process::id(), Some("a name")).unwrap();
            assert_eq!(own.len(), 1);
            let before = time_ns(&own).unwrap();
            // The system updates the time at the latest when it switches threads.
            while time_ns(&own).unwrap() == before {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        own.unwrap().join().unwrap();
        assert!(process_threads(std::process::id(), Some("nobody")).unwrap().is_empty());
        assert_eq!((first_number("514147 0 1\n"), first_number("")), (Some(514_147), None));
    }
}
