//! `leasehold cron`: a command on a schedule, once for all machines together.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Duration};

use leasehold::{Client, Clock as _, SystemClock};
use leasehold_patterns::schedule::{Cron, Schedule, TickOutcome, TickTime};
use rustix::process::Signal;
use serde_json::Value;
use support::{Running, Start as _, TestDir, eventually, exit_and_errors, text};

const EVERY_MINUTE: &str = "* * * * *";

/// Records that the tick some minutes ago was run. The ticks since then were missed, so `--missed latest`
/// runs one at once.
fn record_tick(dir: &TestDir, job: &str, minutes: u64) {
    dir.with_client(async |client: Client| {
        let now = SystemClock.wall().as_micros() - minutes * 60_000_000;
        let schedule = Schedule::parse(EVERY_MINUTE).unwrap();
        let tick = schedule.last_until(TickTime::of(leasehold::WallTime::from_micros(now))).unwrap();
        let claimed = Cron::new(&client, job, schedule).claim(tick).await.unwrap();
        claimed.expect("no other process claims it").finish(TickOutcome::Succeeded).await;
        client.shutdown().await;
    });
}

fn cron(dir: &TestDir, options: &[&str], script: &str) -> Command {
    let mut command = dir.leasehold();
    command.args(["cron", "--missed", "latest"]).args(options).args([
        EVERY_MINUTE,
        "cleanup",
        "--",
        "sh",
        "-c",
        script,
    ]);
    command
}

fn listed(dir: &TestDir, arguments: &[&str]) -> (i32, Vec<Value>) {
    let output = dir.leasehold().args(["cron", "ls", "--json"]).args(arguments).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), answer["jobs"].as_array().expect("an object with jobs").clone())
}

fn stop(mut running: Running) -> i32 {
    running.signal(Signal::TERM);
    running.wait().code().unwrap()
}

#[test]
fn of_four_machines_one_runs_the_tick_under_a_lease() {
    let dir = TestDir::new();
    record_tick(&dir, "cleanup", 3);
    let script = "echo $LEASEHOLD_RESOURCE $LEASEHOLD_TICK $LEASEHOLD_TOKEN >> ran; echo ran";
    let machines: Vec<_> = (0..4).map(|_| cron(&dir, &[], script).start()).collect();
    eventually("the tick is done", || {
        listed(&dir, &[])
            .1
            .first()
            .is_some_and(|job| job["outcome"] == "succeeded" && job["ended"] != Value::Null)
            && fs::exists(dir.path("ran")).unwrap()
    });
    for machine in machines {
        assert_eq!(stop(machine), 128 + 15);
    }
    let ran = fs::read_to_string(dir.path("ran")).unwrap();
    let mut ticks: Vec<_> = ran.lines().map(|line| line.split(' ').collect::<Vec<_>>()).collect();
    assert!(ticks.iter().all(|words| words[0] == "cron/cleanup" && words[2].parse::<u64>().is_ok()), "{ran}");
    let all = ticks.len();
    ticks.dedup_by_key(|words| words[1].to_owned());
    assert_eq!(ticks.len(), all, "a tick ran twice: {ran}");
}

#[test]
fn failed_and_stopped_jobs_are_listed() {
    let dir = TestDir::new();
    record_tick(&dir, "cleanup", 2);
    record_tick(&dir, "stopped", 30);
    let machine = cron(&dir, &[], "exit 3").start();
    let of = |name: &str| listed(&dir, &[]).1.into_iter().find(|job| job["job"] == name).unwrap();
    eventually("it failed", || of("cleanup")["outcome"] == "failed");
    let job = of("cleanup");
    assert_eq!((job["why"].as_str(), job["late_by_ms"].as_u64()), (Some("exit code 3"), None));
    assert_eq!(job["schedule"], EVERY_MINUTE);
    assert!(job["last_success"].is_string() && job["last_success"] != job["tick"]);
    assert!(of("stopped")["late_by_ms"].as_u64().unwrap() > 20 * 60_000);
    assert_eq!(listed(&dir, &["--check"]).0, 1);
    let table = text(&dir.leasehold().args(["cron", "ls"]).output().unwrap());
    assert!(table.contains("failed: exit code 3") && table.contains("late by "), "{table}");
    assert_eq!(stop(machine), 128 + 15);
    let (_, named) = listed(&dir, &["stopped"]);
    assert_eq!((named.len(), &named[0]["job"]), (1, &Value::from("stopped")));
    // The marks of ticks have no holder, so `ls` does not list them.
    let (code, said) = exit_and_errors(&dir.leasehold().args(["ls"]).output().unwrap());
    assert_eq!((code, said.len()), (0, 1), "{said:?}");
    assert!(said[0].starts_with("leasehold: nothing is held, waited for or paused"), "{said:?}");
}

/// Runs one tick with this script. The record of the tick when it has ended.
fn run_tick(dir: &TestDir, options: &[&str], script: &str) -> Value {
    record_tick(dir, "cleanup", 2);
    let first = listed(dir, &["cleanup"]).1[0]["tick"].clone();
    let machine = cron(dir, options, script).start();
    let mut record = Value::Null;
    // At the full minute another tick begins, which `stop` ends: so the record is read before that.
    eventually("the tick is over", || {
        let newest = listed(dir, &["cleanup"]).1[0].clone();
        if record.is_null() && newest["tick"] != first && newest["ended"].is_string() {
            record = newest;
        }
        !record.is_null()
    });
    stop(machine);
    record
}

#[test]
fn an_exit_code_of_the_command_is_not_taken_for_one_of_leasehold() {
    for code in [64, 69, 70, 75, 78, 79, 126, 127] {
        let job = run_tick(&TestDir::new(), &[], &format!("exit {code}"));
        let why = format!("exit code {code}");
        assert_eq!((&job["outcome"], &job["why"]), (&"failed".into(), &why.into()), "{job}");
    }
    let job = run_tick(&TestDir::new(), &[], "kill -TERM $$");
    assert_eq!((&job["outcome"], &job["why"]), (&"failed".into(), &"exit code 143".into()), "{job}");
}

#[test]
fn an_error_of_leasehold_run_is_listed_as_such() {
    let dir = TestDir::new();
    let before = dir.run(["cron/cleanup", "--", "sh", "-c", "echo go; exec sleep 600"]).start();
    before.wait_for_line("go");
    let job = run_tick(&dir, &[], "true");
    assert_eq!((&job["outcome"], &job["why"]), (&"skipped".into(), &Value::Null), "{job}");

    let job = run_tick(&TestDir::new(), &["--max-hold", "1s"], "exec sleep 600");
    assert_eq!((&job["outcome"], &job["why"]), (&"lost".into(), &Value::Null), "{job}");

    let job = run_tick(&TestDir::new(), &["--ttl", "1ms"], "true");
    assert_eq!(job["outcome"], "failed", "{job}");
    assert!(job["why"].as_str().unwrap().contains("ttl"), "{job}");
}

#[test]
fn missed_ticks_are_run_and_at_least_keeps_runs_apart() {
    let dir = TestDir::new();
    for (job, options, outcomes) in [("often", &[][..], 3), ("seldom", &["--at-least", "1h"], 1)] {
        record_tick(&dir, job, 10);
        let mut command = dir.leasehold();
        command.args(["cron", "--missed", "3"]).args(options).args([EVERY_MINUTE, job, "--", "sh", "-c"]);
        let machine = command.arg(format!("echo $LEASEHOLD_TICK >> {job}")).start();
        let newest = |job: &str| listed(&dir, &[job]).1[0].clone();
        let now = || TickTime::of(SystemClock.wall()).to_string();
        eventually("all that were missed are over", || {
            let seen = newest(job);
            seen["ended"].is_string() && seen["tick"].as_str().unwrap()[..16] == now()[..16]
        });
        stop(machine);
        let ran = fs::read_to_string(dir.path(job)).unwrap();
        let ticks: Vec<_> = ran.lines().collect();
        assert!(ticks.is_sorted() && (outcomes..=outcomes + 1).contains(&ticks.len()), "{job}: {ran}");
    }
}

/// A monitor that looks into the wrong store, or for a job that never ran, must get an error.
#[test]
fn check_fails_for_a_job_without_a_record() {
    let dir = TestDir::new();
    dir.with_client(async |_| ()); // the store exists, and is empty
    let check = |jobs: &[&str]| {
        exit_and_errors(&dir.leasehold().args(["cron", "ls", "--check"]).args(jobs).output().unwrap())
    };
    dir.look("x", "1"); // creates the store
    assert_eq!(check(&[]), (1, vec!["leasehold: there is no record of any job".to_owned()]));
    record_tick(&dir, "cleanup", 0);
    assert_eq!(check(&["cleanup"]).0, 0);
    assert_eq!(
        check(&["cleanup", "other"]),
        (1, vec!["leasehold: there is no record of the job other".to_owned()])
    );
    assert_eq!(listed(&dir, &["other"]), (0, Vec::new()));
}

#[test]
fn a_signal_is_forwarded_and_the_command_is_waited_for() {
    let dir = TestDir::new();
    record_tick(&dir, "cleanup", 2);
    let script = "trap 'echo bye > ended; exit 0' TERM; echo go; while :; do sleep 0.05; done";
    let running = cron(&dir, &[], script).start();
    running.wait_for_line("go");
    assert_eq!(stop(running), 128 + 15);
    assert_eq!(fs::read_to_string(dir.path("ended")).unwrap(), "bye\n");
    assert!(dir.look("cron", "cleanup").holders.is_empty());
}

fn last_success(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("leasehold_cron_last_success_timestamp_seconds{"));
    line?.rsplit(' ').next()?.parse().ok()
}

#[test]
fn the_last_success_is_a_metric() {
    let dir = TestDir::new();
    record_tick(&dir, "cleanup", 2);
    let file = dir.path("metrics.prom");
    let running = cron(&dir, &["--metrics-file", file.to_str().unwrap()], "true").start();
    eventually("it is written", || last_success(&file).is_some());
    #[expect(clippy::cast_precision_loss, reason = "seconds are enough")]
    let now = SystemClock.wall().as_micros() as f64 / 1e6;
    assert!((now - last_success(&file).unwrap()).abs() < Duration::from_secs(120).as_secs_f64());
    let text = fs::read_to_string(&file).unwrap();
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help in:\n{text}");
    }
    stop(running);
}

/// The program was restarted, and its next tick is far away.
#[test]
fn the_last_success_is_a_metric_from_the_start() {
    let dir = TestDir::new();
    record_tick(&dir, "audit", 2);
    let file = dir.path("metrics.prom");
    let mut command = dir.leasehold();
    command.arg("--metrics-file").arg(&file).args(["cron", "0 0 29 2 *", "audit", "--", "true"]);
    let running = command.start();
    eventually("it is written", || last_success(&file).is_some());
    stop(running);
}

#[test]
fn a_schedule_is_explained() {
    let dir = TestDir::new();
    let next = |arguments: &[&str]| dir.leasehold().args(["cron", "next"]).args(arguments).output().unwrap();
    let said = text(&next(&["30 2 * * *", "--zone", "Europe/Berlin", "-n", "2"]));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains("2:30") && lines[0].ends_with("Europe/Berlin"), "{said}");
    assert!(lines[1].ends_with(":30:00Z") && lines[2] > lines[1], "{said}");
    for wrong in [&["61 * * * *"][..], &["* * * * *", "--zone", "Mars/Olympus"], &["@daily", "-n", "0"]] {
        let (code, errors) = exit_and_errors(&next(wrong));
        assert_eq!((code, errors.len()), (64, 1), "{wrong:?}: {errors:?}");
    }
    for wrong in
        [&["cron"][..], &["cron", "@daily"], &["cron", "@daily", "job"], &["cron", "@daily", "a\nb", "true"]]
    {
        assert_eq!(exit_and_errors(&dir.leasehold().args(wrong).output().unwrap()).0, 64, "{wrong:?}");
    }
}

#[test]
fn a_run_that_fails_is_printed_and_the_command_of_on_failure_gets_the_facts() {
    let dir = TestDir::new();
    record_tick(&dir, "cleanup", 2);
    let told = "env | grep ^LEASEHOLD_ | sort > facts.new; mv facts.new facts; exit 4";
    let machine = cron(&dir, &["--on-failure", told], "sleep 0.1; exit 3").start();
    let mut line = machine.next_error_line();
    assert!(line.starts_with("leasehold: cleanup: the run of 20"), "{line}");
    assert!(line.contains("Z failed after ") && line.ends_with(": exit code 3"), "{line}");
    line = machine.next_error_line();
    assert!(line.contains("the command of --on-failure failed: exit status: 4"), "{line}");
    let facts = fs::read_to_string(dir.path("facts")).unwrap();
    for fact in [
        "JOB=cleanup\n",
        "OUTCOME=failed\n",
        "WHY=exit code 3\n",
        "EXIT_CODE=3\n",
        "TICK=20",
        "TOOK_SECONDS=0.",
    ] {
        assert!(facts.contains(&format!("LEASEHOLD_{fact}")), "{fact} in {facts}");
    }
    assert_eq!(stop(machine), 128 + 15);
}

#[test]
fn a_lost_lease_of_a_run_is_a_failure_and_is_in_the_metrics_file() {
    let dir = TestDir::new();
    record_tick(&dir, "cleanup", 2);
    let file = dir.path("metrics.prom");
    let options = [
        "--metrics-file",
        file.to_str().unwrap(),
        "--max-hold",
        "1s",
        "--on-failure",
        "echo $LEASEHOLD_OUTCOME",
    ];
    let machine = cron(&dir, &options, "exec sleep 600").start();
    machine.wait_for_line("lost");
    let text = fs::read_to_string(&file).unwrap();
    let lost = r#"leasehold_lost_total{kind="cron",backend="sqlite",reason="max_hold"} 1"#;
    assert!(text.contains(lost), "{text}");
    assert_eq!(stop(machine), 128 + 15);
    let left = fs::read_dir(dir.directory.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with("metrics.prom.")), "{left:?}");
}

#[test]
fn the_command_of_on_failure_finds_the_same_store_and_no_password_unless_asked() {
    for (options, passed) in [(&[][..], false), (&["--pass-secrets"], true)] {
        let dir = TestDir::new();
        record_tick(&dir, "cleanup", 2);
        let home = dir.directory.path().display();
        let script = format!("cd /; env > {home}/env; $L --json cron ls > {home}/jobs; echo told");
        let mut machine = cron(&dir, &[options, &["--on-failure", &script]].concat(), "exit 3");
        machine.env("L", env!("CARGO_BIN_EXE_leasehold")).env("LEASEHOLD_DIR", ".");
        machine.env("LEASEHOLD_PASSWORD", "sesame").env("LEASEHOLD_METRICS_FILE", dir.path("metrics.prom"));
        machine.env("LEASEHOLD_TYPED_URLS", "redis://app:open@localhost/");
        let machine = machine.start();
        machine.wait_for_line("told");
        let environment = fs::read_to_string(dir.path("env")).unwrap();
        assert_eq!(environment.contains("LEASEHOLD_PASSWORD=sesame\n"), passed, "{environment}");
        assert!(!environment.contains("open") && !environment.contains("METRICS"), "{environment}");
        let store = format!("LEASEHOLD_STORE=sqlite:{}\n", dir.database().canonicalize().unwrap().display());
        assert!(environment.contains(&store), "{environment}");
        let jobs = fs::read_to_string(dir.path("jobs")).unwrap();
        assert!(jobs.contains(r#""job":"cleanup""#), "{jobs}");
        assert_eq!(stop(machine), 128 + 15);
    }
}

#[test]
fn the_command_of_on_failure_can_be_in_the_configuration_file() {
    const FILE: &str =
        "sensitive = true\nhash_key_file = 'key'\n[cron]\non_failure = 'echo $LEASEHOLD_OUTCOME'\n";
    let dir = TestDir::new();
    fs::write(dir.path("key"), "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(dir.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    record_tick(&dir, "cleanup", 2);
    fs::write(dir.path("config.toml"), FILE).unwrap();
    let machine = cron(&dir, &["--config", "config.toml"], "echo $LEASEHOLD_RESOURCE; exit 3").start();
    assert_eq!(machine.next_line(), "cron/cleanup", "the names of jobs are not hashed");
    machine.wait_for_line("failed");
    assert_eq!(stop(machine), 128 + 15);
}
