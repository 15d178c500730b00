//! `leasehold completions SHELL`

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::{args::Cli, exit::Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "For bash: leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold"
)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "leasehold", &mut script);
        output::print(&script).map(|()| ExitCode::SUCCESS)
    }
}
