//! Runs every program in `examples/`: each must be built, succeed, and end within 20 seconds.

use std::{fs, process::Command, time::Duration};

use crate::{cargo, root, steps::Steps, target_dir, test::FEATURES};

/// An example that takes longer is a failure.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn run_all(steps: &mut Steps) -> bool {
    let names = match names() {
        Ok(names) => names,
        Err(why) => return steps.check("examples", || Err(why)),
    };
    // With the same features as the tests, so that their build is used again.
    let mut build = cargo(["build", "--quiet", "--workspace", "--features", FEATURES]);
    for name in &names {
        build.args(["--example", name]);
    }
    if !steps.command("examples: build", &mut build) {
        return false;
    }
    let programs = target_dir().join("debug").join("examples");
    let run = |name: &String| {
        let mut command = Command::new(programs.join(name));
        steps.command_within(LIMIT, &format!("example {name}"), command.current_dir(root()))
    };
    let passed: Vec<bool> = names.iter().map(run).collect(); // run all of them, even after a failure
    passed.into_iter().all(|passed| passed)
}

fn names() -> Result<Vec<String>, String> {
    let directory = root().join("examples");
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let files = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = files.filter_map(|file| Some(file.strip_suffix(".rs")?.to_owned())).collect();
    names.sort();
    Ok(names)
}
