//! A `leasehold serve` process on the Redis of a work.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use crate::{build_folder, stores::CpuTime};

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    /// Starts a server on this store, without access tokens, on a free port of the loopback interface. `command` has the words
    /// that start the program.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it listens: `logs/serve.log` has what it said.
    pub fn start(command: &[String], store: &str) -> Result<Serving, String> {
        let logs = build_folder().join("logs");
        let failed = |error: std::io::Error| format!("cannot start {}: {error}", command[0]);
        fs::create_dir_all(&logs).map_err(failed)?;
        let child = Command::new(&command[0])
            .args(&command[1..])
            .args(["--json", "--store", store, "serve", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(logs.join("serve.log")).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let mut serving = Serving { child, url: String::new() };
        let output = serving.child.stdout.take().expect("its output is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
        serving.url = listening_url(&line).ok_or("leasehold serve has ended: serve.log says why")?;
        Ok(serving)
    }

    /// Where it listens, as a URL of leasehold.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The CPU time that it has spent so far.
    pub fn cpu_time(&self) -> CpuTime {
        CpuTime::of_trees(&[self.child.id()])
    }
}

/// The URL in the first line that a server prints.
fn listening_url(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line.get("listening")?.as_str().map(str::to_owned)
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_where_it_listens() {
        let line = r#"{"listening":"http://127.0.0.1:4711","store":"redis"}"#;
        assert_eq!(listening_url(line).as_deref(), Some("http://127.0.0.1:4711"));
        assert_eq!(listening_url(""), None);
        assert_eq!(listening_url(r#"{"error":"the store does not answer"}"#), None);
    }
}
