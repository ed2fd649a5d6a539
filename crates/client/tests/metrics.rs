//! Tests of a client's metrics.

// Promise API-18: Operations of all sessions are counted; a feature adds spans.

use fusee_client::{Client, EmbeddedOptions, OpKind};

#[test]
fn sessions_are_counted_also_when_they_have_ended() {
    let client = Client::embedded(EmbeddedOptions::default()).unwrap().blocking();
    assert_eq!(client.metrics().stats.kind(OpKind::Insert).operations, 0);
    client.insert(b"key", b"value").unwrap();
    let other = client.clone();
    std::thread::spawn(move || {
        for _ in 0..10 {
            other.get(b"key").unwrap();
        }
        assert_eq!(other.metrics().sessions, 2);
    })
    .join()
    .unwrap();
    let metrics = client.metrics();
    assert_eq!(metrics.sessions, 1);
    assert_eq!(metrics.stats.kind(OpKind::Insert).operations, 1);
    assert_eq!(metrics.stats.kind(OpKind::Search).operations, 10);
    assert!(metrics.cache.accesses >= 10 && metrics.cache.hints >= 9, "{:?}", metrics.cache);
    let mut page = fusee_client::prometheus::Metrics::default();
    metrics.write(&mut page);
    let page = page.into_text();
    assert!(page.contains("fusee_client_operations_total{kind=\"search\"} 10\n"), "{page}");
    // The master gets the counts, too: those of ended sessions at once, those of open sessions with a heartbeat.
    assert!(client.admin().status().unwrap().work.operations[OpKind::Search as usize] >= 10);
}
