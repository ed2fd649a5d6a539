//! The report of `up`, which is printed when the cluster is ready.

use std::fmt::Write as _;
use std::net::SocketAddr;

use fusee_cli::connect::DEFAULT_MASTER;
use fusee_cli::failure::Failure;
use fusee_launch::announcement;
use fusee_launch::{Child, ClusterDirectory, LaunchedCluster};
use serde::Serialize;

/// The processes and addresses of the cluster.
#[derive(Debug, Serialize)]
pub struct UpReport {
    pid: u32,
    directory: String,
    master: UpMaster,
    memory_nodes: Vec<UpNode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<UpSwitch>,
}

#[derive(Debug, Serialize)]
struct UpMaster {
    pid: u32,
    control: String,
    http: Option<SocketAddr>,
}

#[derive(Debug, Serialize)]
struct UpSwitch {
    pid: u32,
    tcp: String,
}

#[derive(Debug, Serialize)]
struct UpNode {
    node: String,
    pid: u32,
    #[serde(flatten)]
    addresses: announcement::NodeAnnouncement,
}

impl UpReport {
    /// Creates the report. The children are the master, the memory nodes in the order of their names, and the switch if
    /// there is one.
    pub fn new(
        directory: &ClusterDirectory,
        started: LaunchedCluster,
        children: &[Child],
        switch: Option<String>,
    ) -> UpReport {
        let LaunchedCluster { master, http, nodes } = started;
        let (first, others) = children.split_first().expect("there is a master");
        let nodes = others.iter().zip(nodes).map(|(child, addresses)| UpNode {
            node: child.name().to_string(),
            pid: child.pid(),
            addresses,
        });
        let last = children.last().expect("there is a master");
        let switch = switch.map(|tcp| UpSwitch { pid: last.pid(), tcp });
        UpReport {
            pid: std::process::id(),
            directory: directory.path().display().to_string(),
            master: UpMaster { pid: first.pid(), control: master, http },
            memory_nodes: nodes.collect(),
            switch,
        }
    }

    /// Returns the report as a line of JSON, for programs.
    pub fn json(&self) -> Result<String, Failure> {
        let json = serde_json::to_string(self);
        let json = json.map_err(|error| Failure::operation(format!("no report: {error}")))?;
        Ok(json + "\n")
    }

    /// Returns the report as a table, for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<8}{:>8}  {:<22}{:<22}shared memory\n{:<8}{:>8}  {}\n",
            "role",
            "pid",
            "control",
            "tcp or verbs",
            "master",
            self.master.pid,
            self.master.control
        );
        for node in &self.memory_nodes {
            let addresses = &node.addresses;
            let _ = writeln!(
                text,
                "{:<8}{:>8}  {:<22}{:<22}{}",
                node.node,
                node.pid,
                addresses.control,
                addresses.tcp.as_deref().or(addresses.verbs.as_deref()).unwrap_or("-"),
                addresses.shm.as_deref().unwrap_or("-")
            );
        }
        if let Some(UpSwitch { pid, tcp }) = &self.switch {
            let _ = writeln!(text, "{:<8}{pid:>8}  {:<22}{tcp}", "switch", "-");
        }
        let at = &self.master.control;
        let option = if at == DEFAULT_MASTER { String::new() } else { format!(" --master {at}") };
        let way = match &self.switch {
            Some(switch) => format!("{option} --switch {}", switch.tcp),
            None => option.clone(),
        };
        let page = self.master.http.map(|at| format!("Its page is http://{at}/.\n"));
        let page = page.unwrap_or_default();
        let _ = write!(
            text,
            "\nThe cluster is ready. In another terminal:\n\
             \x20 fusee put{way} greeting hello\n\
             \x20 fusee get{way} greeting\n\
             \x20 fusee status{option}\n\
             \x20 fusee shell{way}\n\
             {page}Ctrl-C here stops everything and leaves nothing behind.\n"
        );
        text
    }
}
