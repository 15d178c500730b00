//! A wall clock for servers, which a test can set while they run.

use std::{
    fs,
    io::{Seek as _, Write as _},
    path::PathBuf,
    process::Command,
};

use super::daemon::fresh_folder;

const SOURCE: &str = include_str!("clock.c");

/// A wall clock for one server or several. Dropping it removes its folder.
#[derive(Debug)]
pub struct ServerClock {
    folder: PathBuf,
}

impl ServerClock {
    /// A clock that shows the true time.
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

    /// The environment variables of a server that shall use this clock.
    pub fn environment(&self) -> Vec<String> {
        let named = |name: &str, file: &str| format!("{name}={}", self.path(file).display());
        vec![named("LD_PRELOAD", "clock.so"), named("SERVER_CLOCK", "ahead")]
    }

    /// Sets the clock this many seconds ahead of the true time, or behind it if negative.
    ///
    /// # Panics
    /// If its file is gone.
    pub fn set_ahead(&self, seconds: i64) {
        // Written in place, because the servers have this file mapped.
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
