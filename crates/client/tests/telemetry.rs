//! Traces and latencies of operations with the feature `telemetry`, as OpenTelemetry receives them.

// Promise API-18

use fusee_client::{BatchWrite, Client, EmbeddedOptions, OpKind};
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceContextExt as _, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

#[test]
fn operations_are_spans_of_their_callers() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry().with(layer);
    // The subscriber is set globally, because async calls run on the client's driver thread.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let client = Client::embedded(EmbeddedOptions::default()).unwrap().blocking();
    let request = tracing::info_span!("request").entered();
    let caller = request.context().span().span_context().span_id();
    assert_ne!(caller, SpanId::INVALID);
    client.put(b"key", b"hushed").unwrap();
    client.get(b"key").unwrap();
    client.insert(b"key", b"other").unwrap_err();
    let pending = client.client().get(b"key");
    pollster(pending).unwrap();
    client.get(b"").unwrap_err();
    client.write_many(&[BatchWrite::put("a", "1"), BatchWrite::put("b", "2")]);
    drop(request);
    let spans = exporter.get_finished_spans().unwrap();
    let operations: Vec<&SpanData> =
        spans.iter().filter(|span| attribute(span, "db.system.name").is_some()).collect();
    let names: Vec<&str> = operations.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["upsert", "search", "insert", "search", "search", "upsert"]);
    for span in &operations {
        assert_eq!(span.parent_span_id, caller, "{}", span.name);
        assert_eq!(span.span_kind, SpanKind::Client);
        assert_eq!(attribute(span, "db.operation.name").as_deref(), Some(&*span.name));
        assert!(!format!("{span:?}").contains("hushed"), "no values");
    }
    // For an insert, an existing key is a regular answer; an empty key is an error.
    let failed: Vec<bool> =
        operations.iter().map(|s| matches!(s.status, Status::Error { .. })).collect();
    assert_eq!(failed, [false, false, false, false, true, false]);

    let metrics = client.metrics();
    let searches = metrics.latencies.kind(OpKind::Search);
    assert_eq!(searches.count, 3);
    assert!(searches.sum > 0.0 && searches.sum < 60.0);
    assert!(searches.bounds.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
    let mut page = fusee_client::prometheus::Metrics::default();
    metrics.write(&mut page);
    let page = page.into_text();
    let count = "fusee_client_operation_seconds_count{kind=\"search\"} 3\n";
    assert!(page.contains(count), "{page}");
    assert!(
        page.contains("fusee_client_operation_seconds_bucket{kind=\"search\",le=\"+Inf\"} 3\n")
    );
}

/// Waits for a future on this thread.
fn pollster<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}
