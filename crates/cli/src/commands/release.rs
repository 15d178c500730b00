//! `leasehold release`: releases a lease of `leasehold acquire`.

use std::process::ExitCode;

use clap::Args;
use leasehold::{ReleaseRequest, Released};

use super::{
    Access,
    acquire::{KeeperReply, ask_to_release},
};
use crate::{
    args::Global,
    exit::{Exit, Failure},
    lease_args::{LeaseArgs, LeaseReference, Named},
    lease_file::RecordedState,
    output::{self, Output},
};

/// Release a lease of leasehold acquire
///
/// If the lease had ended before, the exit code is 79: another holder may have been at work at the same time. A lease file that was
/// released can be released again, with exit code 0.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold release -f /run/backup.lease\n  LEASEHOLD_OWNER=$lease leasehold release backup"
)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
}

impl Release {
    pub(crate) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let mut lease = match self.lease.find(global, output)? {
            Named::Lease(lease) => lease,
            Named::Released(file) => {
                output.note(&format!("the lease of {} was released before", file.path().display()));
                return Ok(ExitCode::SUCCESS);
            }
        };
        // The keeper first: it would take a release that it does not know of for a loss.
        let released = match ask_to_release(lease.claim.owner).await {
            KeeperReply::Released => Released::Now, // it has written the file, too
            KeeperReply::AlreadyGone => Released::AlreadyGone,
            KeeperReply::NoKeeper => release(&lease).await?,
            KeeperReply::Failed(why) => return Err(failed(&lease, &why)),
        };
        if released == Released::AlreadyGone {
            return Err(gone(&mut lease));
        }
        if let Some((file, record)) = &lease.file {
            file.released(&record.held).map_err(|error| {
                Failure::config(format!(
                    "the lease file {} cannot be written: {error}",
                    file.path().display()
                ))
                .hint("the lease was released all the same")
            })?;
        }
        if output.json {
            let object =
                serde_json::json!({ "resource": lease.claim.resource.to_string(), "released": true });
            output::print(format!("{object}\n").as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn release(lease: &LeaseReference) -> Result<Released, Failure> {
    let backend = lease.context.open(Access::Read).await?;
    let info = backend.info();
    if !info.capabilities.own_ttl {
        let message = format!(
            "{}: on {} only its keeper can release it, and there is none on this host for this owner token",
            lease.claim.resource, info.name
        );
        return Err(Failure::config(message).hint("release it on the host where it was acquired"));
    }
    let requests = [ReleaseRequest::new(lease.claim.clone())];
    lease.call(backend.release(&requests)).await
}

fn failed(lease: &LeaseReference, why: &str) -> Failure {
    let message = format!("{}: {why}", lease.claim.resource);
    Failure::new(Exit::Unavailable, leasehold::ErrorKind::Unavailable.as_str(), message)
        .hint("the lease ends with its ttl")
}

fn gone(lease: &mut LeaseReference) -> Failure {
    if let Some((file, record)) = &mut lease.file {
        record.state = RecordedState::Lost;
        let _ = file.update(record); // the exit code says the same
    }
    let message = format!(
        "{}: there was no lease to release: it ran out or was released before, or the owner token is not that of the holder",
        lease.claim.resource
    );
    Failure::new(Exit::Lost, "lost", message)
        .hint("check whether another holder was at work at the same time")
}
