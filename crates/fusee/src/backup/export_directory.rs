//! A directory of exports: their names, their order, and the removal of old ones.
//!
//! Clocks go wrong, are set back, and differ between machines. Therefore an export gets a number when it begins: the
//! highest number of its cluster in the directory, plus one. The number is stored in the file, and orders the exports.
//! Exports of versions without numbers come first, in the order of the times in their heads. The file's name only
//! repeats for people what the file says.
//!
//! Only a file with both head and end is a complete export. Incomplete files do not count for numbers and for `--keep`.
//! Files whose names are not those of exports are left alone.

// Promise API-26

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use fusee_export::format::{ExportHead, FormatError, head_of_whole};

use super::when;

const SUFFIX: &str = ".fusee";
/// Suffix of a file that is not complete.
pub const PART: &str = ".part";

/// A complete export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFile {
    /// The file.
    pub path: PathBuf,
    /// The head of the file.
    pub head: ExportHead,
}

/// The exports in a directory.
#[derive(Debug, Default)]
pub struct ExportListing {
    /// Complete exports, the oldest first.
    pub whole: Vec<ExportFile>,
    /// Files that have names of exports, but are damaged or incomplete, each with the reason.
    pub others: Vec<(PathBuf, FormatError)>,
}

/// Returns the file name of an export in a directory.
pub fn name(head: &ExportHead) -> String {
    let time = when(head.begun).replace([':', '-'], "");
    format!("fusee-{:016x}-{:06}-{time}{SUFFIX}", head.cluster, head.number)
}

/// Returns all exports in a directory.
pub fn all(directory: &Path) -> io::Result<ExportListing> {
    let mut found = ExportListing::default();
    for path in named(directory, |name| is_name(name, None))? {
        let head = File::open(&path).map_err(FormatError::from);
        match head.and_then(|file| head_of_whole(BufReader::new(file))) {
            Ok(head) => found.whole.push(ExportFile { path, head }),
            Err(error) => found.others.push((path, error)),
        }
    }
    let order = |snapshot: &ExportFile| (snapshot.head.number, snapshot.head.begun);
    found.whole.sort_by(|a, b| (order(a), &a.path).cmp(&(order(b), &b.path)));
    found.others.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// Returns the number of the next export of a cluster.
pub fn next_number(directory: &Path, cluster: u64) -> io::Result<u32> {
    let all = all(directory)?.whole.into_iter().map(|snapshot| snapshot.head);
    let numbers = all.filter(|head| head.cluster == cluster).map(|head| head.number);
    Ok(numbers.max().unwrap_or(0).saturating_add(1))
}

/// Removes all exports of a cluster except the `kept` newest ones. The latest export, `made`, counts as one of the kept
/// exports. Returns the removed files.
pub fn keep_newest(
    directory: &Path,
    cluster: u64,
    kept: usize,
    made: &Path,
) -> io::Result<Vec<PathBuf>> {
    let is_other =
        |snapshot: &ExportFile| snapshot.head.cluster == cluster && snapshot.path != made;
    let others = all(directory)?.whole.into_iter().filter(is_other);
    let mut others: Vec<PathBuf> = others.map(|snapshot| snapshot.path).collect();
    others.truncate(others.len().saturating_sub(kept.saturating_sub(1)));
    let mut gone = Vec::new();
    for path in others {
        match fs::remove_file(&path) {
            Ok(()) => gone.push(path),
            // Another process that exports into this directory has removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(gone)
}

/// Removes parts of a cluster's exports that no process writes any more, because the next export does not resume them.
/// Returns the removed files.
pub fn remove_parts(directory: &Path, cluster: u64) -> io::Result<Vec<PathBuf>> {
    let is_part =
        |name: &str| name.strip_suffix(PART).is_some_and(|name| is_name(name, Some(cluster)));
    let mut gone = Vec::new();
    for path in named(directory, is_part)? {
        // A process locks the part that it writes.
        if File::options().write(true).open(&path).is_ok_and(|part| part.try_lock().is_ok()) {
            fs::remove_file(&path)?;
            gone.push(path);
        }
    }
    Ok(gone)
}

/// Returns the files in a directory whose names satisfy `is_such`.
fn named(directory: &Path, is_such: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(&is_such) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns whether an export of this cluster (or of any) can have this file name. Old names lack the number.
fn is_name(name: &str, cluster: Option<u64>) -> bool {
    let rest = name.strip_prefix("fusee-").and_then(|rest| rest.strip_suffix(SUFFIX));
    let parts: Vec<&str> = rest.unwrap_or_default().split('-').collect();
    let ([of, time] | [of, _, time]) = parts[..] else { return false };
    let is_number = |text: &str| text.len() >= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_time = |(at, byte): (usize, u8)| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    };
    let of = u64::from_str_radix(of, 16).ok().filter(|_| of.len() == 16);
    of.is_some_and(|of| cluster.is_none_or(|cluster| of == cluster))
        && (parts.len() == 2 || is_number(parts[1]))
        && time.len() == 16
        && time.bytes().enumerate().all(is_of_time)
}

#[cfg(test)]
mod tests {
    use fusee_export::format::ExportWriter;

    use super::*;

    struct ExportTestDirectory(PathBuf);

    impl ExportTestDirectory {
        fn new(name: &str) -> ExportTestDirectory {
            let path = std::env::temp_dir().join(format!("fusee-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            ExportTestDirectory(path)
        }

        /// Creates an empty export with this file name.
        fn add(&self, head: &ExportHead, name: &str) -> PathBuf {
            let path = self.0.join(name);
            ExportWriter::begin(File::create(&path).unwrap(), head).unwrap().end(0).unwrap();
            path
        }
    }

    impl Drop for ExportTestDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const fn head(cluster: u64, number: u32, begun: u64) -> ExportHead {
        ExportHead { cluster, begun, number }
    }

    fn whole(directory: &ExportTestDirectory) -> Vec<PathBuf> {
        all(&directory.0).unwrap().whole.into_iter().map(|snapshot| snapshot.path).collect()
    }

    #[test]
    fn files_say_which_is_newer_whatever_their_names_and_clocks_say() {
        let directory = ExportTestDirectory::new("snapshots-order");
        // Two exports without numbers, of which the older one has a name with a later time. Then two exports with
        // numbers, of which the second was made after the clock was set back.
        let late = "fusee-0000000000000001-20990101T000000Z.fusee";
        let first = directory.add(&head(1, 0, 1_780_000_000), late);
        let second = "fusee-0000000000000001-20260101T000000Z.fusee";
        let second = directory.add(&head(1, 0, 1_790_000_000), second);
        let [future, back] = [head(1, 1, 4_000_000_000), head(1, 2, 1_700_000_000)];
        let future = directory.add(&future, &name(&future));
        let back = directory.add(&back, &name(&back));
        assert_eq!(whole(&directory), [first, second, future, back]);
        assert_eq!(next_number(&directory.0, 1).unwrap(), 3);
        assert_eq!(next_number(&directory.0, 2).unwrap(), 1);
    }

    #[test]
    fn what_was_just_made_and_what_is_no_whole_export_stays() {
        let directory = ExportTestDirectory::new("snapshots-keep");
        let made = head(1, 3, 5);
        let [old, other, made_path] =
            [head(1, u32::MAX, 9_000_000_000), head(2, 1, 1), made].map(|head| {
                let name = name(&head);
                directory.add(&head, &name)
            });
        let cut =
            directory.add(&head(1, 0, 1), "fusee-0000000000000001-000000-19700101T000000Z.fusee");
        fs::write(&cut, &fs::read(&cut).unwrap()[..60]).unwrap();
        let names = ["notes.txt", "fusee-before.fusee", "fusee-0000000000000001-old.fusee"];
        names.iter().for_each(|name| fs::write(directory.0.join(name), b"").unwrap());
        assert_eq!(all(&directory.0).unwrap().others.len(), 1);
        assert_eq!(keep_newest(&directory.0, 1, 2, &made_path).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(keep_newest(&directory.0, 1, 1, &made_path).unwrap(), [old]);
        assert_eq!(keep_newest(&directory.0, 1, 1, &made_path).unwrap(), Vec::<PathBuf>::new());
        assert!([other, made_path, cut].iter().all(|path| path.exists()));
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 6);
    }

    #[test]
    fn parts_go_unless_they_are_written_or_of_others() {
        let directory = ExportTestDirectory::new("snapshots-parts");
        let part = |cluster, number| {
            let path = directory.0.join(name(&head(cluster, number, 1)) + PART);
            fs::write(&path, b"a part").unwrap();
            path
        };
        let [left, written, other] = [part(1, 1), part(1, 2), part(2, 1)];
        let file = directory.0.join("pairs.fusee.part");
        fs::write(&file, b"to be resumed").unwrap();
        let writer = File::options().write(true).open(&written).unwrap();
        writer.try_lock().unwrap();
        assert_eq!(remove_parts(&directory.0, 1).unwrap(), [left]);
        assert!([written, other, file].iter().all(|path| path.exists()));
    }
}
