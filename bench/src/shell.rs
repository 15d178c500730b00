//! Commands under a lock, from a shell: how long `true` takes under each tool.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use leasehold_bench::percentile;

use crate::{
    build_folder,
    peers::{Peer, Program, path_text, step},
    results::Row,
    root,
    run::{Effort, Figures},
    stores::Store,
};

/// Builds `leasehold` as `cargo xtask build` does. Returns its path.
pub(crate) fn build() -> Result<Vec<String>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--profile", "dist", "--package", "leasehold-cli", "--features", "full"]);
    step("the program leasehold", build.current_dir(root()))?;
    let target = build_folder().parent().map(PathBuf::from).unwrap_or_default();
    Ok(vec![path_text(&target.join("dist/leasehold"))])
}

/// Measures the tools in turn.
pub(crate) fn measure(
    peers: &[&'static Peer],
    store: &Store,
    effort: Effort,
    mut program: impl FnMut(Program) -> Result<Vec<String>, String>,
    progress: impl Fn(&str),
) -> Vec<Row> {
    let folder = build_folder().join("shell");
    let _ = fs::remove_dir_all(&folder);
    if let Err(error) = fs::create_dir_all(&folder) {
        return peers.iter().map(|peer| Row::not_run(peer.name, error.to_string())).collect();
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut tools: Vec<Option<Vec<String>>> = Vec::new();
    for peer in peers {
        let words = words(peer, store, &folder, &mut program).and_then(|words| {
            // The warm-up: files are made, and a tool that is not installed says so.
            run_true(&words).map(|_| words)
        });
        let not_run = words.as_ref().err().cloned();
        rows.push(Row { peer: peer.name.to_owned(), not_run, figures: Default::default() });
        tools.push(words.ok());
    }
    for repetition in 1..=effort.repetitions {
        for (row, tool) in rows.iter_mut().zip(&tools) {
            let Some(words) = tool else { continue };
            progress(&format!("{repetition} of {}, {}", effort.repetitions, row.peer));
            let times: Result<Vec<f64>, String> = (0..effort.commands).map(|_| run_true(words)).collect();
            match times {
                Ok(times) => row.add(&figures(times)),
                Err(why) => row.not_run = Some(why),
            }
        }
    }
    let _ = fs::remove_dir_all(&folder);
    rows
}

/// The words that run `true` under the lock of a tool.
fn words(
    peer: &Peer,
    store: &Store,
    folder: &std::path::Path,
    program: &mut impl FnMut(Program) -> Result<Vec<String>, String>,
) -> Result<Vec<String>, String> {
    let file = |name: &str| path_text(&folder.join(name));
    Ok(match peer.lock {
        "flock" => vec!["flock".to_owned(), file("flock"), "true".to_owned()],
        "etcdctl" => {
            let endpoint = format!("--endpoints={}", store.address);
            ["env", "ETCDCTL_API=3", "etcdctl", &endpoint, "lock", "bench", "true"]
                .map(str::to_owned)
                .to_vec()
        }
        _ => {
            let url =
                if store.url.is_empty() { format!("sqlite:{}", file("leases")) } else { store.url.clone() };
            let mut words = program(Program::Shell)?;
            words.extend(["run", "--store", &url, "bench/1", "--", "true"].map(str::to_owned));
            words
        }
    })
}

/// Runs the command once. Returns its microseconds.
fn run_true(words: &[String]) -> Result<f64, String> {
    let started = Instant::now();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().map_err(|error| error.to_string())?;
    let took = started.elapsed().as_secs_f64() * 1e6;
    if status.success() { Ok(took) } else { Err(format!("it ended with {status}")) }
}

fn figures(times: Vec<f64>) -> Figures {
    Figures::from([("p50_us", percentile(times.clone(), 50)), ("p99_us", percentile(times, 99))])
}
