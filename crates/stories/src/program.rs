//! The same program in each language (docs/languages.md): what it must do.
//!
//! It waits up to a second for `report/42`, prints the token under which it works, and releases. If others hold the lease, it says who
//! on standard error, and exits with 75.

use std::{
    env,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
};

use libtest_mimic::{Arguments, Conclusion, Trial};
use tokio::process::Command;

use crate::{
    rival::Rival,
    runtime,
    server::{Server, ServerOptions},
    world::new_folder,
};

/// The exit code for "others hold it".
const BUSY: i32 = 75;
const RESOURCE: &str = "report/42";

/// Runs the program in the two situations.
pub(crate) fn run(words: Vec<String>, leasehold: PathBuf, arguments: &Arguments) -> Conclusion {
    let program = Arc::new((words, leasehold));
    let again = Arc::clone(&program);
    let trials = vec![
        Trial::test("free", move || {
            runtime().block_on(free(&program.0, &program.1));
            Ok(())
        }),
        Trial::test("busy", move || {
            runtime().block_on(busy(&again.0, &again.1));
            Ok(())
        }),
    ];
    libtest_mimic::run(arguments, trials)
}

/// The program works under a token, a higher one each time, and leaves nothing behind.
async fn free(words: &[String], leasehold: &Path) {
    let (_folder, server) = start(leasehold).await;
    let rival = Rival::new(server.port, None);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let output = execute(words, leasehold, server.port).await;
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let token =
            text.trim().strip_prefix("exported with token ").and_then(|token| token.parse::<u64>().ok());
        tokens.push(token.unwrap_or_else(|| panic!("it should print its token: {output:?}")));
        assert!(rival.holders(RESOURCE).await.is_empty(), "it should release");
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// The program says who holds the lease, and leaves no place in the queue.
async fn busy(words: &[String], leasehold: &Path) {
    let (_folder, server) = start(leasehold).await;
    let rival = Rival::new(server.port, None);
    rival.try_acquire(RESOURCE).await.granted();
    let output = execute(words, leasehold, server.port).await;
    assert_eq!(output.status.code(), Some(BUSY), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the rival"), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("exported"), "{output:?}");
    rival.await_queue(RESOURCE, 0).await;
    assert!(rival.still_holds(RESOURCE).await);
}

/// A server and its folder, which must be dropped after it: as the first of two variables.
async fn start(leasehold: &Path) -> (tempfile::TempDir, Server) {
    let folder = new_folder();
    let store = format!("sqlite:{}", folder.path().join("leases.db").display());
    let options = ServerOptions { program: leasehold.to_path_buf(), store, tokens: None, more: Vec::new() };
    (folder, Server::start(&options).await)
}

async fn execute(words: &[String], leasehold: &Path, port: u16) -> Output {
    let (program, args) = words.split_first().expect("the arguments were checked: there is a program");
    let before = env::var_os("PATH").unwrap_or_default();
    let folders = leasehold.parent().map(Path::to_path_buf).into_iter().chain(env::split_paths(&before));
    let path = env::join_paths(folders).unwrap_or(before);
    let mut command = Command::new(program);
    command.args(args).env("PATH", path).env("LEASEHOLD_URL", format!("http://127.0.0.1:{port}"));
    command.output().await.unwrap_or_else(|error| panic!("cannot run {words:?}: {error}"))
}
