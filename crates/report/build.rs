//! Makes release builds know the commit from which they were built, so that their reports can name it.
//!
//! If the sources are in no repository, the environment variable `FUSEE_COMMIT` names the commit. Debug builds are not
//! used for measurements, and are not rebuilt for every commit.

use std::env;
use std::path::Path;
use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let done = Command::new("git").args(args).output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FUSEE_COMMIT");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !is_release || env::var_os("FUSEE_COMMIT").is_some() {
        return;
    }
    // Sources without a repository of their own possibly lie inside the repository of another project.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    for changes in ["logs/HEAD", "index"] {
        let path = git(&["rev-parse", "--git-path", changes]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".."]);
    let dirty = if changed.is_some_and(|changed| changed.is_empty()) { "" } else { "-dirty" };
    println!("cargo:rustc-env=FUSEE_COMMIT={commit}{dirty}");
}
