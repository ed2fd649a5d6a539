//! Clusters with a secret. Clients with the secret or one of its keys are served. Strangers are not, whatever they try.

// Promise SEC-10

use fusee_auth::NodeKey;
use fusee_client::{Client, FabricKind, Options};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{Extent, JobRequest, MemberBars, NodeRequest};
use fusee_control::rpc::{MasterClient, NodeClient, RpcError, Runtime};
use fusee_core::verbs::{ClientId, ClusterId, MnId};

use super::common::nic;
use super::common::{Scratch, UpCluster, finish, fusee};

struct SecretFiles {
    scratch: Scratch,
}

impl SecretFiles {
    fn new() -> SecretFiles {
        let scratch = Scratch::new();
        let secret = SecretFiles { scratch };
        finish(&mut fusee(&["secret", "new", &secret.file("secret")])).expect_code(0);
        for of in ["client", "admin"] {
            let key = secret.file(of);
            let line = ["secret", "key", of, &key, "--secret", &secret.file("secret")];
            finish(&mut fusee(&line)).expect_code(0);
        }
        secret
    }

    fn file(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn up(&self) -> UpCluster {
        UpCluster::start(&["--secret", &self.file("secret"), "--fabric", "tcp"])
    }
}

#[test]
fn each_key_opens_what_it_is_for() {
    let secret = SecretFiles::new();
    let up = secret.up();
    let with = |name: &str, line: &[&str]| {
        let file = secret.file(name);
        up.run(&[line, &["--secret", &file]].concat())
    };
    for name in ["client", "admin", "secret"] {
        with(name, &["put", "key", name]).expect_code(0);
        assert_eq!(with(name, &["get", "key"]).expect_code(0).stdout, name.as_bytes());
        with(name, &["status"]).expect_code(0);
        with(name, &["count"]).expect_code(0);
    }
    with("client", &["drain", "mn0"]).expect_error(3, "`admin`");
    with("client", &["destroy", "--destroy-data"]).expect_error(3, "`admin`");
    with("client", &["form"]).expect_error(3, "`admin`");
    // The key is accepted. The request is refused for another reason.
    with("admin", &["form"]).expect_error(1, "cluster");
    with("admin", &["drain", "mn0", "--no-wait"]).expect_error(1, "mn0");

    up.run(&["get", "key"]).expect_error(3, "--secret");
    up.run(&["status"]).expect_error(3, "--secret");
    let other = SecretFiles::new();
    let line = ["get", "key", "--secret", &other.file("client")];
    up.run(&line).expect_error(3, "another secret");
    // A client with a key does not trust a cluster without a secret.
    let open = UpCluster::start(&["--fabric", "tcp"]);
    let line = ["put", "key", "mine", "--secret", &secret.file("client")];
    open.run(&line).expect_error(3, "no secret");
}

#[test]
fn strangers_get_nothing_whatever_they_ask() {
    let secret = SecretFiles::new();
    let up = secret.up();
    let runtime = Runtime::start("stranger").unwrap();
    let master = MasterClient::new(&runtime, &up.master[..]);
    let client = ClientId(1);
    for request in [
        MasterRequest::Open,
        MasterRequest::Status,
        MasterRequest::GetView { newer_than: 0 },
        MasterRequest::Drain { node: MnId(0), cancel: false },
        MasterRequest::Form { cluster: ClusterId::from_word(7).unwrap() },
        MasterRequest::Destroy {
            cluster: ClusterId::from_word(7).unwrap(),
            with_living_data: true,
        },
        MasterRequest::Abandon { client },
        MasterRequest::Unreachable { node: MnId(0) },
    ] {
        let answer = master.call_blocking(request.clone());
        assert!(matches!(answer, Err(RpcError::Keys { .. })), "{request:?}: {answer:?}");
    }
    let control = up.report["memory_nodes"][0]["control"].as_str().unwrap();
    let node = NodeClient::new(&runtime, control);
    let extent = Extent::Subtable { subtable: 0 };
    let release = JobRequest::Release { extent, view: u64::MAX };
    for request in [
        NodeRequest::Describe,
        NodeRequest::Usage,
        NodeRequest::Fence { clients: (0..1000).map(ClientId).collect() },
        NodeRequest::OfJob { repairer: client, job: u64::MAX, request: release },
        NodeRequest::StandAt { cluster: ClusterId::from_word(7).unwrap(), view: u64::MAX },
    ] {
        let answer = node.call_blocking(request.clone());
        assert!(matches!(answer, Err(RpcError::Keys { .. })), "{request:?}: {answer:?}");
    }

    // At the port of the memory, a peer without the node's key learns nothing about the node.
    let tcp = up.report["memory_nodes"][0]["tcp"].as_str().unwrap();
    for name in [0_u64, 1, u64::MAX] {
        let (_stream, _call, said) = nic::call(tcp, name);
        assert_eq!(said, [&b"FUSEtcp3"[..], &[1, 0, 0, 0], &[0; 64]].concat());
    }
    // A peer that knows the node's identity, from etcd or the network, but has no key of the secret, learns nothing
    // either.
    let file = secret.file("client");
    let keys = fusee_auth::Keyring::of_client(file.as_ref()).unwrap();
    let options = Options::default().with_keys(keys.clone()).with_fabric(FabricKind::Tcp);
    let view = Client::connect_with(&up.master, options).unwrap().blocking().view();
    let identity = view.members[0].identity;
    let tcp = view.members[0].tcp.as_deref().unwrap();
    let (_stream, _call, said) = nic::call(tcp, NodeKey::new(None, identity).name());
    assert_eq!(said, [&b"FUSEtcp3"[..], &[1, 0, 0, 0], &[0; 64]].concat());
    drop(nic::attach(tcp, &NodeKey::new(Some(&keys), identity), 3_000_000_000));
    up.run(&["put", "key", "value", "--secret", &file]).expect_code(0);
    let status = up.run(&["status", "--json", "--secret", &file]).expect_code(0).json();
    assert!(
        status["memory_nodes"].as_array().unwrap().iter().all(|node| node["reachable"] == true)
    );
}

#[test]
fn a_memory_node_of_another_secret_does_not_join() {
    let secret = SecretFiles::new();
    let up = secret.up();
    let runtime = Runtime::start("stranger").unwrap();
    let master = MasterClient::new(&runtime, &up.master[..]);
    let alive = master.call_blocking(MasterRequest::Status);
    assert!(matches!(alive, Err(RpcError::Keys { .. })), "{alive:?}");
    // A client's key does not suffice for these requests either.
    let keys = fusee_auth::Keyring::of_client(secret.file("client").as_ref()).unwrap();
    let runtime = Runtime::with_keys("client", Some(keys)).unwrap();
    let master = MasterClient::new(&runtime, &up.master[..]);
    assert!(matches!(master.call_blocking(MasterRequest::Status), Ok(MasterReply::Status(_))));
    let heard = MasterRequest::Alive { identity: 1, heard: None, bars: MemberBars::default() };
    let answer = master.call_blocking(heard);
    assert!(matches!(answer, Err(RpcError::Keys { .. })), "{answer:?}");
}

#[test]
fn files_of_secrets_are_made_once_and_kept_secret() {
    let secret = SecretFiles::new();
    let file = secret.file("secret");
    finish(&mut fusee(&["secret", "new", &file])).expect_error(1, "exists");
    let line =
        ["secret", "key", "client", &secret.file("second"), "--secret", &secret.file("admin")];
    finish(&mut fusee(&line)).expect_error(2, "the secret itself");
    finish(&mut fusee(&["secret", "key", "client", "x"])).expect_error(2, "--secret");
    for server in ["master", "memory-node"] {
        let line = [server, "--secret", &secret.file("client")];
        finish(&mut fusee(&line)).expect_error(2, "the secret itself");
        let line = [server, "--listen", "192.0.2.1:7400"];
        finish(&mut fusee(&line)).expect_error(2, "--insecure");
    }
    std::process::Command::new("chmod").args(["644", &file]).status().unwrap();
    finish(&mut fusee(&["get", "key", "--secret", &file])).expect_error(2, "other users");
}
