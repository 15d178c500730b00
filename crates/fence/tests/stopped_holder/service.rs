//! The HTTP service as a process of its own, which is killed: its marks outlive it.

use std::{env, path::Path, process::ExitCode, sync::Arc};

use leasehold_core::{FencingToken, Pass, Resource};
use leasehold_testkit::ClientProcess;

use crate::{downstream, servers};

/// The first argument that makes this program a service.
pub(crate) const MODE: &str = "--service";

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [marks] = arguments else { return ExitCode::from(64) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("waiting");
    runtime.block_on(async {
        println!("serving {}", servers::serve(Path::new(marks), Arc::default()).await);
        std::future::pending().await
    })
}

pub(crate) fn killed_service_keeps_its_marks() {
    let folder = tempfile::tempdir().unwrap();
    let marks = folder.path().join("marks.db").display().to_string();
    let start = || {
        let service = ClientProcess::start_with(&env::current_exe().unwrap(), &[MODE, &marks]);
        let address = format!("http://{}", service.expect_line("serving"));
        (service, address)
    };
    let pass = |number| Pass::new(Resource::new("report", "42").unwrap(), FencingToken::new(number).unwrap());
    let (service, address) = start();
    downstream::write_http(&address, "42", &pass(34), "B").unwrap();
    service.kill();
    let (_service, address) = start();
    let late = downstream::write_http(&address, "42", &pass(33), "A").unwrap_err();
    assert_eq!(late.stale_token().unwrap(), (pass(33).token, pass(34).token));
    downstream::write_http(&address, "42", &pass(35), "C").unwrap();
}
