//! Every dependency has a licence that `deny.toml` allows, and comes from crates.io.
//!
//! Where cargo-deny is installed, it checks this too, and security advisories. This test needs nothing but cargo.

use std::process::Command;

use serde_json::Value;

use super::lines::root;

// Promise SEC-22: Dependencies have allowed licences and come from crates.io.
#[test]
fn dependencies_have_allowed_licences_and_one_source() {
    let rules: toml::Table =
        std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap();
    let allowed: Vec<&str> = rules["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|licence| licence.as_str().unwrap())
        .collect();
    let packages = packages();
    assert!(packages.len() > 100, "only {} packages", packages.len());
    let mut mistakes = Vec::new();
    for package in &packages {
        let text = |name: &str| package[name].as_str().unwrap_or_default();
        let name = text("name");
        if !is_allowed(text("license"), &allowed) {
            mistakes.push(format!("{name}: the licence is {:?}", text("license")));
        }
        let source = package["source"].as_str();
        if source.is_some_and(|s| s != "registry+https://github.com/rust-lang/crates.io-index") {
            mistakes.push(format!("{name}: it comes from {source:?}"));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

fn packages() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("no packages: {other}"),
    }
}

#[test]
fn expressions_of_licences_are_understood() {
    let allowed = ["MIT", "Apache-2.0"];
    for good in
        ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "MIT AND Apache-2.0", "(GPL OR MIT) AND MIT"]
    {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR MIT", &allowed));
    for bad in
        ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL) AND GPL", "Apache-2.0 WITH x", "MIT OR"]
    {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}

/// Returns whether allowed licences alone satisfy an SPDX expression. A licence with an exception is not an allowed
/// one.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    any_of(&mut rest, allowed) == Some(true) && rest.is_empty()
}

fn any_of(rest: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let mut met = all_of(rest, allowed)?;
    while let [first, others @ ..] = *rest
        && *first == "OR"
    {
        *rest = others;
        met |= all_of(rest, allowed)?;
    }
    Some(met)
}

fn all_of(rest: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let mut met = one(rest, allowed)?;
    while let [first, others @ ..] = *rest
        && *first == "AND"
    {
        *rest = others;
        met &= one(rest, allowed)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let (first, others) = rest.split_first()?;
    *rest = others;
    if *first == "(" {
        let met = any_of(rest, allowed)?;
        let (last, others) = rest.split_first()?;
        *rest = others;
        return (*last == ")").then_some(met);
    }
    if let ["WITH", _, others @ ..] = *rest {
        *rest = others;
        return Some(false);
    }
    Some(allowed.contains(first))
}
