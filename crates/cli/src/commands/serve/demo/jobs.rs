//! An election, and schedules.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Clock as _, Result, SystemClock};
use leasehold_patterns::schedule::{Cron, Schedule, TickOutcome, TickTime};
use tokio::task::JoinSet;

use super::clients::DemoClients;

/// What there is to see.
pub(super) const DESCRIPTIONS: &[(&str, &str)] = &[
    ("scheduler/eu", "an election: one leader, and two candidates"),
    ("jobs", "schedules: rates runs each minute, backup has failed, newsletter is late"),
];

/// How long one leader leads, in seconds.
const LEADS: (u64, u64) = (240, 420);

pub(super) fn start(clients: &Arc<DemoClients>, tasks: &mut JoinSet<()>) {
    for number in 1..=3 {
        let client = clients.process(&format!("sched-{number}"), 700 + number, "scheduler");
        tasks.spawn(run_candidate(Arc::clone(clients), client, format!("http://sched-{number}:8080")));
    }
    tasks.spawn(rates(Arc::clone(clients)));
    let client = clients.process("batch-1", 519, "cron");
    tasks.spawn(async move {
        if let Err(error) = past_ticks(&client).await {
            tracing::debug!(%error, "the past ticks of the demonstration could not be recorded");
        }
    });
}

/// Runs as a candidate of an election, again and again.
async fn run_candidate(clients: Arc<DemoClients>, client: Client, address: String) {
    let election = client.election("scheduler", "eu").ttl(Duration::from_secs(20));
    loop {
        let led = election.lead(&address, async |_| {
            tokio::time::sleep(Duration::from_secs(clients.random(LEADS.0..=LEADS.1))).await;
        });
        if let Err(error) = led.await {
            tracing::debug!(%error, "a process of the demonstration stopped being a candidate");
            return;
        }
        clients.pause(1_000..=3_000).await;
    }
}

/// Ticks that were run before the demonstration began, by machines that have not run one since.
async fn past_ticks(client: &Client) -> Result<()> {
    let now = TickTime::of(SystemClock.wall());
    let failed = TickOutcome::Failed("exit code 28: no space left on the device".to_owned());
    let ticks = [
        ("backup", "15 2 * * *", 1, failed),
        ("invoices", "0 * * * *", 1, TickOutcome::Succeeded),
        ("newsletter", "*/10 * * * *", 4, TickOutcome::Succeeded),
    ];
    for (job, expression, ticks_ago, outcome) in ticks {
        let schedule = Schedule::parse(expression)?;
        let mut at = schedule.last_until(now);
        for _ in 1..ticks_ago {
            at = at.and_then(|at| schedule.last_until(at.second_before()));
        }
        if let Some(at) = at
            && let Some(claimed) = Cron::new(client, job, schedule).claim(at).await?
        {
            claimed.finish(outcome).await;
        }
    }
    // The invoices run again at their next tick, the other two do not.
    Cron::new(client, "invoices", Schedule::parse("0 * * * *")?)
        .run(async |_| {
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok::<(), String>(())
        })
        .await?;
    Ok(())
}

/// A job that runs each minute, and fails now and then.
async fn rates(clients: Arc<DemoClients>) {
    const FAILS_ONE_OF: u64 = 5;
    let client = clients.process("batch-2", 548, "cron");
    let Ok(schedule) = Schedule::parse("* * * * *") else { return };
    let work = async |_| {
        clients.pause(8_000..=15_000).await;
        match clients.random(1..=FAILS_ONE_OF) {
            1 => Err("the exchange did not reply"),
            _ => Ok(()),
        }
    };
    let Err(error) = Cron::new(&client, "rates", schedule).run(work).await;
    tracing::debug!(%error, "the job of the demonstration stopped");
}
