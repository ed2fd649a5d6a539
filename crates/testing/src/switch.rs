//! Processes of `fusee switch`, for tests.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use crate::{UpCluster, signal, wait};

/// A running switch of a cluster. It prints a report when it ends.
#[derive(Debug)]
pub struct SwitchUnderTest {
    /// The process of the switch.
    pub child: Child,
    /// The host and port at which the switch listens.
    pub address: String,
    out: BufReader<ChildStdout>,
}

impl SwitchUnderTest {
    /// Starts a switch of this cluster that listens at this address.
    pub fn start(up: &UpCluster, listen: &str) -> SwitchUnderTest {
        let mut command = up.command(&["switch", "--announce", "--json", "--listen", listen]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let announced: Value = serde_json::from_str(&line).expect("it announces its address");
        let address = announced["switch"].as_str().unwrap().to_string();
        SwitchUnderTest { child, address, out }
    }

    /// Ends the switch. Returns its report.
    pub fn stop(mut self) -> Value {
        signal("TERM", self.child.id());
        assert_eq!(wait(&mut self.child).code(), Some(0));
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).expect("a report")
    }
}

impl Drop for SwitchUnderTest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
