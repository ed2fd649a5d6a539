//! Random files of settings, for tests.

use proptest::collection::vec;
use proptest::prelude::*;
use serde::de::DeserializeOwned;

/// Returns the names that a file of these settings can contain, taken from the error about an unknown name.
pub fn names<S: DeserializeOwned>() -> Vec<String> {
    let Err(error) = toml::from_str::<S>("no-such-setting = 1") else {
        panic!("unknown names are errors")
    };
    // The error contains: expected one of `a`, `b`, ...
    let text = error.to_string();
    let (_, names) = text.split_once("expected").expect("it says what it knows");
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn value() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        (-2i64..12).prop_map(i128::from),
        (0u32..64).prop_map(|bits| 1i128 << bits),
        (0u32..64).prop_map(|bits| (1i128 << bits) - 1),
        any::<i64>().prop_map(i128::from),
        Just(1i128 << 64),
    ];
    prop_oneof![
        4 => number.prop_map(|number| number.to_string()),
        3 => ("[0-9.]{0,12}", "( |[kKmMgGtT](i?[bB])?|[a-z])?").prop_map(|(n, u)| format!("\"{n}{u}\"")),
        1 => "\"\\PC{0,12}\"",
        1 => prop_oneof![Just("true"), Just("[]"), Just("[\"tcp\"]"), Just("1e300"), Just("nan"),
            Just("\"etcd://a:1,b:2/x\""), Just("\"[fd00::1]:7400\""), Just("1979-05-27")]
            .prop_map(str::to_owned),
        1 => "\\PC{0,20}",
    ]
}

/// Returns a generator of files with some of these names, and sometimes with other content.
pub fn text(names: Vec<String>) -> impl Strategy<Value = String> {
    let name = prop_oneof![20 => proptest::sample::select(names), 1 => "[a-z-]{0,9}"];
    let line = (name, value()).prop_map(|(name, value)| format!("{name} = {value}\n"));
    prop_oneof![12 => vec(line, 0..5).prop_map(|lines| lines.concat()), 1 => "\\PC{0,60}"]
}
