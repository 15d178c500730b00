//! A calendar clock for servers, which a test can set while they run.

use std::{
    fs,
    io::{Seek as _, Write as _},
    path::PathBuf,
    process::Command,
};

use super::daemon::fresh_folder;

const SOURCE: &str = include_str!("clock.c");

/// A clock for one server or several. Its folder is removed with it.
#[derive(Debug)]
pub struct ServerClock {
    folder: PathBuf,
}

impl ServerClock {
    /// One that is right.
    ///
    /// # Panics
    /// If it cannot be compiled: the package `gcc` is needed.
    pub fn new() -> ServerClock {
        let clock = ServerClock { folder: fresh_folder("clock") };
        fs::write(clock.path("clock.c"), SOURCE).expect("a file can be written");
        fs::write(clock.path("ahead"), 0i64.to_ne_bytes()).expect("a file can be written");
        let compile = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([clock.path("clock.so"), clock.path("clock.c")])
            .output()
            .expect("gcc is installed");
        assert!(compile.status.success(), "{}", String::from_utf8_lossy(&compile.stderr));
        clock
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What a server must have in its environment to go by it.
    pub fn environment(&self) -> Vec<String> {
        let named = |name: &str, file: &str| format!("{name}={}", self.path(file).display());
        vec![named("LD_PRELOAD", "clock.so"), named("SERVER_CLOCK", "ahead")]
    }

    /// Sets it this many seconds ahead of the true time; back, if negative.
    ///
    /// # Panics
    /// If its file is gone.
    pub fn set_ahead(&self, seconds: i64) {
        // In place: the servers have this file mapped.
        let mut file =
            fs::OpenOptions::new().write(true).open(self.path("ahead")).expect("the file is there");
        file.rewind().expect("a file can be rewound");
        file.write_all(&(seconds * 1_000_000_000).to_ne_bytes()).expect("eight bytes can be written");
    }
}

impl Default for ServerClock {
    fn default() -> ServerClock {
        ServerClock::new()
    }
}

impl Drop for ServerClock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
