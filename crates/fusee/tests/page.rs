//! The status page of a master, in a real browser: headless Chromium, controlled by WebDriver.
//!
//! `FUSEE_SCREENSHOTS=DIR` saves pictures of the page. `tests/page/screenshots` makes the pictures of the
//! documentation.

// Promise API-21: The page shows a cluster at rest, loaded, and losing a node.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::http::request;
use crate::common::{Scratch, UpCluster, eventually, signal};
use crate::http::{load, page_of};

/// A browser with one window.
struct Browser {
    driver: Child,
    at: SocketAddr,
    session: String,
    _profile: Scratch,
}

impl Browser {
    /// Starts a browser; `None` if none is installed.
    fn start() -> Option<Browser> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={}", free.port())).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(driver) = driver.spawn() else {
            assert!(std::env::var_os("FUSEE_BROWSER_REQUIRED").is_none(), "no chromedriver");
            // `println` would not show this, because the test harness captures its output.
            let _told = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: no chromedriver, so nobody looks at the page\n"),
            );
            return None;
        };
        let profile = Scratch::new();
        let mut browser = Browser { driver, at: free, session: String::new(), _profile: profile };
        eventually("the driver is there", || {
            request(free, "GET", "/status", "").is_ok_and(|answer| answer.status == 200)
        });
        let directory = format!("--user-data-dir={}", browser._profile.path().display());
        let arguments = [
            "--headless=new",
            // Chromium needs this when root runs the tests, as in containers.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1240,1000",
            &directory,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = browser.ask("POST", "/session", &wanted);
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        Some(browser)
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let answer = request(self.at, method, &path, &body).unwrap();
        let mut value: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer.status, 200, "{path}: {value}");
        value["value"].take()
    }

    fn find(&self, selector: &str) -> String {
        let by = json!({"using": "css selector", "value": selector});
        let found = self.ask("POST", "/element", &by);
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        format!("/element/{}", id.as_str().unwrap())
    }

    /// Returns the visible text of an element. A single script reads it, because the page is redrawn every second.
    fn text(&self, selector: &str) -> String {
        let text = self.run(&format!(
            "const found = document.querySelector('{selector}'); \
             return found?.checkVisibility() ? found.innerText : ''"
        ));
        text.as_str().unwrap().to_owned()
    }

    fn click(&self, selector: &str) {
        self.ask("POST", &format!("{}/click", self.find(selector)), &json!({}));
    }

    /// Runs a script in the page, and returns its result.
    fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Saves a picture of the page if `FUSEE_SCREENSHOTS` is set.
    fn keep(&self, name: &str) {
        let Some(directory) = std::env::var_os("FUSEE_SCREENSHOTS") else { return };
        let picture = self.ask("GET", "/screenshot", &Value::Null);
        let mut decode = Command::new("base64");
        decode.arg("-d").stdin(Stdio::piped());
        let path = std::path::Path::new(&directory).join(format!("{name}.png"));
        let mut child = decode.stdout(std::fs::File::create(path).unwrap()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, picture.as_str().unwrap().as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }

    /// Returns the browser's complaints: errors of the script, and content that the page's security policy has refused.
    fn complaints(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({"type": "browser"}));
        log.as_array().unwrap().iter().map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ended = request(self.at, "DELETE", &self.session, "");
        }
        let _ended = self.driver.kill();
        let _ended = self.driver.wait();
    }
}

/// Asserts that the charts show values at the pointer, that times are whole seconds, and that reads are below writes.
fn its_charts_can_be_read(browser: &Browser) {
    let told = "const chart = document.querySelector('#throughput'), box = chart.getBoundingClientRect(); \
         chart.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right - 12, clientY: box.top + 40})); \
         return chart.querySelector('.told')?.textContent ?? ''";
    let told = browser.run(told);
    let told = told.as_str().unwrap();
    assert!(told.contains("reads ") && told.contains("writes "), "{told}");
    let all =
        "return [...document.querySelectorAll('.chart text.time')].map(text => text.textContent)";
    let times = browser.run(all);
    let times: Vec<&str> =
        times.as_array().unwrap().iter().map(|time| time.as_str().unwrap()).collect();
    assert!(times.len() >= 6 && times.contains(&"now"), "{times:?}");
    let is_whole =
        |time: &&str| **time == *"now" || time.trim_matches(['−', ' ', 's']).parse::<u32>().is_ok();
    assert!(times.iter().all(is_whole), "{times:?}");
    let width = |line: &str| {
        let of = format!(
            "return parseFloat(getComputedStyle(document.querySelector('#throughput path.{line}')).strokeWidth)"
        );
        browser.run(&of).as_f64().unwrap()
    };
    assert!(width("reads") > width("writes"), "reads show on both sides of writes");
    assert!(browser.text("#footer").contains(env!("CARGO_PKG_VERSION")));
}

/// Each tab has an address of its own. On a narrow screen only tables scroll sideways.
#[test]
fn a_tab_is_opened_by_its_address_on_a_narrow_screen() {
    let Some(browser) = Browser::start() else { return };
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let page = format!("http://{}/", page_of(&up));
    browser.ask("POST", "/window/rect", &json!({"width": 500, "height": 900}));
    for (name, shows) in
        [("events", "joined from"), ("repairs", "missing replicas"), ("cluster", "mn2")]
    {
        browser.ask("POST", "/url", &json!({"url": format!("{page}#{name}")}));
        eventually("the tab shows", || browser.text(&format!("#{name}")).contains(shows));
        let sideways =
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(browser.run(sideways), 0, "{name} is too wide");
    }
    browser.keep("narrow");
    signal("KILL", up.pids()[1]);
    eventually("a replica that lacks shows", || {
        browser.text("#facts").contains("of the index 2 of 3")
    });
    let text = up.run(&["status"]).text();
    assert!(text.contains("2 of 3 index replicas"), "{text}");
}

#[test]
fn somebody_looks_at_a_cluster_that_loses_a_node() {
    let Some(browser) = Browser::start() else { return };
    let up = UpCluster::start(&["--memory-nodes", "4", "--pool", "1GiB"]);
    browser.ask("POST", "/url", &json!({"url": format!("http://{}/", page_of(&up))}));
    eventually("the page shows a cluster", || browser.text("#badge") == "whole");
    let rows = || browser.run("return document.querySelectorAll('#nodes tr').length");
    assert_eq!(rows(), 4);
    assert!(browser.text("#summary").contains("4 memory nodes"), "{}", browser.text("#summary"));
    browser.keep("idle");

    load(&up, 3_000);
    browser.click("#tab-operations");
    assert_eq!(browser.run("return location.hash"), "#operations");
    assert!(browser.text("#operations").contains("Phases per operation"));
    eventually("operations are counted", || browser.text("#kinds").contains("upsert"));
    assert_eq!(browser.text("#cluster"), "", "it is hidden");
    browser.click("#tab-cluster");
    eventually("they are drawn", || {
        let drawn = browser.run(
            "return document.querySelector('#throughput path.writes').getAttribute('d').length",
        );
        drawn.as_u64().unwrap() > 20
    });
    up.run(&["put", "key", "value", "--fabric", "tcp"]).expect_code(0);
    eventually("what a memory node serves shows", || {
        browser.text("#nodes tr:nth-child(1)").contains(" requests, ")
    });
    up.run(&["delete", "key"]).expect_code(0);
    browser.click("#survey");
    eventually("keys are counted", || browser.text("#surveyed").contains("100 keys"));
    let uses = browser.text("#uses");
    assert!(uses.contains("free blocks") && uses.contains("pairs"), "{uses}");
    browser.keep("load");
    its_charts_can_be_read(&browser);

    signal("KILL", up.pids()[2]);
    eventually("the loss shows", || browser.text("#nodes tr:nth-child(2)").contains("lost"));
    browser.keep("lost");
    browser.click("#tab-repairs");
    eventually("others hold what it held", || {
        let badge = browser.text("#badge");
        badge == "whole" && browser.text("#changes").contains("mn1")
    });
    browser.keep("repairs");

    browser.click("#tab-events");
    eventually("the loss is told", || browser.text("#log").contains("mn1 is lost"));
    assert!(browser.text("#log").contains("joined from"));
    browser.click("#warnings");
    assert!(browser.text("#log").contains("mn1 is lost"));
    assert!(!browser.text("#log").contains("joined from"));
    browser.click("#warnings");
    browser.click("#topic");
    browser.click("#topic option[value=loss]");
    assert!(!browser.text("#log").contains("joined from"));
    browser.keep("events");
    assert_eq!(browser.complaints(), Vec::<String>::new());

    signal("KILL", up.pids()[0]);
    eventually("nobody answers", || browser.text("#badge") == "no answer");
}
