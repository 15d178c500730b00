//! A `leasehold serve` process, and plain HTTP requests to it.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::TestDir;

/// A server on a port of its own. Dropping it kills the process.
pub struct Serving {
    pub child: Child,
    pub address: String,
}

impl Serving {
    pub fn start(directory: &TestDir, arguments: &[&str]) -> Serving {
        Serving::on(directory, None, arguments)
    }

    /// A server of the store with this URL, or of the store in the directory.
    pub fn on(directory: &TestDir, store: Option<&str>, arguments: &[&str]) -> Serving {
        let mut command = directory.leasehold();
        if let Some(store) = store {
            command.args(["--store", store]);
        }
        Serving::run(command, arguments)
    }

    /// `command` is the program, with what comes before `serve`.
    pub fn run(mut command: Command, arguments: &[&str]) -> Serving {
        command.args(["--json", "serve", "--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = line["listening"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Serving { child, address }
    }

    pub fn socket(&self) -> SocketAddr {
        self.address.parse().unwrap()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.request_with("", method, path, body)
    }

    pub fn request_with(&self, header: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        request(&self.address, header, method, path, body)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `POST`s to a server or a proxy at this address.
pub fn post(address: &str, path: &str, body: &str) -> (u16, Value) {
    request(address, "", "POST", path, body)
}

fn request(address: &str, header: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         {header}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}
