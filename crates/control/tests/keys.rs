//! Who has a key of the secret is heard, for what that is; whoever has not is told so.

use fusee_auth::{Keys, Secret, Who};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{
    Caller, MasterClient, MasterService, NodeClient, NodeService, RpcError, Runtime, Server, bind,
    serve,
};
use fusee_core::verbs::{ClientId, ClusterId};

fn runtime(keys: Option<Keys>) -> Runtime {
    Runtime::with_keys("test-keys", keys).unwrap()
}

/// A memory node that does whatever it is asked.
fn node(runtime: &Runtime) -> (Server, String) {
    let handler = |_: Caller, _| async { NodeReply::Done };
    let server = serve::<NodeService, _, _>(runtime, bind("127.0.0.1:0").unwrap(), handler);
    let server = server.unwrap();
    let addr = server.addr().unwrap().to_string();
    (server, addr)
}

fn asks(addr: &str, keys: Option<Keys>, request: NodeRequest) -> Result<NodeReply, RpcError> {
    let runtime = runtime(keys);
    NodeClient::new(&runtime, addr).call_blocking(request)
}

fn fence() -> NodeRequest {
    NodeRequest::Fence { clients: vec![ClientId(1)] }
}

#[track_caller]
fn is_refused(answer: Result<NodeReply, RpcError>, says: &str) {
    match answer {
        Err(error @ RpcError::Keys { .. }) => {
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.may_take_effect());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_kind_of_peer_may_ask_for_its_own() {
    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(Who::Server)));
    let (_server, addr) = node(&serving);
    let keys = |who| Some(secret.keys(who));
    for who in Who::ALL {
        assert_eq!(asks(&addr, keys(who), NodeRequest::Usage), Ok(NodeReply::Done), "{who}");
    }
    assert_eq!(asks(&addr, keys(Who::Server), fence()), Ok(NodeReply::Done));
    is_refused(asks(&addr, keys(Who::Client), fence()), "`server`");
    is_refused(asks(&addr, keys(Who::Admin), fence()), "`server`");

    let handler = |caller: Caller, _| async move {
        assert!(caller.who.is_some());
        MasterReply::Done
    };
    let listener = bind("127.0.0.1:0").unwrap();
    let master = serve::<MasterService, _, _>(&serving, listener, handler).unwrap();
    let addr = master.addr().unwrap().to_string();
    let form = MasterRequest::Form { cluster: ClusterId::from_word(1).unwrap() };
    for (who, may) in [(Who::Client, false), (Who::Server, false), (Who::Admin, true)] {
        let runtime = runtime(keys(who));
        let answer = MasterClient::new(&runtime, &addr[..]).call_blocking(form.clone());
        assert_eq!(answer.is_ok(), may, "{who}: {answer:?}");
        assert!(may || matches!(answer, Err(RpcError::Keys { .. })), "{who}");
    }
}

#[test]
fn strangers_and_other_clusters_are_told() {
    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(Who::Server)));
    let (_server, addr) = node(&serving);
    is_refused(asks(&addr, None, NodeRequest::Usage), "--secret");
    let other = Secret::random().unwrap().keys(Who::Admin);
    is_refused(asks(&addr, Some(other), NodeRequest::Usage), "another secret");
    assert_eq!(
        asks(&addr, Some(secret.keys(Who::Client)), NodeRequest::Usage),
        Ok(NodeReply::Done)
    );
}

#[test]
fn who_has_a_key_believes_nobody_without() {
    let without = runtime(None);
    let (_server, addr) = node(&without);
    assert_eq!(asks(&addr, None, fence()), Ok(NodeReply::Done), "nobody has to say who it is");
    let keys = Secret::random().unwrap().keys(Who::Client);
    is_refused(asks(&addr, Some(keys), NodeRequest::Usage), "no secret");
}
