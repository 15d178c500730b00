//! The driver of a client: a process that reads commands and writes answers and events, one JSON object on each line.

use std::{
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::watch,
};

use crate::server::end;

/// Longer than anything takes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A line of the driver, and when it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) at: Instant,
    pub(crate) value: Value,
}

/// Everything that was said, for the runner and for people.
#[derive(Debug)]
struct Dialogue {
    started: Instant,
    lines: Vec<Line>,
    /// Both sides, and standard error, as text.
    transcript: Vec<String>,
    has_ended: bool,
}

/// The driver of a client. It is killed when this is dropped.
pub(crate) struct Driver {
    child: Child,
    stdin: ChildStdin,
    dialogue: Arc<Mutex<Dialogue>>,
    changes: watch::Receiver<u64>,
    next_id: u64,
    shows: bool,
}

impl Driver {
    /// Starts the command, with these variables in its environment.
    pub(crate) fn start(words: &[String], environment: &[String], shows: bool) -> Driver {
        let (program, args) = words.split_first().expect("the arguments were checked: there is a program");
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.envs(environment.iter().filter_map(|pair| pair.split_once('=')));
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {words:?}: {error}"));
        let dialogue =
            Dialogue { started: Instant::now(), lines: Vec::new(), transcript: Vec::new(), has_ended: false };
        let dialogue = Arc::new(Mutex::new(dialogue));
        let (changed, changes) = watch::channel(0);
        let stdout = child.stdout.take().expect("it is piped");
        tokio::spawn(read(stdout, Arc::clone(&dialogue), changed, true));
        let stderr = child.stderr.take().expect("it is piped");
        tokio::spawn(read(stderr, Arc::clone(&dialogue), watch::channel(0).0, false));
        let stdin = child.stdin.take().expect("it is piped");
        Driver { child, stdin, dialogue, changes, next_id: 1, shows }
    }

    /// Waits for the first line: what the client is called, and what it cannot do.
    pub(crate) async fn hello(&mut self) -> Value {
        self.line("its first line", |line| line.get("hello").is_some()).await.value
    }

    /// Sends a command, and returns its id.
    pub(crate) async fn send(&mut self, mut command: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        command["id"] = json!(id);
        let mut text = command.to_string();
        lock(&self.dialogue).note("→", &text);
        text.push('\n');
        let written = self.stdin.write_all(text.as_bytes()).await;
        written.unwrap_or_else(|error| panic!("the driver reads no more commands: {error}"));
        id
    }

    /// The answer to a command.
    pub(crate) async fn answer(&mut self, id: u64) -> Answer {
        let line = self.line(&format!("the answer to command {id}"), |line| line["id"] == json!(id)).await;
        Answer { at: line.at, value: line.value }
    }

    /// The answer, if it has come.
    pub(crate) fn answered(&self, id: u64) -> Option<Answer> {
        let found = self.find(|line| line["id"] == json!(id));
        found.map(|line| Answer { at: line.at, value: line.value })
    }

    /// Sends a command, and waits for its answer.
    pub(crate) async fn ask(&mut self, command: Value) -> Answer {
        let id = self.send(command).await;
        self.answer(id).await
    }

    /// Waits for an event about this lease or observer.
    pub(crate) async fn event(&mut self, event: &str, name: &str) -> Line {
        let what = format!("the event {event} of {name}");
        self.line(&what, |line| is_event(line, event, name)).await
    }

    /// Waits for an event about this observer that has this value.
    pub(crate) async fn leader(&mut self, observer: &str, value: Option<&str>) -> Line {
        let wanted = value.map_or(Value::Null, Value::from);
        let what = format!("the leader {value:?} as {observer} sees it");
        let seen = |line: &Value| is_event(line, "leader", observer) && line["value"] == wanted;
        self.line(&what, seen).await
    }

    /// The events about this lease so far.
    pub(crate) fn events(&self, event: &str, name: &str) -> Vec<Line> {
        let dialogue = lock(&self.dialogue);
        dialogue.lines.iter().filter(|line| is_event(&line.value, event, name)).cloned().collect()
    }

    fn find(&self, is_wanted: impl Fn(&Value) -> bool) -> Option<Line> {
        lock(&self.dialogue).lines.iter().find(|line| is_wanted(&line.value)).cloned()
    }

    /// Waits for a line.
    async fn line(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Line {
        let ends_at = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.find(&is_wanted) {
                return line;
            }
            assert!(!lock(&self.dialogue).has_ended, "the driver ended before {what}");
            let changed = tokio::time::timeout_at(ends_at, self.changes.changed()).await;
            assert!(changed.is_ok(), "waited {PATIENCE:?} for {what}");
        }
    }

    /// Stops the process, as SIGSTOP does.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        // The threads of a process stop one after the other, and one of them may answer until then. An end of the process is left to
        // be noticed elsewhere.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.process()), options)
            .expect("the driver is a child that nobody has waited for");
    }

    /// Continues the process.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn process(&self) -> Pid {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        pid.expect("the driver has not ended: it is waited for only when this is dropped")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal)
            .unwrap_or_else(|error| panic!("cannot signal the driver: {error}"));
        lock(&self.dialogue).note("!", &format!("{signal:?}"));
    }

    /// The process id, which is in what the client says of itself.
    pub(crate) fn pid(&self) -> u64 {
        u64::from(self.child.id().unwrap_or_default())
    }

    /// Notes what the runner does besides, for the dialogue.
    pub(crate) fn remark(&self, text: &str) {
        lock(&self.dialogue).note("!", text);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.shows || std::thread::panicking() {
            let dialogue = lock(&self.dialogue);
            eprintln!("{}\n", dialogue.transcript.join("\n"));
        }
        end(&mut self.child);
    }
}

/// The answer to a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) at: Instant,
    value: Value,
}

impl Answer {
    /// What the command gave.
    #[track_caller]
    pub(crate) fn ok(&self) -> &Value {
        self.value.get("ok").unwrap_or_else(|| panic!("this should have succeeded: {}", self.value))
    }

    /// The error of this kind.
    #[track_caller]
    pub(crate) fn error(&self, kind: &str) -> &Value {
        let error = self.value.get("error");
        let is_kind = error.is_some_and(|error| error["kind"] == kind);
        assert!(is_kind, "this should have failed as {kind:?}: {}", self.value);
        &self.value["error"]
    }

    /// The kind of its error, or nothing if it succeeded.
    pub(crate) fn kind(&self) -> Option<&str> {
        self.value["error"]["kind"].as_str()
    }
}

fn is_event(line: &Value, event: &str, name: &str) -> bool {
    line["event"] == event && (line["lease"] == name || line["observer"] == name)
}

fn lock(dialogue: &Mutex<Dialogue>) -> MutexGuard<'_, Dialogue> {
    dialogue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dialogue {
    fn note(&mut self, mark: &str, text: &str) {
        let after = self.started.elapsed();
        self.transcript.push(format!("{:>9.3} s {mark} {text}", after.as_secs_f64()));
    }
}

/// Reads lines until the end: answers and events, or what is written to standard error.
async fn read(
    from: impl AsyncRead + Unpin,
    dialogue: Arc<Mutex<Dialogue>>,
    changed: watch::Sender<u64>,
    is_protocol: bool,
) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        let at = Instant::now();
        {
            let mut dialogue = lock(&dialogue);
            dialogue.note(if is_protocol { "←" } else { "err" }, &text);
            if is_protocol {
                // A line that is not JSON helps nobody; it stands in the dialogue.
                let value = serde_json::from_str(&text).unwrap_or(Value::Null);
                dialogue.lines.push(Line { at, value });
            }
        }
        changed.send_modify(|count| *count += 1);
    }
    if is_protocol {
        lock(&dialogue).has_ended = true;
        changed.send_modify(|count| *count += 1);
    }
}
