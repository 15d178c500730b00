//! In a terminal with a job-control shell, keys, jobs, pipelines and scripts work as they do without
//! leasehold.
//!
//! The commands that are stopped here do not fork: on Linux, a shell that is stopped while it starts a
//! program (`vfork`) hangs, with or without leasehold.

mod support;

use leasehold::Eviction;
use support::{
    Start as _, TestDir, eventually, is_alive, pid_in,
    pty::{CTRL_C, CTRL_D, CTRL_Z, Terminal},
    state,
};

#[test]
fn a_command_reads_from_the_terminal() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- cat; echo code=$?");
    terminal.enter("some words");
    terminal.wait_for("some words");
    terminal.type_keys(CTRL_D);
    terminal.wait_for("code=0");
}

#[test]
fn a_command_typed_alone_has_the_foreground_at_once() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- sh -c 'sleep 0.2; ps -o pgid=,tpgid= -p $$'; echo done");
    let shown = terminal.wait_for("done");
    let groups: Vec<&str> = shown.split_whitespace().filter(|word| word.parse::<u32>().is_ok()).collect();
    assert!(groups.len() == 2 && groups[0] == groups[1], "{shown:?}");
}

#[test]
fn ctrl_c_interrupts_the_command() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- sh -c 'echo go; exec sleep 600'");
    terminal.wait_for("go");
    terminal.type_keys(CTRL_C);
    terminal.enter("echo code=$?");
    terminal.wait_for("code=130");
    assert_eq!(dir.look("x", "1").holder_count, 0);
}

#[test]
fn a_command_may_handle_ctrl_c_and_go_on() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- sh -c 'trap \"echo caught\" INT; echo go; read line; read line; exit 9'; echo code=$?");
    terminal.wait_for("go");
    terminal.type_keys(CTRL_C);
    terminal.wait_for("caught");
    terminal.enter("");
    terminal.enter("");
    terminal.wait_for("code=9");
}

#[test]
fn ctrl_c_ends_the_script_around_it() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("bash -c '\"$L\" run x/1 -- sh -c \"echo go; exec sleep 600\"; echo survived'");
    terminal.wait_for("go");
    terminal.type_keys(CTRL_C);
    terminal.enter("echo code=$?");
    assert!(!terminal.wait_for("code=130").contains("survived"));
}

#[test]
fn ctrl_c_ends_the_loop_around_it() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("for n in 1 2 3; do \"$L\" run x/1 -- sh -c \"echo go $n; exec sleep 600\"; done");
    terminal.wait_for("go 1");
    terminal.type_keys(CTRL_C);
    terminal.enter("echo ended");
    assert!(!terminal.wait_for("ended").contains("go 2"));
}

#[test]
fn ctrl_c_ends_the_wait() {
    let dir = TestDir::new();
    let holder = dir.script(&[], "echo go; exec sleep 600").start();
    holder.wait_for_line("go");
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- true");
    let line = terminal.wait_for("we are next");
    assert!(line.contains(&format!("leasehold: x/1: held by {}@", holder.pid())), "{line}");
    terminal.type_keys(CTRL_C);
    terminal.enter("echo code=$?");
    terminal.wait_for("code=130");
    assert_eq!(dir.look("x", "1").queue_length, 0, "it left the queue");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal
        .enter("\"$L\" run x/1 -- sh -c 'echo $$ > pid; echo go; read line; echo got $line'; echo code=$?");
    terminal.wait_for("go");
    terminal.type_keys(CTRL_Z);
    terminal.wait_for("Stopped");
    assert_eq!(state(pid_in(&dir.path("pid"))), Some('T'));
    terminal.enter("echo here");
    terminal.wait_for("here");
    terminal.enter("fg");
    terminal.enter("some words");
    terminal.wait_for("got some words");
    eventually("it ends", || dir.look("x", "1").holder_count == 0);
}

#[test]
fn after_ctrl_z_bg_continues_the_job_in_the_background() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("mkfifo fifo; \"$L\" run x/1 -- sh -c 'echo go; read line < fifo; echo worked'");
    terminal.wait_for("go");
    terminal.type_keys(CTRL_Z);
    terminal.wait_for("Stopped");
    terminal.enter("bg");
    terminal.enter("echo here");
    terminal.wait_for("here");
    terminal.enter("echo > fifo");
    terminal.wait_for("worked");
    terminal.enter("wait; echo waited");
    terminal.wait_for("waited");
}

#[test]
fn a_background_job_that_reads_is_stopped_until_fg() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- cat &");
    eventually("it holds", || dir.look("x", "1").holder_count == 1);
    eventually("the shell sees it stopped", || {
        terminal.enter("jobs; echo list''ed");
        terminal.wait_for("listed").contains("Stopped")
    });
    terminal.enter("fg");
    terminal.enter("some words");
    terminal.wait_for("some words");
    terminal.type_keys(CTRL_D);
    terminal.enter("echo code=$?");
    terminal.wait_for("code=0");
}

#[test]
fn a_command_in_a_script_reads_from_the_terminal() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("bash -c 'echo before; \"$L\" run x/1 -- sh -c \"read line; echo got \\$line\"; echo code=$?; read line; echo script got $line'");
    terminal.wait_for("before");
    terminal.enter("one");
    terminal.wait_for("got one");
    terminal.wait_for("code=0");
    terminal.enter("two");
    terminal.wait_for("script got two");
}

#[test]
fn ctrl_z_in_a_script_stops_all_of_it() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter(
        "mkfifo fifo; bash -c '\"$L\" run x/1 -- sh -c \"echo go; read line < fifo\"; echo script goes on'",
    );
    terminal.wait_for("go");
    terminal.type_keys(CTRL_Z);
    terminal.wait_for("Stopped");
    terminal.enter("fg");
    std::fs::write(dir.path("fifo"), "\n").unwrap();
    terminal.wait_for("script goes on");
}

#[test]
fn in_a_pipeline_other_processes_can_read_from_the_terminal() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run x/1 -- sh -c 'echo data; until [ -e end ]; do sleep 0.02; done' | (read a; read b < /dev/tty; echo \"$a and $b\"; touch end)");
    terminal.enter("keys");
    terminal.wait_for("data and keys");
    terminal.enter("echo code=${PIPESTATUS[0]}");
    terminal.wait_for("code=0");
}

#[test]
fn a_job_that_was_stopped_longer_than_its_lease_is_lost() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("\"$L\" run --ttl 2s x/1 -- sh -c 'echo $$ > pid; echo go; read line'");
    terminal.wait_for("go");
    terminal.type_keys(CTRL_Z);
    terminal.wait_for("Stopped");
    let pid = pid_in(&dir.path("pid"));
    eventually("the guardian ends it", || !is_alive(pid));
    terminal.enter("fg");
    terminal.wait_for("the lease was lost, and the command is dead");
    terminal.enter("echo code=$?");
    terminal.wait_for("code=79");
}

#[test]
fn the_settings_of_the_terminal_are_restored_after_a_killed_command() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("bash -c '\"$L\" run --ttl 2s x/1 -- sh -c \"stty raw; echo go; exec sleep 600\"; stty -a | grep -o \".icanon\"'");
    terminal.wait_for("go");
    dir.evict(Eviction::Now);
    terminal.wait_for("the command is dead");
    terminal.wait_for(" icanon");
}

#[test]
fn leasehold_can_write_with_stty_tostop() {
    let dir = TestDir::new();
    let mut terminal = Terminal::open(&dir);
    terminal.enter("stty tostop; \"$L\" run --ttl 2s x/1 -- sh -c 'echo go; exec sleep 600'; echo code=$?");
    terminal.wait_for("go");
    dir.evict(Eviction::Now);
    terminal.wait_for("an operator evicted it: stopping the command");
    terminal.wait_for("code=79");
}

#[test]
fn a_wait_on_a_terminal_is_one_line_that_is_kept_up_to_date_and_erased() {
    let dir = TestDir::new();
    let mut holder = dir.script(&["--label", "nightly"], "echo go; read line");
    let mut holder = holder.stdin(std::process::Stdio::piped()).start();
    holder.wait_for_line("go");
    let mut terminal = Terminal::open(&dir);
    terminal.enter("stty columns 200; TERM=xterm \"$L\" run x/1 -- echo granted; echo code=$?");
    let erase = "\r\x1b[K";
    terminal.wait_for(&format!("{erase}leasehold: waiting 1"));
    let line = terminal.wait_for(&format!("{erase}leasehold: waiting 2"));
    let held = format!("s for x/1 (next): held by {}@", holder.pid());
    assert!(line.contains(&held) && line.contains(" nightly (renewing; free within "), "{line:?}");
    assert!(!line.contains('\n'), "{line:?}");
    holder.write("\n");
    let last = terminal.wait_for("granted");
    assert!(last.ends_with(erase), "the line is erased: {last:?}");
    terminal.wait_for("code=0");
}
