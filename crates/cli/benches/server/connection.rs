//! A connection of HTTP/1.1 that writes a request and reads its answer.

use std::fmt::Write as _;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A request, ready to be sent.
pub(crate) fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut request =
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    write!(request, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    request
}

/// An owner token: 32 hex digits.
pub(crate) fn owner(number: usize) -> String {
    format!("0123456789abcdef{number:016x}")
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, received: Vec::with_capacity(4096) }
    }

    pub(crate) async fn send(&mut self, request: &str) {
        self.stream.write_all(request.as_bytes()).await.unwrap();
    }

    /// Sends the request, and waits for an answer, which must be a success.
    pub(crate) async fn ask(&mut self, request: &str) {
        self.send(request).await;
        self.answer().await;
    }

    /// Waits for the answer to what was sent.
    pub(crate) async fn answer(&mut self) {
        self.received.clear();
        loop {
            let read = self.stream.read_buf(&mut self.received).await.unwrap();
            assert!(
                read > 0,
                "the server closed the connection: {}",
                String::from_utf8_lossy(&self.received)
            );
            if let Some(length) = whole_answer(&self.received)
                && self.received.len() >= length
            {
                let text = &self.received[..length];
                assert!(text.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(text));
                return;
            }
        }
    }
}

/// How long the answer is with its body, once its head is there.
fn whole_answer(received: &[u8]) -> Option<usize> {
    let head = received.windows(4).position(|four| four == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&received[..head]).unwrap();
    let of_body = |line: &str| -> Option<usize> {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    };
    Some(head + 4 + text.lines().find_map(of_body).unwrap_or(0))
}
