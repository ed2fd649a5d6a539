//! The test that `fusee-core` does no I/O and has no unsafe code.
//!
//! The compiler enforces this: in a `no_std` crate there are no files, sockets, clocks or threads to name, and an inner
//! attribute cannot lift `forbid`. The tests check that the two attributes stay, that no file names `std`, and that no
//! dependency is added unnoticed.

// Promise SEC-8: `core` has no I/O and no `unsafe`.

use std::fs;
use std::path::{Path, PathBuf};

/// The allowed dependencies, which only compute. The erasure code also asks the processor, once, which instructions it
/// has.
const DEPENDENCIES: [&str; 6] =
    ["arrayvec", "crc-fast", "rusty_erasure", "serde", "siphasher", "thiserror"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_attributes_are_there() {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    assert!(lib.lines().any(|l| l == "#![no_std]"));
    assert!(lib.lines().any(|l| l == "#![forbid(unsafe_code)]"));
}

#[test]
fn std_is_never_named() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    assert!(files.len() > 15);
    for file in files {
        for line in fs::read_to_string(&file).unwrap().lines() {
            let code = line.split("//").next().unwrap();
            assert!(!code.contains("std::"), "{}: {line}", file.display());
            assert!(!code.contains("extern crate std"), "{}: {line}", file.display());
        }
    }
}

#[test]
fn dependencies_are_the_known_ones() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let names: Vec<&str> = section
        .lines()
        .filter_map(|l| l.split(['.', ' ', '=']).next().filter(|n| !n.is_empty()))
        .collect();
    assert_eq!(names, DEPENDENCIES);
}
