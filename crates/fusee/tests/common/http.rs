//! A minimal HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer to an HTTP request.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request and waits for the answer.
pub fn request(
    at: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head)? > 2 {}
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no HTTP: {head}")))?;
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
    let mut body = Vec::new();
    match length.and_then(|length| length.trim().parse().ok()) {
        Some(length) => reader.take(length).read_to_end(&mut body)?,
        None => reader.read_to_end(&mut body)?,
    };
    Ok(HttpAnswer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
}

/// Returns the body of the answer to a GET. Panics unless the status is 200.
#[track_caller]
pub fn get(at: SocketAddr, path: &str) -> String {
    let answer = request(at, "GET", path, "").unwrap();
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.body
}

/// Returns the answer to a GET as JSON.
#[track_caller]
pub fn json(at: SocketAddr, path: &str) -> Value {
    let body = get(at, path);
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
}
