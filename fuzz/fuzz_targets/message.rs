//! Feeds arbitrary bytes to the codec of the control plane: `tests/fuzz message`.
//!
//! An update of a view needs an earlier view. The earlier view is decoded from the first bytes, and the update from the
//! remaining ones.
#![no_main]

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{Stamped, parsers};
use fusee_core::view::View;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parsers::first_message(bytes);
    parsers::stream_to_master(bytes, 7);
    parsers::call_of_master(bytes);
    parsers::call_of_node(bytes);
    parsers::answer_of_master(bytes);
    parsers::answer_of_node(bytes);
    let _ = parsers::message::<Stamped<MasterRequest>>(bytes);
    let _ = parsers::message::<Stamped<NodeRequest>>(bytes);
    let _ = parsers::message::<MasterReply>(bytes);
    let _ = parsers::message::<NodeReply>(bytes);
    parsers::view_piece(bytes);
    if let Some(view) = parsers::drawn::<View>(bytes).filter(|view| view.check().is_ok()) {
        let had = parsers::written(&view).len();
        parsers::view_update(&view, bytes.get(had..).unwrap_or_default());
    }
});
