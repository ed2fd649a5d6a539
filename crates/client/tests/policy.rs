//! The cluster's policy for redundancy: which redundancy new values get, and what happens to pairs that cannot have
//! that redundancy.

// Promise RED-15: A named redundancy beats the pair's, which beats rules; fallbacks count.

mod common;

use std::time::{Duration, Instant};

use common::options;
use fusee_client::{
    BlockingClient, Client, EmbeddedOptions, FabricKind, Fallback, Options, Policy,
    PromotedRedundancy, Promotion, PutOptions, Redundancy, RedundancyError, RedundancyRules,
    SizeRule, Transitions, WriteError,
};

fn redundancy(text: &str) -> Redundancy {
    text.parse().unwrap()
}

/// Returns options of a put that names this redundancy.
fn named(text: &str) -> PutOptions {
    PutOptions::default().with_redundancy(redundancy(text))
}

fn rules(by_size: &[(u64, &str)]) -> RedundancyRules {
    let by_size: Vec<SizeRule> = by_size
        .iter()
        .map(|(from, text)| SizeRule { from: *from, redundancy: redundancy(text) })
        .collect();
    RedundancyRules::new(Redundancy::Replicated, &by_size).unwrap()
}

fn embedded(nodes: u16, rules: RedundancyRules) -> EmbeddedOptions {
    let policy = Policy { rules, ..Policy::default() };
    // Pools are large, because each redundancy has separate regions.
    let options = options(FabricKind::Shm).with_pool_bytes(512 << 20);
    options.with_memory_nodes(nodes).with_policy(policy)
}

fn has(client: &BlockingClient, key: &[u8]) -> String {
    client.redundancy_of(key).unwrap().unwrap().to_string()
}

/// Waits until the master's counts satisfy `is_so`. Sessions report them with their next heartbeat.
fn until(client: &BlockingClient, is_so: impl Fn(Transitions) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so(client.admin().status().unwrap().transitions) {
        assert!(Instant::now() < end, "{:?}", client.admin().status().unwrap().transitions);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_named_beats_what_the_pair_has_and_that_beats_the_rules() {
    let cluster = rules(&[(1000, "eor:2:2+1"), (4000, "ec:2+1")]);
    let client = Client::embedded(embedded(4, cluster)).unwrap().blocking();
    assert_eq!(client.admin().status().unwrap().policy.rules, cluster);
    for (key, bytes, says) in
        [(b"a", 999, "replicated"), (b"b", 1000, "eor:2:2+1"), (b"c", 4000, "ec:2+1")]
    {
        client.put(key, &vec![7; bytes]).unwrap();
        assert_eq!(has(&client, key), says);
        // The pair keeps its redundancy with values of any length that the redundancy allows.
        client.update(key, &[8; 2000]).unwrap();
        assert_eq!(has(&client, key), says);
        client.put(key, &[9; 6000]).unwrap();
        assert_eq!(has(&client, key), says);
        client.put_with(key, &[9; 6000], named("ec:3+1")).unwrap();
        assert_eq!(has(&client, key), "ec:3+1");
        client.put(key, b"short").unwrap();
        assert_eq!(has(&client, key), "replicated", "it cannot be kept");
        client.delete(key).unwrap();
        client.put(key, &vec![7; bytes]).unwrap();
        assert_eq!(has(&client, key), says, "of a key that is new rules say");
    }
}

#[test]
fn a_client_may_have_rules_of_its_own() {
    let own = Options::default().with_redundancy(rules(&[(1000, "ec:2+1")]));
    let options = embedded(3, rules(&[(1000, "eor:2:2+1")])).with_client(own);
    let client = Client::embedded(options).unwrap().blocking();
    client.put(b"key", &[7; 1000]).unwrap();
    assert_eq!(has(&client, b"key"), "ec:2+1");
}

#[test]
fn too_few_memory_nodes_are_an_error_or_a_reason_to_replicate() {
    let by_size = rules(&[(1000, "ec:4+2")]);
    let client = Client::embedded(embedded(3, by_size)).unwrap().blocking();
    let refused = |result: Result<(), WriteError>| {
        let error = result.unwrap_err();
        let is_so = matches!(
            error,
            WriteError::Redundancy(RedundancyError::TooFewNodes { members: 3, .. })
        );
        assert!(is_so, "{error}");
    };
    refused(client.put(b"key", &[7; 2000]));
    refused(client.put_with(b"key", &[7; 2000], named("ec:4+2")));
    client.put(b"key", &[7; 900]).unwrap();
    // The pair already has a redundancy that it can keep, even if the write has no hint.
    client.put(b"key", &[7; 2000]).unwrap();
    client.update(b"key", &[8; 2000]).unwrap();
    assert_eq!(has(&client, b"key"), "replicated");
    assert_eq!(client.update(b"absent", &[8; 2000]), Err(WriteError::NotFound));
    // The put names a redundancy that three memory nodes allow, so it neither fails nor falls back.
    client.put_with(b"short", &[7; 1000], named("replicated")).unwrap();
    assert_eq!(client.admin().status().unwrap().transitions.fallbacks, 0);
    drop(client);

    let client = Client::embedded(embedded(3, by_size.with_fallback(Fallback::Replicated)))
        .unwrap()
        .blocking();
    client.put(b"by rule", &[7; 2000]).unwrap();
    assert_eq!(has(&client, b"by rule"), "replicated");
    until(&client, |transitions| transitions.fallbacks == 1);
    client.put_with(b"by name", &[7; 2000], named("ec:4+2")).unwrap();
    assert_eq!(has(&client, b"by name"), "replicated");
    until(&client, |transitions| transitions.fallbacks == 2);
    // A Move has no fallback, so `set_redundancy` fails.
    let error = client.set_redundancy(b"by rule", redundancy("ec:4+2")).unwrap_err();
    assert!(
        matches!(error, WriteError::Redundancy(RedundancyError::TooFewNodes { .. })),
        "{error}"
    );
}

#[test]
fn what_is_too_short_for_the_code_of_its_rule_is_replicated_and_counted() {
    let client = Client::embedded(embedded(3, rules(&[(100, "ec:2+1")]))).unwrap().blocking();
    client.put(b"short", &[7; 500]).unwrap();
    assert_eq!(has(&client, b"short"), "replicated");
    client.put(&[b'k'; 200], &[7; 1000]).unwrap();
    assert_eq!(has(&client, &[b'k'; 200]), "replicated");
    client.put(b"long", &[7; 512]).unwrap();
    assert_eq!(has(&client, b"long"), "ec:2+1");
    until(&client, |transitions| transitions.fallbacks == 2);
    let error = client.put_with(b"named", &[7; 500], named("ec:2+1")).unwrap_err();
    assert!(
        matches!(error, WriteError::Redundancy(RedundancyError::ValueTooSmall { .. })),
        "{error}"
    );
}

#[test]
fn what_has_been_ec_oriented_is_promoted_to_what_it_was() {
    let promotion = Promotion {
        after_reads: 2,
        window_ms: 60_000,
        to: PromotedRedundancy::Oriented,
        bytes_per_s: 1 << 40,
    };
    let policy = Policy { promotion: Some(promotion), ..Policy::default() };
    let client = Client::embedded(embedded(5, RedundancyRules::default()).with_policy(policy));
    let client = client.unwrap().blocking();
    let value = [7; 4000];
    for oriented in ["eor:2:3+2", "eor:3:3+2"] {
        let key = oriented.as_bytes();
        client.put_with(key, &value, named(oriented)).unwrap();
        client.set_redundancy(key, redundancy("ec:3+2")).unwrap();
        assert_eq!(has(&client, key), "ec:3+2");
        let end = Instant::now() + Duration::from_secs(10);
        while has(&client, key) != oriented {
            assert_eq!(client.get(key).unwrap().as_deref(), Some(&value[..]));
            assert!(Instant::now() < end, "{oriented} has become {}", has(&client, key));
        }
    }
}
