//! `leasehold renew`: renews a lease of `leasehold acquire`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{
    Backend, Clock as _, FinishRequest, GoneReason, Query, RenewRequest, Renewal, Renewed, Resource,
    SystemClock, WallTime,
};

use super::Access;
use crate::{
    args::{Global, duration},
    claim,
    exit::{Exit, Failure},
    lease_args::{LeaseArgs, LeaseReference, Named},
    lease_file::RecordedState,
    output::{self, Output},
    text,
    view::millis,
};

/// Renew a lease of leasehold acquire
///
/// It lasts for its whole ttl again, from now on. If it is lost, the exit code is 79: stop the work that it was for.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold renew -f /run/backup.lease || exit\n  LEASEHOLD_OWNER=$lease leasehold renew backup || exit"
)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    /// How long it lasts from now on. 1s to 24h [default: the ttl that it was acquired with]
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,
}

impl Renew {
    pub(crate) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let typed = self.ttl.map(claim::check_ttl).transpose()?;
        let mut lease = match self.lease.find(global, output)? {
            Named::Lease(lease) => lease,
            Named::Released(file) => {
                let message = format!("the lease of {} was released", file.path().display());
                return Err(Failure::new(Exit::Lost, "lost", message).hint("acquire it again"));
            }
        };
        let backend = lease.context.open(Access::Read).await?;
        let info = backend.info();
        if !info.capabilities.own_ttl {
            let message = format!(
                "{}: {} ends a lease with the session of the process that acquired it: only its keeper renews it",
                lease.claim.resource, info.name
            );
            return Err(Failure::config(message).hint("leave renew out: acquire --keep renews by itself"));
        }
        let ttl = match typed.or(lease.ttl) {
            Some(ttl) => ttl,
            None => stored_ttl(&*backend, &lease).await?,
        };
        // Read before the request is sent: the store counts from a later moment.
        let now = SystemClock.wall();
        let requests = [RenewRequest::new(lease.claim.clone(), ttl)];
        match lease.call(backend.renew(&requests)).await? {
            Renewal::Renewed(renewed) if is_same_grant(&lease, &renewed) => {
                self.renewed(&mut lease, &renewed, ttl, now, output)
            }
            Renewal::Gone { why: GoneReason::Evicted } => {
                Err(lost(&mut lease, "an operator evicted it: stop the work that it was for"))
            }
            _ => Err(lost(
                &mut lease,
                "the lease is lost: it ran out or was released, or the owner token is not that of the holder",
            )),
        }
    }

    fn renewed(
        &self,
        lease: &mut LeaseReference,
        renewed: &Renewed,
        ttl: Duration,
        now: WallTime,
        output: Output,
    ) -> Result<ExitCode, Failure> {
        let resource = lease.claim.resource.clone();
        // ADR 0005: the deadline is early by 1 % of the ttl and 2 ms, as in the engine.
        let left =
            renewed.remaining.saturating_sub(ttl.max(renewed.remaining) / 100 + Duration::from_millis(2));
        let deadline = now.after(left);
        if renewed.evicting {
            let message = format!(
                "{resource}: an operator evicted it, so it is not renewed: it lasts until {}",
                text::exact_time(deadline)
            );
            return Err(
                Failure::new(Exit::Lost, "lost", message).hint("stop the work that it was for before that")
            );
        }
        if let Some((file, record)) = &mut lease.file {
            (record.deadline, record.held.ttl, record.state) = (deadline, ttl, RecordedState::Held);
            file.update(record).map_err(|error| {
                Failure::config(format!(
                    "the lease file {} cannot be written: {error}",
                    file.path().display()
                ))
                .hint("the lease was renewed all the same")
            })?;
        }
        if output.json {
            let object = as_json(&resource, renewed, ttl, left, deadline);
            return output::print(format!("{object}\n").as_bytes()).map(|()| ExitCode::SUCCESS);
        }
        if let Some(request) = &renewed.asked {
            output.note(&format!("{resource}: {}", asked_text(request)));
        }
        if output.shows_progress() {
            output.note(&format!(
                "{resource}: held until {} ({})",
                text::exact_time(deadline),
                text::span(left)
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether this is the grant of the file. Another token is another grant.
fn is_same_grant(lease: &LeaseReference, renewed: &Renewed) -> bool {
    lease.file.as_ref().is_none_or(|(_, record)| record.held.token == renewed.token.to_string())
}

fn lost(lease: &mut LeaseReference, why: &str) -> Failure {
    if let Some((file, record)) = &mut lease.file {
        record.state = RecordedState::Lost;
        let _ = file.update(record); // the exit code says the same
    }
    Failure::new(Exit::Lost, "lost", format!("{}: {why}", lease.claim.resource)).hint("acquire it again")
}

/// The ttl that the store knows, if all holders have the same: which of them is meant, only the owner token says.
async fn stored_ttl(backend: &dyn Backend, lease: &LeaseReference) -> Result<Duration, Failure> {
    let resource = &lease.claim.resource;
    let query = Query::One(resource.clone());
    let page = lease.call(async { vec![backend.inspect(&query).await] }).await?;
    let snapshots = page.into_snapshots();
    let mut ttls = snapshots.iter().flat_map(|snapshot| &snapshot.holders).map(|held| held.ttl);
    match ttls.next() {
        // Nobody holds it: any ttl does, because nothing is revived.
        None => Ok(claim::TTL_MIN),
        Some(Some(ttl)) if ttls.all(|other| other == Some(ttl)) => Ok(ttl),
        Some(_) => Err(Failure::usage(format!("{resource}: the ttl of this lease is not known"))
            .hint("say how long it lasts from now on with --ttl, or use a lease file (-f)")),
    }
}

fn asked_text(request: &FinishRequest) -> String {
    let (by, why) = (text::printable(&request.by), text::printable(&request.why));
    format!("{by} asks to finish within {}: {why}", text::span(request.within))
}

fn as_json(
    resource: &Resource,
    renewed: &Renewed,
    ttl: Duration,
    left: Duration,
    deadline: WallTime,
) -> serde_json::Value {
    let asked = renewed.asked.as_ref().map(|request| {
        serde_json::json!({ "by": &*request.by, "why": &*request.why, "within_ms": millis(request.within) })
    });
    serde_json::json!({
        "resource": resource.to_string(),
        "ttl_ms": millis(ttl),
        "remaining_ms": millis(left),
        "deadline": text::exact_time(deadline),
        "asked": asked,
    })
}
