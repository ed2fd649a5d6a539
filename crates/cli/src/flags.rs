//! Names of settings in messages.
//!
//! The lower crates name a setting by its field, for example `geometry.region_bytes`. On the command line it is a flag,
//! `--region-bytes`. One flag is shorter than its field: `--lease` stands for `lease_ms`.

/// Names of settings' fields for which the command line has flags.
const FIELDS: [&str; 16] = [
    "memory_nodes",
    "index_replicas",
    "data_replicas",
    "index_keys",
    "region_bytes",
    "block_bytes",
    "groups_per_subtable",
    "max_key_bytes",
    "max_value_bytes",
    "lease_ttl_s",
    "move_bytes_per_s",
    "scrub_bytes_per_s",
    "data_dir",
    "store_ca",
    "store_cert",
    "store_key",
];

/// Returns the text with the names of flags in place of those of fields.
pub fn with_flag_names(text: &str) -> String {
    let text = text.replace("geometry: geometry", "geometry").replace("geometry.", "");
    let text = text.replace("geometry: invalid view: ", "");
    let mut text = text.replace("lease_ms", "--lease");
    for field in FIELDS {
        text = text.replace(field, &format!("--{}", field.replace('_', "-")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags() {
        for (text, flags) in [
            ("geometry.region_bytes is 5", "--region-bytes is 5"),
            ("lease_ms is 3", "--lease is 3"),
            ("store_cert belongs to store_ca", "--store-cert belongs to --store-ca"),
            ("lower index_replicas to 2 memory nodes", "lower --index-replicas to 2 memory nodes"),
        ] {
            assert_eq!(with_flag_names(text), flags);
        }
    }
}
