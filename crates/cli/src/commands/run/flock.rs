//! Options of `flock` that `leasehold run` does not have: accepted if they change nothing, refused if the script relies on them.

use clap::Args;

use crate::exit::Failure;

#[derive(Debug, Args)]
pub(super) struct Flock {
    /// Without effect: there is no file descriptor to close
    #[arg(short = 'o', long, hide = true)]
    close: bool,

    /// Without effect: the command always has a process of its own
    #[arg(short = 'F', long, hide = true)]
    no_fork: bool,

    /// Refused: a lease ends with its command
    #[arg(short = 'u', long, hide = true)]
    unlock: bool,
}

impl Flock {
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.unlock {
            return Err(Failure::usage(
                "there is nothing to unlock: the resource is released when its command ends (-u)",
            )
            .hint("leave the line out, and run all that needs the lock in one leasehold run"));
        }
        Ok(())
    }
}
