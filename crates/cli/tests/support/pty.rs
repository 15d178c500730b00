//! A shell with job control in a pseudo-terminal, and a test that types.

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

use super::{TestDir, wait_until};

pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const CTRL_Z: &str = "\x1a";

pub struct Terminal {
    shell: Child,
    keys: File,
    screen: Arc<Mutex<String>>,
    /// How much of the screen earlier calls of `wait_for` have consumed.
    consumed: usize,
}

impl Terminal {
    pub fn open(dir: &TestDir) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let stdio = |slave: &OwnedFd| Stdio::from(slave.try_clone().unwrap());
        let shell = dir
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
        let mut terminal = Terminal { shell, keys, screen, consumed: 0 };
        // Without echo, everything on the screen is output.
        terminal.enter("bind 'set enable-bracketed-paste off'; stty -echo; echo rea''dy");
        terminal.wait_for("ready");
        terminal
    }

    /// Types these keys.
    pub fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types this line and Return.
    pub fn enter(&mut self, line: &str) {
        self.type_keys(line);
        self.type_keys("\n");
    }

    /// Waits until this text is shown, after the text of the last call. Returns what was shown in between.
    #[track_caller]
    pub fn wait_for(&mut self, wanted: &str) -> String {
        let mut found = None;
        let found_it = wait_until(|| {
            let screen = self.screen.lock().unwrap();
            found = screen[self.consumed..].find(wanted).map(|at| {
                (screen[self.consumed..self.consumed + at].to_owned(), self.consumed + at + wanted.len())
            });
            found.is_some()
        });
        assert!(found_it, "{wanted:?} was not shown: {:?}", self.screen.lock().unwrap());
        let (between, consumed) = found.unwrap();
        self.consumed = consumed;
        between
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
