//! A shell with job control in a terminal of its own, and someone who types.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use super::{Site, comes_true};

pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const CTRL_Z: &str = "\x1a";

pub struct Terminal {
    shell: Child,
    keys: File,
    screen: Arc<Mutex<String>>,
    /// How much of the screen has been looked at.
    seen: usize,
}

impl Terminal {
    pub fn open(site: &Site) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let stdio = |slave: &OwnedFd| Stdio::from(slave.try_clone().unwrap());
        let shell = site
            .command("setsid")
            .args(["--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"])
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .env("PS1", "$ ")
            .env("TERM", "dumb")
            .stdin(stdio(&slave))
            .stdout(stdio(&slave))
            .stderr(stdio(&slave))
            .spawn()
            .unwrap();
        let keys = File::from(master);
        let (mut output, screen) = (keys.try_clone().unwrap(), Arc::new(Mutex::new(String::new())));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        let mut terminal = Terminal { shell, keys, screen, seen: 0 };
        // What is typed is not shown: what is shown is an answer.
        terminal.enter("bind 'set enable-bracketed-paste off'; stty -echo; echo rea''dy");
        terminal.sees("ready");
        terminal
    }

    /// Types this.
    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types this and Return.
    pub fn enter(&mut self, line: &str) {
        self.types(line);
        self.types("\n");
    }

    /// Waits until this is shown, after what was seen before; returns what was shown in between.
    #[track_caller]
    pub fn sees(&mut self, wanted: &str) -> String {
        let mut found = None;
        let so = comes_true(|| {
            let screen = self.screen.lock().unwrap();
            found = screen[self.seen..]
                .find(wanted)
                .map(|at| (screen[self.seen..self.seen + at].to_owned(), self.seen + at + wanted.len()));
            found.is_some()
        });
        assert!(so, "{wanted:?} was not shown: {:?}", self.screen.lock().unwrap());
        let (between, seen) = found.unwrap();
        self.seen = seen;
        between
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
