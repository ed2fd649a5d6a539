//! A master and memory nodes as child processes that form a cluster.
//!
//! [`start`] starts the processes. [`Servers`] also owns them, for programs whose cluster ends with them. Each server
//! ends at the end of its standard input, so it does not outlive its parent, however the parent dies.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::secret;
use fusee_client::View;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::MasterClient;
use fusee_master::random_cluster;
use futures_util::future::select_all;

use crate::announcement;
use crate::child::{self, Child};
use crate::directory::ClusterDirectory;
use crate::plan::LaunchPlan;
use crate::program::ServerProgram;

/// Largest time until the cluster has formed.
const FORM_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two requests to the master for the view, which exists when the cluster has formed.
const FORM_POLL: Duration = Duration::from_millis(20);

/// A cluster that clients can join.
pub struct LaunchedCluster {
    /// Host and port of the master.
    pub master: String,
    /// The address of the master's status page, if it has one.
    pub http: Option<SocketAddr>,
    /// The memory nodes, in the order of their names.
    pub nodes: Vec<announcement::NodeAnnouncement>,
}

/// Starts the servers. On success `children` are the master and the memory nodes, in the order of their names. On an
/// error `children` are the servers that were started, which the caller has to stop.
pub async fn start(
    program: &ServerProgram,
    plan: &LaunchPlan,
    directory: &ClusterDirectory,
    children: &mut Vec<Child>,
) -> Result<LaunchedCluster, Failure> {
    let mut master = program.spawn("master", &plan.master_arguments(directory))?;
    let announced = master.announcement().await;
    children.push(master);
    let announcement::MasterAnnouncement { control: address, http } =
        announced.and_then(|line| announcement::parse(&line))?;
    form(&address).await?;
    for number in 0..plan.memory_nodes {
        let arguments = plan.node_arguments(directory, &address);
        children.push(program.spawn(&format!("memory node {number}"), &arguments)?);
    }
    let mut nodes = Vec::new();
    for child in &mut children[1..] {
        let announced = child.announcement().await;
        nodes.push(announced.and_then(|line| announcement::parse(&line))?);
    }
    let view = tokio::select! {
        view = wait_until_formed(&address) => view?,
        (name, status) = first_exit(children) => {
            return Err(Failure::operation(format!("{name} ended with {status}; see above")));
        }
    };
    let nodes = name_nodes(children, nodes, &view);
    Ok(LaunchedCluster { master: address, http, nodes })
}

/// Waits until any child has ended. Returns that child's name and its exit status in words.
pub async fn first_exit(children: &mut [Child]) -> (String, String) {
    let exits = children.iter_mut().map(|child| Box::pin(child.wait_for_exit()));
    select_all(exits).await.0
}

/// Gives the memory nodes the names that they have in the cluster, and sorts them by name. The names follow from the
/// order in which the nodes joined.
fn name_nodes(
    children: &mut Vec<Child>,
    nodes: Vec<announcement::NodeAnnouncement>,
    view: &View,
) -> Vec<announcement::NodeAnnouncement> {
    let mut named: Vec<_> = children
        .drain(1..)
        .zip(nodes)
        .map(|(child, node)| {
            let member = view.members.iter().find(|member| member.control == node.control);
            (member.map(|member| member.node), child, node)
        })
        .collect();
    named.sort_by_key(|(name, ..)| *name);
    let mut nodes = Vec::new();
    for (name, mut child, node) in named {
        if let Some(name) = name {
            child.rename(name.to_string());
        }
        children.push(child);
        nodes.push(node);
    }
    nodes
}

/// Asks the master to form a cluster. The master's store is in a new directory, so it is empty.
async fn form(address: &str) -> Result<(), Failure> {
    let cannot = |what: String| Failure::operation(format!("the cluster cannot be formed: {what}"));
    let runtime = secret::runtime("fusee-launch")?;
    let master = MasterClient::new(&runtime, address);
    match master.call(MasterRequest::Form { cluster: random_cluster() }).await {
        Ok(MasterReply::Done) => Ok(()),
        Ok(MasterReply::Refused { reason }) => Err(cannot(reason)),
        Ok(other) => Err(cannot(format!("the master answered with something else: {other:?}"))),
        Err(error) => Err(cannot(error.to_string())),
    }
}

/// Waits until clients can join the cluster, and returns the view.
async fn wait_until_formed(address: &str) -> Result<View, Failure> {
    let cannot = |what: String| Failure::operation(format!("the cluster cannot be formed: {what}"));
    let runtime = secret::runtime("fusee-launch")?;
    let master = MasterClient::new(&runtime, address);
    let start = Instant::now();
    loop {
        match master.call(MasterRequest::GetView { newer_than: 0 }).await {
            Ok(MasterReply::View(Some(view))) => return Ok(view),
            Ok(MasterReply::Refused { reason }) => return Err(cannot(reason)),
            Ok(MasterReply::NotReady { joined, expected }) if start.elapsed() > FORM_TIMEOUT => {
                let what = format!("{joined} of {expected} memory nodes joined in time");
                return Err(cannot(what));
            }
            Ok(_) => {}
            Err(error) => return Err(cannot(error.to_string())),
        }
        tokio::time::sleep(FORM_POLL).await;
    }
}

/// A cluster of child processes. Dropping the value stops them.
pub struct Servers {
    program: ServerProgram,
    plan: LaunchPlan,
    runtime: tokio::runtime::Runtime,
    children: Vec<Child>,
    master: String,
    /// The directory is removed after the children have ended, because fields are dropped after `drop` has run.
    directory: ClusterDirectory,
}

impl Servers {
    /// Starts the program in this process's directory as servers, and waits until clients can join the cluster.
    pub fn start(plan: &LaunchPlan) -> Result<Servers, Failure> {
        let program = ServerProgram::beside()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Failure::operation(format!("cannot start: {error}")))?;
        let directory = ClusterDirectory::create()?;
        let mut servers = Servers {
            program,
            plan: plan.clone(),
            runtime,
            children: Vec::new(),
            master: String::new(),
            directory,
        };
        let Servers { program, runtime, children, directory, .. } = &mut servers;
        servers.master = runtime.block_on(start(program, plan, directory, children))?.master;
        Ok(servers)
    }

    /// Returns host and port of the master.
    pub fn master(&self) -> &str {
        &self.master
    }

    /// Starts one more memory node, and waits until its ports are open.
    pub fn add_memory_node(&mut self) -> Result<(), Failure> {
        let arguments = self.plan.node_arguments(&self.directory, &self.master);
        let name = format!("memory node {}", self.children.len() - 1);
        // Children must be spawned within the async runtime.
        let added = self.runtime.block_on(async {
            let mut child = self.program.spawn(&name, &arguments)?;
            let announced = child.announcement().await;
            announced.map(|_| child)
        });
        self.children.push(added?);
        Ok(())
    }

    /// Kills the memory node with this name (SIGKILL).
    pub fn kill(&mut self, name: &str) -> Result<(), Failure> {
        let child = self.children.iter_mut().find(|child| child.name() == name);
        child.ok_or_else(|| Failure::usage(format!("no server is called {name}")))?.kill()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.runtime.block_on(child::stop_all(std::mem::take(&mut self.children)));
    }
}
