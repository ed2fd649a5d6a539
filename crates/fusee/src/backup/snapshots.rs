//! A directory of exports: their names, which is the newest, and which are too old.
//!
//! A name says of which cluster an export is, and when it was begun, so that names sort by time. What is called
//! otherwise is left alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

const SUFFIX: &str = ".fusee";

/// The name of an export of a cluster that was begun so many seconds after 1970.
pub fn name(cluster: u64, begun: u64) -> String {
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(begun));
    let time = time.to_string().replace([':', '-'], "");
    format!("fusee-{cluster:016x}-{time}{SUFFIX}")
}

/// The whole exports in a directory, of a cluster or of all, the oldest first; each with its cluster.
pub fn all(directory: &Path, cluster: Option<u64>) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let named = path.file_name().and_then(|name| name.to_str()).and_then(parse);
        if let Some((of, time)) = named.filter(|(of, _)| cluster.is_none_or(|one| one == *of)) {
            found.push((time.to_owned(), of, path.clone()));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, of, path)| (of, path)).collect())
}

/// The cluster and the time that a name says.
fn parse(name: &str) -> Option<(u64, &str)> {
    let rest = name.strip_prefix("fusee-")?.strip_suffix(SUFFIX)?;
    let (cluster, time) = rest.split_once('-')?;
    let of = u64::from_str_radix(cluster, 16).ok().filter(|_| cluster.len() == 16)?;
    let is_of_time = |(at, byte): (usize, u8)| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    };
    let is_time = time.len() == 16 && time.bytes().enumerate().all(is_of_time);
    is_time.then_some((of, time))
}

/// Removes all but the newest of a cluster's; returns those that are gone.
pub fn keep_newest(directory: &Path, cluster: u64, kept: usize) -> io::Result<Vec<PathBuf>> {
    let mut all = all(directory, Some(cluster))?;
    all.truncate(all.len().saturating_sub(kept));
    let gone: Vec<PathBuf> = all.into_iter().map(|(_, path)| path).collect();
    gone.iter().try_for_each(fs::remove_file)?;
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_time_and_others_are_left_alone() {
        assert_eq!(name(0xc0ffee, 0), "fusee-0000000000c0ffee-19700101T000000Z.fusee");
        let directory =
            std::env::temp_dir().join(format!("fusee-snapshots-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let names = [name(1, 1_790_000_000), name(1, 1_780_000_000), name(2, 1_785_000_000)];
        for name in names.iter().map(String::as_str).chain([
            "notes.txt",
            "fusee-x.fusee.part",
            "fusee-before.fusee",
            "fusee-0000000000000001-old.fusee",
        ]) {
            fs::write(directory.join(name), b"").unwrap();
        }
        let paths = |names: &[&String]| -> Vec<PathBuf> {
            names.iter().map(|name| directory.join(name)).collect()
        };
        let [newest, oldest, other] = &names;
        let of = |cluster| -> Vec<PathBuf> {
            all(&directory, cluster).unwrap().into_iter().map(|(_, path)| path).collect()
        };
        assert_eq!(of(None), paths(&[oldest, other, newest]));
        assert_eq!(of(Some(2)), paths(&[other]));
        assert_eq!(keep_newest(&directory, 1, 1).unwrap(), paths(&[oldest]));
        assert_eq!(keep_newest(&directory, 1, 1).unwrap(), paths(&[]));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 6);
        fs::remove_dir_all(&directory).unwrap();
    }
}
