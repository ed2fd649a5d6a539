// Promise API-13

use std::collections::HashSet;
use std::io::Cursor;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MAX_KEY: usize = 64;

fn read(load: &[u8], trans: &[u8]) -> Result<YcsbTrace, TraceError> {
    YcsbTrace::read(("load.txt", load), ("trans.txt", trans), MAX_KEY)
}

#[track_caller]
fn refused(load: &str, trans: &str, says: &str) {
    let error = read(load.as_bytes(), trans.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with(says), "{error}");
}

fn all(trace: &YcsbTrace) -> Vec<(WorkloadOperation, &[u8])> {
    let turns = (0..).map_while(|turn| trace.turn(0, 1, turn, trace.operations()));
    turns.map(|(request, key)| (request, trace.key(key))).collect()
}

/// The parser understands the output of YCSB, with all text around the operations, and the forms in the files of the
/// paper's prototype.
#[test]
fn all_forms_of_an_operation_are_understood() {
    let load = b"***************** properties *****************\n\"recordcount\"=\"3\"\n\
        **********************************************\n\
        INSERT usertable user6284781860667377211 [ field0=a b [c] field1==READ x ]\n\
        INSERT user2\r\nINSERT usertable user3\n[OVERALL], RunTime(ms), 10\n";
    let trans = b"# by hand\n\nREAD usertable user6284781860667377211 [ <all fields>]\n\
        UPDATE usertable user2 [ field0=\xff\x00 ]\nREAD user3\n\tINSERT  user4 \nDELETE usertable user4";
    let trace = read(load, trans).unwrap();
    let first = &b"user6284781860667377211"[..];
    assert_eq!((trace.keys(), trace.loaded(), trace.longest_key_bytes()), (4, 3, first.len()));
    let expected = [
        (WorkloadOperation::Search, first),
        (WorkloadOperation::Update, &b"user2"[..]),
        (WorkloadOperation::Search, &b"user3"[..]),
        (WorkloadOperation::Insert, &b"user4"[..]),
        (WorkloadOperation::Delete, &b"user4"[..]),
    ];
    assert_eq!(all(&trace), expected);
    assert_eq!(REQUESTS.map(|request| trace.count(request)), [2, 1, 1, 1]);
    let unsettled = [0, 1, 2, 3].map(|key| trace.may_be_absent(key));
    assert_eq!(unsettled, [false, false, false, true]);
}

#[test]
fn what_is_refused_is_named_with_its_file_and_line() {
    let good = "INSERT t a\nINSERT t b\n";
    refused(
        "INSERT t a\nREAD t a\n",
        "",
        "load.txt:2: expected INSERTs alone in the file to load, found READ",
    );
    refused("INSERT t a\n\nINSERT a\n", "", "load.txt:3: `a` is inserted a second time");
    refused("[OVERALL]\n", "READ a", "load.txt has no operations; expected lines like `INSERT ");
    refused(good, "# nothing", "trans.txt has no operations; expected lines like `READ ");
    refused(good, "READ a\nSCAN t a 10 [ <all fields>]\n", "trans.txt:2: SCAN is no operation");
    refused(good, "read a\n", "trans.txt:1: expected INSERT, READ, UPDATE or DELETE, then a key");
    refused(good, "READ [ <all fields>]\n", "trans.txt:1: expected a key behind READ");
    refused(good, "READ t a b\n", "trans.txt:1: expected a table and a key, then nothing");
    refused(
        good,
        "READ a\nUPDATE c\nREAD d\n",
        "trans.txt:2: expected a key that one of the files inserts; nothing inserts `c`",
    );
    let long = format!("READ a\nREAD {}\n", "x".repeat(MAX_KEY + 1));
    refused(good, &long, "trans.txt:2: the key has 65 bytes; expected at most 64");
    let control = "\x1b[31mred\x07 and more than is shown of a line that is refused";
    refused(
        good,
        &format!("READ a\n{control}"),
        r"trans.txt:2: expected INSERT, READ, UPDATE or DELETE, then a key, found `\x1b[31mred\x07",
    );
    let missing = YcsbTrace::open(Path::new("/nonexistent/load"), Path::new("x"), MAX_KEY);
    assert!(missing.unwrap_err().to_string().starts_with("cannot read /nonexistent/load: "));
}

/// The second file is allowed to read a key in a line above the one that inserts the key, because YCSB's threads print
/// independently.
#[test]
fn an_insert_may_stand_below_the_first_read() {
    let trace = read(b"INSERT a\n", b"READ b\nINSERT b\n").unwrap();
    assert_eq!((trace.keys(), trace.loaded()), (2, 1));
    assert!(trace.may_be_absent(1) && !trace.may_be_absent(0));
}

#[test]
fn lines_are_bounded_and_a_long_one_is_not_taken_into_memory() {
    let prefix = b"READ a [ ".to_vec();
    let line = |len: usize| [&prefix[..], &vec![b'x'; len - prefix.len()]].concat();
    let longest = line(MAX_LINE_BYTES);
    assert_eq!(all(&read(b"INSERT a", &longest).unwrap()).len(), 1);
    let both = [&longest[..], b"\n", &line(MAX_LINE_BYTES + 1)].concat();
    let error = read(b"INSERT a", &both).unwrap_err().to_string();
    assert!(error.starts_with("trans.txt:2: the line has more than 1048576 bytes"), "{error}");
    // This file is one line that never ends.
    let endless = BufReader::new(io::repeat(b'x'));
    let load = Cursor::new("INSERT a");
    let error = YcsbTrace::read(("l", load), ("/dev/zero", endless), MAX_KEY).unwrap_err();
    assert!(matches!(
        error,
        TraceError::Line { line: 1, problem: TraceLineError::LineTooLong, .. }
    ));
}

#[test]
fn the_digest_tells_files_apart_but_not_their_fields() {
    let digest =
        |load: &str, trans: &str| read(load.as_bytes(), trans.as_bytes()).unwrap().digest();
    let base = digest("INSERT a\nINSERT b", "READ a\nREAD b");
    assert_eq!(base, digest("INSERT t a [ field0=7 ]\nINSERT b\n", "\nREAD a\nREAD b\n"));
    for (load, trans) in [
        ("INSERT a\nINSERT b", "READ b\nREAD a"),
        ("INSERT a\nINSERT b", "READ a\nUPDATE b"),
        ("INSERT b\nINSERT a", "READ b\nREAD a"),
        ("INSERT a\nINSERT bc", "READ a\nREAD bc"),
    ] {
        assert_ne!(base, digest(load, trans), "{load} {trans}");
    }
}

/// Workers run each line once, and then begin again from the first line.
#[test]
fn line_i_is_of_worker_i_modulo_their_number() {
    let lines: String = (0..7).map(|i| format!("UPDATE k{i}\n")).collect();
    let load: String = (0..7).map(|i| format!("INSERT k{i}\n")).collect();
    let trace = read(load.as_bytes(), lines.as_bytes()).unwrap();
    for workers in 1..10 {
        for operations in [0, 1, 6, 7, 8, 20, 21] {
            let mut times = [0u64; 7];
            for worker in 0..workers {
                let turns = (0..).map_while(|turn| trace.turn(worker, workers, turn, operations));
                for (_, key) in turns {
                    assert_eq!(key % workers, worker);
                    times[key as usize] += 1;
                }
            }
            let expected =
                [0, 1, 2, 3, 4, 5, 6].map(|i| operations / 7 + u64::from(i < operations % 7));
            assert_eq!(times, expected, "{workers} workers, {operations} operations");
        }
    }
    assert_eq!(trace.turn(7, 9, 0, u64::MAX), None);
    assert_eq!(trace.turn(6, 9, u64::MAX - 1, u64::MAX), None);
}

fn key() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,11}"
}

/// Pieces from which random files are made.
const PIECES: &[&[u8]] = &[
    b"READ ",
    b"INSERT ",
    b"SCAN",
    b"UPDATE t ",
    b"a",
    b"\n",
    b" ",
    b"[",
    b"\"",
    b"\xff\0",
    b"DELETE b\n",
    b"\r\n",
];

proptest! {
    /// Printed operations are read back unchanged.
    #[test]
    fn operations_come_back(
        loaded in vec(key(), 1..20),
        draws in vec((0usize..4, any::<prop::sample::Index>(), 0usize..4, "[ -~]{0,30}"), 1..50),
    ) {
        let mut seen = HashSet::new();
        let loaded: Vec<&String> = loaded.iter().filter(|key| seen.insert(*key)).collect();
        let load: String = loaded.iter().map(|key| format!("INSERT usertable {key} [ f=1 ]\n")).collect();
        let kinds = ["READ", "UPDATE", "INSERT", "DELETE"];
        let mut lines = String::new();
        let mut expected = Vec::new();
        for (kind, index, form, field) in &draws {
            let name = kinds[*kind];
            let key = loaded[index.index(loaded.len())];
            lines += &match form {
                0 => format!("{name} {key}\n"),
                1 => format!("{name} usertable {key}\r\n"),
                2 => format!("{name} usertable {key} [ {field}]\n"),
                _ => format!("  {name}\t{key} [{field}\n\n"),
            };
            expected.push((REQUESTS[*kind], key.as_bytes()));
        }
        let trace = read(load.as_bytes(), lines.as_bytes()).unwrap();
        prop_assert_eq!(trace.loaded(), loaded.len() as u64);
        prop_assert_eq!(all(&trace), expected);
    }

    /// A file with any contents is read or refused, and a refusal names a line of the file.
    #[test]
    fn any_bytes_are_read_or_refused(
        load in vec(any::<u8>(), 0..200),
        pieces in vec(prop::sample::select(PIECES), 0..60),
    ) {
        let trans: Vec<u8> = pieces.concat();
        for load in [&load[..], b"INSERT a\nINSERT b\n"] {
            let lines = |bytes: &[u8]| bytes.split(|b| *b == b'\n').count() as u64;
            match read(load, &trans) {
                Ok(trace) => prop_assert!(trace.operations() > 0 && trace.loaded() > 0),
                Err(TraceError::Line { file, line, problem }) => {
                    let of = if file == "load.txt" { lines(load) } else { lines(&trans) };
                    prop_assert!((1..=of).contains(&line), "{line} of {of}");
                    let text = problem.to_string();
                    prop_assert!(text.len() < 400 && !text.contains(char::is_control), "{text:?}");
                }
                Err(TraceError::Empty { .. }) => {}
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
