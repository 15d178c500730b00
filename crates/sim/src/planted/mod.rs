//! Planted bugs: a checker that finds none of them proves nothing.
//!
//! The sources of core and of the engine contain no trace of the bugs. `leasehold-sim --planted` does this:
//!
//! 1. Copies the workspace to `target/planted/source`.
//! 2. Applies the edits of every bug (`bugs.rs`) to the copy. Each edit puts the wrong code behind a question,
//!    `leasehold_core::planted("name")`, which is true if the environment variable `LEASEHOLD_PLANTED` has that name.
//! 3. Builds the simulator of the copy, once.
//! 4. Runs it for each bug with that variable, until the first seed that reports a violation.
//!
//! An edit whose text is not found exactly once is an error: the source has changed, and the edit must follow it.

mod bugs;
mod copy;

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
};

pub use bugs::{BUGS, Edit, PlantedBug};

/// The environment variable that names the bug to switch on.
const VARIABLE: &str = "LEASEHOLD_PLANTED";

/// How the search for one bug ended.
#[derive(Debug)]
pub struct Search {
    /// The bug.
    pub bug: &'static PlantedBug,
    /// The first line that the simulator printed about a violation, with its seed; `None` if no seed found the bug.
    pub violation: Option<String>,
}

/// Builds the simulator with all bugs in it, and looks for each of them on two threads.
///
/// # Errors
/// A text for people, if an edit does not fit the source or the copy does not build.
pub fn find_all(workspace: &Path) -> Result<Vec<Search>, String> {
    let program = copy::build(workspace)?;
    let next = Mutex::new(BUGS.iter());
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(bug) = lock(&next).next() {
                    let search = find(&program, bug);
                    lock(&found).push(search);
                }
            });
        }
    });
    let searches: Result<Vec<Search>, String> = found.into_inner().unwrap_or_default().into_iter().collect();
    let mut searches = searches?;
    searches.sort_by_key(|search| BUGS.iter().position(|bug| bug.name == search.bug.name));
    Ok(searches)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn find(program: &Path, bug: &'static PlantedBug) -> Result<Search, String> {
    let (from, to) = bug.seeds;
    let mut command = Command::new(program);
    command.args(["--seeds", &(to - from + 1).to_string(), "--from", &from.to_string(), "--stop-at-first"]);
    if bug.is_of_quorum {
        command.arg("--quorum");
    }
    let output = command.env(VARIABLE, bug.name).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let violation = text.lines().find(|line| line.starts_with("seed ")).map(str::to_owned);
    Ok(Search { bug, violation })
}
