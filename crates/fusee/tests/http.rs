//! `--http`: metrics, health and status page of servers.

// Promise API-20: Any HTTP client gets metrics, health and status, bounded; nothing else.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::http::{get, json, request};
use crate::common::{UpCluster, eventually, finish, finish_with, fusee, signal};

pub fn page_of(up: &UpCluster) -> SocketAddr {
    up.report["master"]["http"].as_str().unwrap().parse().unwrap()
}

/// Returns the value of a metric's sample.
#[track_caller]
fn value(metrics: &str, sample: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample} in:\n{metrics}")).parse().unwrap()
}

/// Executes some puts in one session, and returns when the session has reported the puts to the master.
pub fn load(up: &UpCluster, writes: usize) {
    let lines: String = (0..writes).map(|n| format!("put key{} value{n}\n", n % 100)).collect();
    finish_with(&mut up.command(&["shell"]), lines.as_bytes()).expect_code(0);
}

/// Lets Prometheus' own tool check a page, or files.
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    if command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("FUSEE_PROMTOOL_REQUIRED").is_none(), "no promtool");
        // `println` would not show this, because the test harness captures its output.
        let _told = Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED: no promtool to check metrics and rules with\n"),
        );
        return;
    }
    let output = finish_with(Command::new("promtool").args(arguments), input.as_bytes());
    assert_eq!((output.code, &*output.stderr), (Some(0), ""), "{}", output.text());
}

#[test]
fn a_master_shows_its_cluster() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let at = page_of(&up);
    assert_eq!(get(at, "/healthz"), "ok\n");
    assert_eq!(get(at, "/readyz"), "ok\n");
    let page = get(at, "/");
    assert!(page.contains("<title>FUSEE</title>") && page.contains("page.js"), "{page}");
    let status = json(at, "/status.json");
    assert_eq!(status, {
        let mut same = up.run(&["status", "--json"]).expect_code(0).json();
        // The values of these fields change all the time, so they are not compared.
        for field in ["view_age_ms", "epoch", "scrub", "work", "memory_nodes", "sessions_opened"] {
            same[field] = status[field].clone();
        }
        same
    });
    eventually("operations are told", || {
        load(&up, 500);
        value(&get(at, "/metrics"), "fusee_operations_total{kind=\"upsert\"}") > 0.0
    });
    counters_show_what_they_are_named_after(at);
    let metrics = get(at, "/metrics");
    for (sample, expected) in [
        ("fusee_master_leads", 1.0),
        ("fusee_cluster_formed", 1.0),
        ("fusee_cluster_ready", 1.0),
        ("fusee_cluster_problem", 0.0),
        ("fusee_missing_replicas", 0.0),
        ("fusee_memory_nodes{state=\"in_view\"}", 3.0),
        ("fusee_memory_node_up{node=\"mn2\"}", 1.0),
        ("fusee_memory_node_pool_bytes{node=\"mn0\"}", f64::from(512 << 20)),
        ("fusee_lease_seconds", 1.0),
    ] {
        assert_eq!(value(&metrics, sample), expected, "{sample}");
    }
    assert!(value(&metrics, "fusee_region_bytes{redundancy=\"replicated\"}") > 0.0);
    assert!(value(&metrics, "fusee_phases_total{kind=\"upsert\"}") > 0.0);
    // Each session sends one `Open`, and reports its work until it ends.
    let answers = |part: &str| value(&metrics, &format!("fusee_master_request_seconds_{part}"));
    let opened = answers("count{request=\"Open\"}");
    assert!(opened >= 1.0 && answers("sum{request=\"Open\"}") > 0.0);
    assert_eq!(answers("bucket{request=\"Open\",le=\"+Inf\"}"), opened);
    assert!(answers("bucket{request=\"Open\",le=\"5\"}") >= 1.0);
    promtool(&["check", "metrics"], &metrics);
    let memory = get(at, "/metrics/memory");
    assert!(value(&memory, "fusee_pairs{redundancy=\"replicated\"}") >= 100.0);
    assert!(value(&memory, "fusee_class_blocks{object_bytes=\"64\"}") >= 1.0);
    promtool(&["check", "metrics"], &memory);
    assert!(!json(at, "/history.json")["at_ms"].as_array().unwrap().is_empty());
    assert!(!json(at, "/events.json").as_array().unwrap().is_empty());
    signal("KILL", up.pids()[3]);
    eventually("a loss shows", || {
        let metrics = get(at, "/metrics");
        value(&metrics, "fusee_missing_replicas") > 0.0
            && value(&metrics, "fusee_memory_nodes{state=\"lost\"}") == 1.0
    });
    promtool(&["check", "metrics"], &get(at, "/metrics"));
}

/// Asserts that each counter lies between its values in the status before and in the status after it.
fn counters_show_what_they_are_named_after(at: SocketAddr) {
    let [before, metrics, after] =
        ["/status.json", "/metrics", "/status.json"].map(|page| get(at, page));
    let [before, after] = [before, after].map(|status| {
        serde_json::from_str::<serde_json::Value>(&status).expect("it is JSON")["work"].clone()
    });
    for (sample, field) in [
        ("fusee_verbs_total", "verbs"),
        ("fusee_verb_bytes_total", "bytes"),
        ("fusee_conflicts_total", "conflicts"),
        ("fusee_cache_accesses_total", "cache_accesses"),
        ("fusee_cache_hints_total", "hints"),
        ("fusee_cache_wrong_hints_total", "wrong_hints"),
    ] {
        let [least, most] = [&before, &after].map(|work| work[field].as_f64().unwrap());
        let shown = value(&metrics, sample);
        assert!((least..=most).contains(&shown), "{sample}: {shown}, {least} to {most}");
    }
    let verbs = before["verbs"].as_f64().unwrap();
    let bytes = before["bytes"].as_f64().unwrap();
    assert!(bytes >= 8.0 * verbs, "no verb moves less than a word: {before}");
}

#[test]
fn a_memory_node_shows_itself() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let mut node =
        fusee(&["memory-node", "--pool", "64MiB", "--http", "127.0.0.1:0", "--announce"]);
    node.args(["--stop-with-stdin", "--master", &up.master]);
    let mut node =
        node.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let stdout = node.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let announced: serde_json::Value = serde_json::from_str(&line).unwrap();
    let at: SocketAddr = announced["http"].as_str().unwrap().parse().unwrap();
    assert_eq!(get(at, "/healthz"), "ok\n");
    eventually("it has joined", || request(at, "GET", "/readyz", "").unwrap().status == 200);
    let metrics = get(at, "/metrics");
    assert_eq!(value(&metrics, "fusee_node_joined{node=\"mn3\"}"), 1.0);
    assert_eq!(value(&metrics, "fusee_node_pool_bytes{node=\"mn3\"}"), f64::from(64 << 20));
    // The request is counted when its handler has ended, which can be after the node has joined.
    let asked = "fusee_node_request_seconds_count{request=\"Describe\"}";
    eventually("the master's question is counted", || get(at, "/metrics").contains(asked));
    promtool(&["check", "metrics"], &metrics);
    assert_eq!(json(at, "/status.json")["node"], "mn3");
    assert_eq!(request(at, "GET", "/events.json", "").unwrap().status, 404);
    drop(node.stdin.take());
    crate::common::wait(&mut node);
}

#[test]
fn strangers_may_look_and_nothing_else() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let at = page_of(&up);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(request(at, method, "/status.json", "{}").unwrap().status, 405, "{method}");
    }
    for path in ["/../etc/passwd", "/status.json/x", "//metrics", "/%2e%2e/page.js", "/page"] {
        assert_eq!(request(at, "GET", path, "").unwrap().status, 404, "{path}");
    }
    let answer = request(at, "GET", "/", "").unwrap();
    for header in ["content-security-policy: default-src 'none'", "nosniff", "no-store"] {
        assert!(answer.head.contains(header), "{header}: {}", answer.head);
    }
    // The status must not contain a memory node's identity, with which a stranger could read and write the node's
    // memory.
    let status = get(at, "/status.json");
    assert!(!status.contains("identity"), "{status}");
    // The connections send bytes that are no request, a head that is too long, and requests that never end.
    let mut garbage = TcpStream::connect(at).unwrap();
    garbage.write_all(&[0x16, 3, 1, 0, 200, 1, 0]).unwrap();
    let mut long = TcpStream::connect(at).unwrap();
    let _refused =
        long.write_all(format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(1 << 20)).as_bytes());
    let begun = Instant::now();
    let slow: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            let _sent_away = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            stream
        })
        .collect();
    eventually("the slow ones are cut off", || {
        request(at, "GET", "/healthz", "").is_ok_and(|answer| answer.status == 200)
    });
    assert!(begun.elapsed() < Duration::from_secs(20));
    drop(slow);
    up.run(&["put", "k", "v"]).expect_code(0);
}

/// As under DNS rebinding, another site's name resolves to this server, and a browser sends requests for that site.
// Promise SEC-19
#[test]
fn a_request_for_another_host_is_not_answered() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "1"]);
    let at = page_of(&up);
    let asked = |host: &str, path: &str| {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        answer
    };
    for path in ["/status.json", "/metrics", "/events.json", "/healthz", "/"] {
        for host in ["evil.example", "evil.example:7480", "127.0.0.1.evil.example"] {
            let answer = asked(&format!("Host: {host}\r\n"), path);
            assert!(answer.starts_with("HTTP/1.1 421 "), "{host}{path}: {answer}");
            assert!(!answer.contains("127.0.0.1:"), "{host}{path}: {answer}");
        }
        for host in ["localhost", "fusee-master:7480", "[::1]", "10.0.0.1:80"] {
            let answer = asked(&format!("Host: {host}\r\n"), path);
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}{path}: {answer}");
        }
    }
    let two = asked("Host: 127.0.0.1\r\nHost: evil.example\r\n", "/metrics");
    assert!(!two.starts_with("HTTP/1.1 200 "), "{two}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let up = UpCluster::start(&["--pool", "512MiB", "--memory-nodes", "1"]);
    let at = page_of(&up).to_string();
    let dir = up.scratch.path().join("other");
    let mut master = fusee(&["master", "--listen", "127.0.0.1:0", "--http", &at]);
    finish(master.arg("--data-dir").arg(&dir))
        .expect_error(1, &format!("cannot listen at {at} (--http)"));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn rules_for_alarms_are_rules_and_fire() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring");
    let file = |name: &str| root.join(name).to_str().unwrap().to_owned();
    promtool(&["check", "rules", &file("alerts.yml")], "");
    promtool(&["test", "rules", &file("alerts-test.yml")], "");
}

#[test]
fn dashboards_and_rules_ask_for_metrics_that_there_are() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let metrics = get(page_of(&up), "/metrics");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring");
    let mut asked = 0;
    for name in ["alerts.yml", "grafana.json"] {
        let text = std::fs::read_to_string(root.join(name)).unwrap();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_part(c));
        for word in
            words.filter(|word| word.starts_with("fusee_") && !word.starts_with("fusee_node"))
        {
            asked += 1;
            // Queries use the names of a histogram's buckets.
            let word = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(metrics.contains(&format!("# TYPE {word} ")), "{name} asks for {word}");
        }
    }
    assert!(asked > 20, "{asked}");
    let grafana = std::fs::read_to_string(root.join("grafana.json")).unwrap();
    let _json: serde_json::Value = serde_json::from_str(&grafana).unwrap();
}
