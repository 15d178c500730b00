//! In a terminal, under a shell with job control: keys, jobs, pipelines and scripts work as without us.
//!
//! What is stopped here never forks: a shell that is stopped in the moment when it starts another program (`vfork`)
//! hangs on Linux, whether we are there or not.

mod support;

use leasehold::Eviction;
use support::{
    Site, Start as _, eventually, is_alive, pid_in,
    pty::{CTRL_C, CTRL_D, CTRL_Z, Terminal},
    state,
};

#[test]
fn a_command_reads_from_the_terminal() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- cat; echo code=$?");
    terminal.enter("some words");
    terminal.sees("some words");
    terminal.types(CTRL_D);
    terminal.sees("code=0");
}

#[test]
fn a_command_typed_alone_is_in_front_from_the_start() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- sh -c 'sleep 0.2; ps -o pgid=,tpgid= -p $$'; echo done");
    let shown = terminal.sees("done");
    let groups: Vec<&str> = shown.split_whitespace().filter(|word| word.parse::<u32>().is_ok()).collect();
    assert!(groups.len() == 2 && groups[0] == groups[1], "{shown:?}");
}

#[test]
fn ctrl_c_interrupts_the_command() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- sh -c 'echo go; exec sleep 600'");
    terminal.sees("go");
    terminal.types(CTRL_C);
    terminal.enter("echo code=$?");
    terminal.sees("code=130");
    assert_eq!(site.look("x", "1").holder_count, 0);
}

#[test]
fn a_command_may_handle_ctrl_c_and_go_on() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- sh -c 'trap \"echo caught\" INT; echo go; read line; read line; exit 9'; echo code=$?");
    terminal.sees("go");
    terminal.types(CTRL_C);
    terminal.sees("caught");
    terminal.enter("");
    terminal.enter("");
    terminal.sees("code=9");
}

#[test]
fn ctrl_c_ends_the_script_around_it() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("bash -c '\"$L\" run x/1 -- sh -c \"echo go; exec sleep 600\"; echo survived'");
    terminal.sees("go");
    terminal.types(CTRL_C);
    terminal.enter("echo code=$?");
    assert!(!terminal.sees("code=130").contains("survived"));
}

#[test]
fn ctrl_c_ends_the_loop_around_it() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("for n in 1 2 3; do \"$L\" run x/1 -- sh -c \"echo go $n; exec sleep 600\"; done");
    terminal.sees("go 1");
    terminal.types(CTRL_C);
    terminal.enter("echo ended");
    assert!(!terminal.sees("ended").contains("go 2"));
}

#[test]
fn ctrl_c_ends_the_wait() {
    let site = Site::new();
    let holder = site.script(&[], "echo go; exec sleep 600").start();
    holder.until("go");
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- true");
    let line = terminal.sees("we are next");
    assert!(line.contains(&format!("leasehold: x/1: held by {}@", holder.pid())), "{line}");
    terminal.types(CTRL_C);
    terminal.enter("echo code=$?");
    terminal.sees("code=130");
    assert_eq!(site.look("x", "1").queue_length, 0, "it left the line");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_lets_it_go_on() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal
        .enter("\"$L\" run x/1 -- sh -c 'echo $$ > pid; echo go; read line; echo got $line'; echo code=$?");
    terminal.sees("go");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    assert_eq!(state(pid_in(&site.path("pid"))), Some('T'));
    terminal.enter("echo here");
    terminal.sees("here");
    terminal.enter("fg");
    terminal.enter("some words");
    terminal.sees("got some words");
    eventually("it ends", || site.look("x", "1").holder_count == 0);
}

#[test]
fn ctrl_z_and_bg_lets_it_work_in_the_background() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("mkfifo fifo; \"$L\" run x/1 -- sh -c 'echo go; read line < fifo; echo worked'");
    terminal.sees("go");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    terminal.enter("bg");
    terminal.enter("echo here");
    terminal.sees("here");
    terminal.enter("echo > fifo");
    terminal.sees("worked");
    terminal.enter("wait; echo waited");
    terminal.sees("waited");
}

#[test]
fn a_background_job_that_reads_is_stopped_until_it_is_in_front() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- cat &");
    eventually("it holds", || site.look("x", "1").holder_count == 1);
    eventually("the shell sees it stopped", || {
        terminal.enter("jobs; echo list''ed");
        terminal.sees("listed").contains("Stopped")
    });
    terminal.enter("fg");
    terminal.enter("some words");
    terminal.sees("some words");
    terminal.types(CTRL_D);
    terminal.enter("echo code=$?");
    terminal.sees("code=0");
}

#[test]
fn a_command_in_a_script_reads_from_the_terminal() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("bash -c 'echo before; \"$L\" run x/1 -- sh -c \"read line; echo got \\$line\"; echo code=$?; read line; echo script got $line'");
    terminal.sees("before");
    terminal.enter("one");
    terminal.sees("got one");
    terminal.sees("code=0");
    terminal.enter("two");
    terminal.sees("script got two");
}

#[test]
fn ctrl_z_in_a_script_stops_all_of_it() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter(
        "mkfifo fifo; bash -c '\"$L\" run x/1 -- sh -c \"echo go; read line < fifo\"; echo script goes on'",
    );
    terminal.sees("go");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    terminal.enter("fg");
    std::fs::write(site.path("fifo"), "\n").unwrap();
    terminal.sees("script goes on");
}

#[test]
fn a_pipeline_leaves_the_terminal_to_others() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run x/1 -- sh -c 'echo data; until [ -e end ]; do sleep 0.02; done' | (read a; read b < /dev/tty; echo \"$a and $b\"; touch end)");
    terminal.enter("keys");
    terminal.sees("data and keys");
    terminal.enter("echo code=${PIPESTATUS[0]}");
    terminal.sees("code=0");
}

#[test]
fn a_job_that_was_stopped_longer_than_its_lease_is_lost() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("\"$L\" run --ttl 2s x/1 -- sh -c 'echo $$ > pid; echo go; read line'");
    terminal.sees("go");
    terminal.types(CTRL_Z);
    terminal.sees("Stopped");
    let pid = pid_in(&site.path("pid"));
    eventually("the guardian ends it", || !is_alive(pid));
    terminal.enter("fg");
    terminal.sees("the lease was lost, and the command is dead");
    terminal.enter("echo code=$?");
    terminal.sees("code=79");
}

#[test]
fn the_terminal_is_put_right_after_a_command_that_was_killed() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("bash -c '\"$L\" run --ttl 2s x/1 -- sh -c \"stty raw; echo go; exec sleep 600\"; stty -a | grep -o \".icanon\"'");
    terminal.sees("go");
    site.evict(Eviction::Now);
    terminal.sees("the command is dead");
    terminal.sees(" icanon");
}

#[test]
fn output_is_not_stopped_where_the_background_may_not_write() {
    let site = Site::new();
    let mut terminal = Terminal::open(&site);
    terminal.enter("stty tostop; \"$L\" run --ttl 2s x/1 -- sh -c 'echo go; exec sleep 600'; echo code=$?");
    terminal.sees("go");
    site.evict(Eviction::Now);
    terminal.sees("an operator evicted it: stopping the command");
    terminal.sees("code=79");
}
