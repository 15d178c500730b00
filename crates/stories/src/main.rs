//! Tells the same stories to every client of `leasehold serve`: see README.md.
//!
//! 1. Start the driver once, to learn what it cannot do.
//! 2. Each story is a test, with a server, a store and a driver of its own. Stories run side by side.
//! 3. If a story fails, its dialogue is printed.

mod driver;
mod program;
mod rival;
mod server;
mod stories;
mod world;

use std::{
    collections::BTreeSet,
    env,
    pin::pin,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use leasehold_testkit::servers::PostgresServer;
use libtest_mimic::{Arguments, Trial};
use serde_json::Value;

use crate::{
    driver::Driver,
    stories::{STORIES, Story},
    world::{Subject, World},
};

const USAGE: &str = "\
leasehold-stories --driver COMMAND [OPTIONS] [STORY]

  --driver COMMAND    starts the driver of the client; words are separated by spaces
  --cannot ABILITIES  what the driver may lack, separated by commas [default: anything]. With it, a driver that lacks something else, or
                      lacks less, fails
  --leasehold PROGRAM the program whose `serve` is used [default: leasehold beside this program]
  --show              print the dialogue of every story
  and those of a test program: --list, --exact, --test-threads N

leasehold-stories --program COMMAND

  runs the program of docs/languages.md: when the lease is free, and when others hold it

leasehold-stories --postgres COMMAND [ARG…]

  runs the command with a PostgreSQL server of its own: an empty database, at the URL in $LEASEHOLD_TEST_POSTGRES
";

/// The longest that a story may take.
const STORY_TIMEOUT: Duration = Duration::from_secs(120);
/// So many stories run at the same time: they mostly wait.
const AT_ONCE: usize = 6;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--postgres") {
        return with_postgres(&words[1..]);
    }
    match read_arguments(env::args()) {
        Ok(Told { program: Some(program), subject, arguments }) => {
            program::run(program, subject.leasehold, &arguments).exit_code()
        }
        Ok(Told { subject, arguments, .. }) => tell_stories(subject, &arguments),
        Err(why) => {
            eprintln!("{why}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tell_stories(subject: Subject, arguments: &Arguments) -> ExitCode {
    let subject = Arc::new(subject);
    let hello = runtime().block_on(async { Driver::start(&subject.driver, &[], false).hello().await });
    if let Err(why) = check_abilities(&hello, subject.cannot.as_deref()) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let trials = STORIES.iter().map(|story| trial(*story, &subject, &hello)).collect();
    libtest_mimic::run(arguments, trials).exit_code()
}

/// Stories that a driver cannot take part in are ignored. So a driver that lacks something for a new reason would pass with fewer stories.
fn check_abilities(hello: &Value, expected: Option<&[String]>) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    let lacking = hello["cannot"].as_object();
    let lacking: BTreeSet<&str> =
        lacking.iter().flat_map(|lacking| lacking.keys()).map(String::as_str).collect();
    if lacking == expected {
        return Ok(());
    }
    Err(format!(
        "the driver should lack {expected:?} and says that it lacks {lacking:?}: {}",
        hello["cannot"]
    ))
}

/// Runs a command that tests the checking side of a client in a database.
fn with_postgres(words: &[String]) -> ExitCode {
    let Some((program, args)) = words.split_first() else {
        eprintln!("there is no command\n\n{USAGE}");
        return ExitCode::from(2);
    };
    let server = PostgresServer::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let status = Command::new(program).args(args).env("LEASEHOLD_TEST_POSTGRES", url).status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot run {program}: {error}");
            ExitCode::from(2)
        }
    }
}

/// What the command line says.
struct Told {
    subject: Subject,
    /// The program of docs/languages.md, instead of a driver.
    program: Option<Vec<String>>,
    /// Those of a test program.
    arguments: Arguments,
}

fn read_arguments(args: impl Iterator<Item = String>) -> Result<Told, String> {
    let beside = env::current_exe().ok().and_then(|path| Some(path.parent()?.join("leasehold")));
    let mut subject =
        Subject { driver: Vec::new(), leasehold: beside.unwrap_or_default(), shows: false, cannot: None };
    let (mut program, mut rest, mut args) = (None, Vec::new(), args);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--cannot" => {
                let abilities = value()?;
                let abilities = abilities.split(',').filter(|ability| !ability.is_empty());
                subject.cannot = Some(abilities.map(str::to_owned).collect());
            }
            "--driver" => subject.driver = words(&value()?),
            "--program" => program = Some(words(&value()?)),
            "--leasehold" => subject.leasehold = value()?.into(),
            "--show" => subject.shows = true,
            _ => rest.push(arg),
        }
    }
    if program.as_ref().unwrap_or(&subject.driver).is_empty() {
        return Err("there is no --driver and no --program".to_owned());
    }
    if !subject.leasehold.is_file() {
        let path = subject.leasehold.display();
        return Err(format!("{path} does not exist: build it with `cargo build -p leasehold-cli`"));
    }
    let mut arguments = Arguments::from_iter(rest);
    arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
    Ok(Told { subject, program, arguments })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn trial(story: Story, subject: &Arc<Subject>, hello: &Value) -> Trial {
    let subject = Arc::clone(subject);
    let reason = story.ability.and_then(|ability| hello["cannot"][ability].as_str().map(str::to_owned));
    let name = match &reason {
        Some(reason) => format!("{} (not applicable: {reason})", story.name),
        None => story.name.to_owned(),
    };
    let tell = move || {
        runtime().block_on(async {
            let mut told = pin!(async { (story.tell)(World::new(&subject, story.needs).await).await });
            let ended = tokio::time::timeout(STORY_TIMEOUT, &mut told).await;
            // The panic drops the driver, which prints the dialogue.
            assert!(ended.is_ok(), "the story took longer than {STORY_TIMEOUT:?}");
        });
        Ok(())
    };
    Trial::test(name, tell)
        .with_kind(hello["hello"].as_str().unwrap_or("client"))
        .with_ignored_flag(reason.is_some())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}
