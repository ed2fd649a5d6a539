//! A build cache that the machines of a team share: the keys are hashes of all inputs of a compilation, the values are
//! its outputs.
//!
//! `cargo run -p fusee-client --example build_cache`

mod support;

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};

use fusee_client::{BlockingClient, WriteError};

/// A unit of a build, with all inputs of the compiler. A real cache would use a cryptographic hash of compiler, flags
/// and all files.
#[derive(Hash)]
struct BuildUnit<'b> {
    compiler: &'b str,
    flags: &'b [&'b str],
    source: &'b str,
}

impl BuildUnit<'_> {
    fn key(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("build/{:016x}", hasher.finish())
    }

    /// Fills in the output, in place of a real compiler.
    fn compile(&self, output: &mut [u8]) {
        let source = self.source.bytes().cycle();
        output.iter_mut().zip(source).for_each(|(to, from)| *to = from.to_ascii_uppercase());
    }
}

/// Returns the output, and whether it came from the cache.
fn build(cache: &BlockingClient, unit: &BuildUnit<'_>) -> Result<(Vec<u8>, bool), WriteError> {
    const OUTPUT_BYTES: usize = 256 << 10;
    let key = unit.key();
    let mut output = Vec::with_capacity(OUTPUT_BYTES);
    // This copies the value once: from the memory where it was fetched into the buffer.
    let is_cached = cache.get_with(key.as_bytes(), |cached| {
        output.extend_from_slice(cached.unwrap_or_default());
        cached.is_some()
    })?;
    if !is_cached {
        // The compiler writes directly into the memory that is sent.
        cache.put_from(key.as_bytes(), OUTPUT_BYTES, |value| {
            unit.compile(value);
            output.extend_from_slice(value);
        })?;
    }
    Ok((output, is_cached))
}

fn main() -> Result<(), Box<dyn Error>> {
    let cache = support::store()?;
    let unit = BuildUnit { compiler: "cc 14.2", flags: &["-O2"], source: "int main() {}" };
    let debug = BuildUnit { flags: &["-O0"], ..unit };
    for unit in [&unit, &debug] {
        // Removes the outputs of earlier runs of this example, if the cluster is not a new one.
        let _ = cache.delete(unit.key().as_bytes());
    }
    let (built, is_cached) = build(&cache, &unit)?;
    assert!(!is_cached, "nobody has built it");
    let (fetched, is_cached) = build(&cache, &unit)?;
    assert!(is_cached && fetched == built, "what was built is there");
    let (_, is_cached) = build(&cache, &debug)?;
    assert!(!is_cached, "other flags make another output");
    println!("three builds, one of them from the cache: {} bytes each", built.len());
    Ok(())
}
