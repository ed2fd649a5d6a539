//! `fusee export`, `import`, `keys` and `count` as processes, as users run them.

// Promise API-16: Exports have every pair once; imports fit any geometry.
// Promise API-26: A new export stays; files, not clocks, say which is newer.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use fusee_client::{ScanCursor, ScannedPair};
use fusee_export::format::{ExportBlock, ExportHead, ExportWriter};

use super::common::{Scratch, UpCluster, eventually, finish, finish_with, fusee, signal, wait};
use super::config::LoggedServer;

fn some_pairs(up: &UpCluster) {
    for n in 0..12 {
        up.run(&["put", &format!("user:{n}"), &format!("value {n}")]).expect_code(0);
    }
    let picture = up.scratch.file("picture", &[7; 100_000]);
    up.run(&["put", "picture", "--value-file", &picture, "--redundancy", "ec:2+1"]).expect_code(0);
    up.run(&["put", "--hex", "00ff0a", "binary"]).expect_code(0);
}

/// Returns the names of the exports in a directory, sorted.
fn exports(directory: &str) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Writes an export without pairs that says that this many pairs were damaged.
fn empty_export(scratch: &Scratch, damaged: u64) -> String {
    let name = scratch.path().join("empty.fusee").display().to_string();
    let head = ExportHead { cluster: 1, begun: 0, number: 0 };
    let mut writer = ExportWriter::begin(fs::File::create(&name).unwrap(), &head).unwrap();
    let mut block = ExportBlock::default();
    block.add_damaged(damaged);
    writer.block(&block, &ScanCursor::start()).unwrap();
    writer.end(0).unwrap();
    name
}

#[test]
fn pairs_go_into_a_file_and_into_a_cluster_of_another_geometry() {
    let up = UpCluster::start(&[]);
    some_pairs(&up);
    let file = up.scratch.path().join("pairs.fusee").display().to_string();
    let report = up.run(&["export", &file, "--json"]).expect_code(0).json();
    assert_eq!((&report["pairs"], &report["whole"]), (&14.into(), &true.into()));
    up.run(&["export", &file]).expect_error(1, "is there already");

    let checked = finish(&mut fusee(&["import", &file, "--check", "--json"])).expect_code(0).json();
    assert_eq!(checked["pairs"], 14);
    let mut bytes = fs::read(&file).unwrap();
    bytes[200] ^= 1;
    let damaged = up.scratch.file("damaged", &bytes);
    up.run(&["import", &damaged]).expect_error(1, "it is damaged");
    up.run(&["import", &damaged]).expect_error(1, "--partial takes what is before");
    let before = up.run(&["import", &damaged, "--partial", "--check", "--json"]).expect_code(0);
    assert_eq!(before.json()["whole"], false);
    bytes[200] ^= 1;
    let cut = up.scratch.file("cut", &bytes[..bytes.len() - 50]);
    up.run(&["import", &cut]).expect_error(1, "--partial takes it");
    up.run(&["import", "/dev/null", "--check"]).expect_error(1, "no export of FUSEE");
    bytes.push(0);
    let longer = up.scratch.file("longer", &bytes);
    up.run(&["import", &longer, "--check"]).expect_error(1, "behind its end");
    up.run(&["restore", "/dev/stdin"]).expect_error(2, "from a file");
    // An export that lacks pairs is no reason to destroy a cluster, so `restore` refuses it without `--partial`.
    let lacking = empty_export(&up.scratch, 2);
    let refused = up.run(&["restore", &lacking, "--destroy-data"]);
    refused.expect_error(1, "2 pairs missing, since they were damaged when it was made; --partial");
    let destroying = ["restore", &lacking, "--destroy-data", "--partial"];
    up.run(&destroying).expect_error(1, "are there and hold data");

    let other =
        UpCluster::start(&["--memory-nodes", "5", "--data-replicas", "3", "--index-keys", "1000"]);
    other.run(&["put", "user:1", "mine"]).expect_code(0);
    let kept = other.run(&["import", &file, "--existing", "keep", "--json"]).expect_code(0).json();
    assert_eq!((&kept["written"]["pairs"], &kept["written"]["existed"]), (&13.into(), &1.into()));
    assert_eq!(other.run(&["get", "user:1"]).stdout, b"mine");
    other.run(&["import", &file]).expect_code(0);
    assert_eq!(other.run(&["get", "user:1"]).stdout, b"value 1");
    assert_eq!(other.run(&["get", "--hex", "00ff0a"]).stdout, b"binary");
    assert_eq!(other.run(&["get", "picture"]).stdout, [7; 100_000]);
    assert_eq!(other.run(&["redundancy", "get", "picture"]).text(), "ec:2+1\n");

    // The pairs go through pipes, to a cluster that has too few memory nodes for the erasure code of one pair. So the
    // rules of that cluster decide on the redundancy of that pair.
    let small = UpCluster::start(&["--memory-nodes", "2"]);
    let stream = other.run(&["export", "-"]).expect_code(0);
    let report = finish_with(&mut small.command(&["import", "-", "--json"]), &stream.stdout);
    let report = report.expect_code(0).json();
    assert_eq!(
        (&report["written"]["pairs"], &report["written"]["by_rules"]),
        (&14.into(), &1.into())
    );
    assert_eq!(small.run(&["redundancy", "get", "picture"]).text(), "replicated\n");
}

#[test]
fn keys_are_listed_and_counted() {
    let up = UpCluster::start(&[]);
    assert_eq!(up.run(&["count"]).expect_code(0).text(), "0 pairs, 0 B of keys, 0 B of values\n");
    some_pairs(&up);
    let mut keys: Vec<String> = up
        .run(&["keys", "--prefix", "user:"])
        .expect_code(0)
        .text()
        .lines()
        .map(str::to_owned)
        .collect();
    keys.sort_unstable();
    let mut expected: Vec<String> = (0..12).map(|n| format!("user:{n}")).collect();
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(up.run(&["keys", "--hex", "--prefix", "00"]).expect_code(0).text(), "00ff0a\n");
    up.run(&["keys", "--hex", "--prefix", "0"]).expect_error(2, "hexadecimal");
    let five = up.run(&["keys", "--limit", "5", "--hex"]).expect_code(0);
    assert_eq!(five.text().lines().count(), 5);
    let counted = up.run(&["count", "--json"]).expect_code(0).json();
    assert_eq!((&counted["pairs"], &counted["damaged"]), (&14.into(), &0.into()));
}

#[test]
fn an_export_that_is_interrupted_is_gone_on_with() {
    let up = UpCluster::start(&[]);
    some_pairs(&up);
    let file = up.scratch.path().join("pairs.fusee").display().to_string();
    up.run(&["export", &file, "--resume"]).expect_error(1, "pairs.fusee.part");
    // A process was killed while it wrote a block. The resumed export continues behind the last complete block.
    up.run(&["export", &file]).expect_code(0);
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(format!("{file}.part"), &bytes[..bytes.len() - 70]).unwrap();
    up.run(&["export", &file]).expect_error(1, "--resume");
    let report = up.run(&["export", &file, "--resume", "--json"]).expect_code(0).json();
    assert_eq!(report["pairs"], 14);
    let checked = up.run(&["import", &file, "--check", "--json"]).expect_code(0).json();
    assert_eq!((&checked["pairs"], &checked["whole"]), (&14.into(), &true.into()));
    // The export was written to its end, but not renamed.
    fs::rename(&file, format!("{file}.part")).unwrap();
    up.run(&["export", &file, "--resume"]).expect_code(0);
    assert_eq!(fs::read(&file).unwrap().len(), bytes.len());
    // Everything behind the damage is discarded, and the export continues from there.
    let mut rotten = fs::read(&file).unwrap();
    rotten[100] ^= 1;
    fs::remove_file(&file).unwrap();
    fs::write(format!("{file}.part"), &rotten).unwrap();
    let report = up.run(&["export", &file, "--resume", "--json"]).expect_code(0).json();
    assert_eq!(report["pairs"], 14);
    up.run(&["import", &file, "--check"]).expect_code(0);
    // Everything behind the damage is discarded, even if it is longer than what the continued export writes.
    rotten.extend(vec![0; 100_000]);
    fs::remove_file(&file).unwrap();
    fs::write(format!("{file}.part"), &rotten).unwrap();
    up.run(&["export", &file, "--resume"]).expect_code(0);
    up.run(&["import", &file, "--check"]).expect_code(0);
    // The part of another cluster's export is refused.
    let other = UpCluster::start(&[]);
    fs::rename(&file, format!("{file}.part")).unwrap();
    other.run(&["export", &file, "--resume"]).expect_error(1, "of cluster");
}

#[test]
fn an_export_that_says_to_be_of_the_end_of_time_is_gone_on_with() {
    let up = UpCluster::start(&[]);
    some_pairs(&up);
    let file = up.scratch.path().join("pairs.fusee").display().to_string();
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    let cluster = u64::from_str_radix(status["cluster"].as_str().unwrap(), 16).unwrap();
    let head = ExportHead { cluster, begun: u64::MAX, number: 0 };
    let part = fs::File::create(format!("{file}.part")).unwrap();
    ExportWriter::begin(part, &head).unwrap().into_inner().unwrap();
    let resumed = up.run(&["export", &file, "--resume"]).expect_code(0);
    assert!(resumed.stderr.contains("begun at 9999-12-31"), "{}", resumed.stderr);
    up.run(&["import", &file, "--check"]).expect_code(0);
}

/// An export contains a key twice if the key was deleted and inserted again during the export. The later pair is newer,
/// whichever redundancy each pair has.
#[test]
fn of_a_key_that_is_there_twice_the_later_one_counts() {
    let up = UpCluster::start(&["--pool=512MiB"]);
    let name = up.scratch.path().join("twice.fusee").display().to_string();
    let head = ExportHead { cluster: 1, begun: 0, number: 0 };
    let mut writer = ExportWriter::begin(fs::File::create(&name).unwrap(), &head).unwrap();
    let mut block = ExportBlock::default();
    let redundancies = ["replicated", "ec:2+1"].map(|text| text.parse().unwrap());
    let mut keys = Vec::new();
    for older in redundancies {
        for newer in redundancies {
            for others in [0, 3] {
                let key = format!("{older}, {newer}, {others}");
                let old = vec![b'o'; 5000];
                let new = vec![b'n'; 5000];
                block.push(&ScannedPair { key: key.as_bytes(), value: &old, redundancy: older });
                for n in 0..others {
                    let key = format!("{key} {n}");
                    let redundancy = redundancies[n % 2];
                    block.push(&ScannedPair { key: key.as_bytes(), value: &old, redundancy });
                }
                block.push(&ScannedPair { key: key.as_bytes(), value: &new, redundancy: newer });
                keys.push(key);
            }
        }
    }
    writer.block(&block, &ScanCursor::start()).unwrap();
    writer.end(0).unwrap();
    up.run(&["import", &name]).expect_code(0);
    for key in keys {
        let value = up.run(&["get", &key]).expect_code(0).stdout;
        assert!(value == [b'n'; 5000], "{key}");
    }
}

#[test]
fn the_export_that_was_just_made_stays_whatever_names_and_clocks_say() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=2"]);
    let directory = up.scratch.path().join("exports").display().to_string();
    let export = |more: &[&str]| up.run(&[&["export", "--dir", &directory], more].concat());
    up.run(&["put", "k", "old"]).expect_code(0);
    export(&["--keep", "1"]).expect_code(0);
    // One export has a name as of a clock that was years ahead. Another one is of an older program, without a number.
    let [first] = &exports(&directory)[..] else { panic!("one export") };
    let (cluster, _) = first.strip_prefix("fusee-").unwrap().split_once('-').unwrap();
    let late = format!("{directory}/fusee-{cluster}-000001-20991231T000000Z.fusee");
    fs::rename(format!("{directory}/{first}"), &late).unwrap();
    let cluster_word = u64::from_str_radix(cluster, 16).unwrap();
    let head = ExportHead { cluster: cluster_word, begun: 5_000_000_000, number: 0 };
    let unnumbered = format!("{directory}/fusee-{cluster}-20991231T000000Z.fusee");
    ExportWriter::begin(fs::File::create(unnumbered).unwrap(), &head).unwrap().end(0).unwrap();
    // The file is the part of an export that was killed.
    let part = format!("{directory}/fusee-{cluster}-000002-20991231T000000Z.fusee.part");
    fs::write(&part, b"FUSEEXPT").unwrap();

    up.run(&["put", "k", "new"]).expect_code(0);
    up.run(&["put", "k2", "new"]).expect_code(0);
    let made = export(&["--keep", "1", "--json"]).expect_code(0).json();
    assert_eq!(made["removed"].as_array().unwrap().len(), 3, "{made}");
    let [newest] = &exports(&directory)[..] else { panic!("{:?}", exports(&directory)) };
    assert!(newest.starts_with(&format!("fusee-{cluster}-000002-")), "{newest}");
    let checked = up.run(&["import", &directory, "--check", "--json"]).expect_code(0).json();
    assert_eq!(checked["pairs"], 2);

    // Another cluster imports these exports only if `--of` names their cluster.
    let other = UpCluster::start(&["--pool=256MiB", "--memory-nodes=2"]);
    other.run(&["import", &directory]).expect_error(1, &format!("`--of {cluster}` takes"));
    let taken = other.run(&["import", &directory, "--of", cluster]).expect_code(0);
    assert!(taken.stderr.contains("is the newest export of cluster"), "{}", taken.stderr);
    assert_eq!(other.run(&["get", "k"]).expect_code(0).stdout, b"new");
    // The other cluster's exports do not cause the removal of these exports.
    other.run(&["export", "--dir", &directory, "--keep", "1"]).expect_code(0);
    assert_eq!(exports(&directory).len(), 2);
    up.run(&["import", &directory, "--check"]).expect_error(1, "several clusters");
    let own = up.run(&["import", &directory, "--json"]).expect_code(0).json();
    assert_eq!(own["of_cluster"], cluster);
    // An incomplete export is left out.
    let file = format!("{directory}/{newest}");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    up.run(&["import", &directory]).expect_error(1, "is left out: it ends at byte");
}

#[test]
fn exports_are_made_on_a_schedule_and_old_ones_removed() {
    let up = UpCluster::start(&[]);
    some_pairs(&up);
    let directory = up.scratch.path().join("exports");
    let named = directory.display().to_string();
    let mut command =
        up.command(&["export", "--dir", &named, "--every", "1s", "--keep", "2", "--json"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(4_500));
    signal("INT", child.id());
    assert_eq!(wait(&mut child).code(), Some(130));
    let mut names: Vec<String> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().all(|name| name.ends_with("Z.fusee")), "{names:?}");
    let newest = up.run(&["import", &named, "--check", "--json"]).expect_code(0).json();
    assert!(newest["file"].as_str().unwrap().ends_with(&names[1]), "{newest}");
    up.run(&["export", "--dir", &named, "--every", "1ms"]).expect_error(2, "at least 1s");
    up.run(&["export", "file", "--every", "1s"]).expect_error(2, "--dir");
    up.run(&["export", "file", "--keep", "1"]).expect_error(2, "--dir");
    up.run(&["export", "--dir", &named, "--resume"]).expect_error(2, "no --dir");
}

#[test]
fn a_restore_that_waits_for_memory_nodes_ends_with_one_signal() {
    let scratch = Scratch::new();
    let directory = scratch.path().join("store").display().to_string();
    let mut master = fusee(&["master", "--listen", "127.0.0.1:0", "--data-dir", &directory]);
    let master = LoggedServer::start(&scratch, "log", &mut master);
    let export = empty_export(&scratch, 0);
    let address = master.announced["control"].as_str().unwrap();
    let mut restore = fusee(&["restore", &export, "--master", address]);
    let mut restore = restore.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("it is to be formed", || {
        fs::read_to_string(&master.log).unwrap().contains("is to be formed")
    });
    signal("INT", restore.id());
    assert_eq!(wait(&mut restore).code(), Some(130));
}

/// The export refuses the file name before it reads any pair.
#[test]
fn a_link_that_leads_nowhere_is_no_new_file() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=1"]);
    let link = up.scratch.path().join("link.fusee");
    std::os::unix::fs::symlink("/nowhere/at/all", &link).unwrap();
    up.run(&["export", link.to_str().unwrap()]).expect_error(1, "is there already");
    assert!(!up.scratch.path().join("link.fusee.part").exists());
}
