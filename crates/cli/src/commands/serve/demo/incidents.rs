//! What goes wrong. Each incident lasts until somebody resolves it, and comes back after [`RETURNS_AFTER`].

use std::{process::Stdio, sync::Arc, time::Duration};

use leasehold::{Client, FencingToken, Lease, OperatorAction, OperatorCommand, Resource, Result};
use tokio::{sync::Barrier, task::JoinSet};

use super::clients::{DemoClients, asked};

/// What there is to see: the resource, and what happens with it.
pub(super) const DESCRIPTIONS: &[(&str, &str)] = &[
    ("deploy/production", "stuck: the holder renews and never finishes, and four wait in the queue"),
    ("export/customers", "gone: its process has crashed, and the lease goes on (export/orders, too)"),
    ("account/7001, 7002", "a possible deadlock: two processes, and each waits for what the other holds"),
    ("import/partner-feed", "paused by an operator, with one waiter"),
    ("import/prices", "silent from time to time: the holder does not renew, and the lease runs out"),
    ("customer/118", "held unusually long: far longer than other customers"),
];

/// The time from the end of an incident until it happens again.
pub(super) const RETURNS_AFTER: Duration = Duration::from_secs(120);

const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn start(clients: &Arc<DemoClients>, tasks: &mut JoinSet<()>) {
    tasks.spawn(repeat(Arc::clone(clients), stuck_queue));
    tasks.spawn(repeat(Arc::clone(clients), crash));
    tasks.spawn(repeat(Arc::clone(clients), deadlock));
    tasks.spawn(repeat(Arc::clone(clients), pause));
    tasks.spawn(repeat(Arc::clone(clients), silence));
    tasks.spawn(repeat(Arc::clone(clients), slow_work));
}

async fn repeat<F: Future<Output = Result<()>> + Send>(
    clients: Arc<DemoClients>,
    incident: impl Fn(Arc<DemoClients>) -> F,
) {
    /// After an error: the store may be busy.
    const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);
    loop {
        match incident(Arc::clone(&clients)).await {
            Ok(()) => tokio::time::sleep(RETURNS_AFTER).await,
            Err(error) => {
                tracing::debug!(%error, "an incident of the demonstration could not happen");
                tokio::time::sleep(TRY_AGAIN_AFTER).await;
            }
        }
    }
}

/// A process that waits without a limit, and then works for a while.
fn wait_in_queue(
    tasks: &mut JoinSet<()>,
    clients: &Arc<DemoClients>,
    client: &Client,
    (kind, id): (&str, &str),
) {
    let (clients, request) = (Arc::clone(clients), client.lease(kind, id).wait_forever());
    tasks.spawn(async move {
        if let Ok(lease) = request.acquire().await {
            clients.work(lease, 3_000..=6_000).await;
        }
    });
}

async fn all_done(mut tasks: JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

/// A holder that renews and never finishes, also when it is asked to.
async fn stuck_queue(clients: Arc<DemoClients>) -> Result<()> {
    let name = ("deploy", "production");
    let holder = clients.process("build-7", 4127, "deploy 2026.11.3");
    let lease = holder.lease(name.0, name.1).acquire().await?;
    let mut queue = JoinSet::new();
    let waiters = [
        ("build-2", 3981, "deploy 2026.11.4"),
        ("build-5", 4410, "hotfix login"),
        ("laptop-mira", 90212, "deploy by hand"),
        ("build-1", 2718, "deploy 2026.11.5"),
    ];
    for (host, pid, label) in waiters {
        wait_in_queue(&mut queue, &clients, &clients.process(host, pid, label), name);
        clients.pause(300..=900).await;
    }
    lease.ended().await;
    drop(lease);
    all_done(queue).await;
    Ok(())
}

/// A process of this host that ends without a release.
async fn crash(clients: Arc<DemoClients>) -> Result<()> {
    let Some(pid) = process_that_has_ended().await else { return Ok(()) };
    let crashed = clients.local_process(pid, "nightly export");
    let names = [("export", "customers"), ("export", "orders")];
    let mut left = Vec::new();
    for (kind, id) in names {
        let lease = crashed.lease(kind, id).ttl(HOUR).wait_forever().acquire().await?;
        left.push(lease.detach()?.token());
    }
    let mut queue = JoinSet::new();
    for (host, pid, label) in [("export-2", 611, "export for tax"), ("export-3", 587, "export for search")] {
        wait_in_queue(&mut queue, &clients, &clients.process(host, pid, label), names[0]);
        clients.pause(300..=900).await;
    }
    for (name, token) in names.into_iter().zip(left) {
        until_ended(&crashed, name, token).await;
    }
    all_done(queue).await;
    Ok(())
}

/// The id of a process that was there a moment ago. `None` if none can be started.
async fn process_that_has_ended() -> Option<u32> {
    let mut child = tokio::process::Command::new("/proc/self/exe")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let pid = child.id();
    child.wait().await.ok()?;
    pid
}

/// Waits until this grant has ended.
async fn until_ended(client: &Client, (kind, id): (&str, &str), token: FencingToken) {
    const EVERY: Duration = Duration::from_secs(2);
    loop {
        if let Ok(seen) = client.look(kind, id).await
            && !seen.holders.iter().any(|by| by.token == token)
        {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Two processes that each hold an account and wait for the other one.
async fn deadlock(clients: Arc<DemoClients>) -> Result<()> {
    let both_hold = Arc::new(Barrier::new(2));
    let mut tasks = JoinSet::new();
    for (host, pid, first, second) in
        [("billing-1", 1203, "7001", "7002"), ("billing-2", 1187, "7002", "7001")]
    {
        let client = clients.process(host, pid, &format!("transfer {first} to {second}"));
        let (clients, both_hold) = (Arc::clone(&clients), Arc::clone(&both_hold));
        let second = client.lease("account", second).wait_forever();
        let first = client.lease("account", first).wait_forever();
        tasks.spawn(async move {
            let held = first.acquire().await;
            both_hold.wait().await;
            if let Ok(held) = held {
                transfer(&clients, held, async || second.acquire().await).await;
            }
        });
    }
    all_done(tasks).await;
    Ok(())
}

/// Waits for the second account while it holds the first one. If the first one is lost, it gives up.
async fn transfer(clients: &DemoClients, held: Lease, acquire: impl AsyncFnOnce() -> Result<Lease>) {
    if let Ok(Ok(second)) = held.hold(acquire()).await {
        clients.work(second, 2_000..=3_000).await;
    }
    drop(held.release().await);
}

/// An operator pauses a resource, while a claim waits for it.
async fn pause(clients: Arc<DemoClients>) -> Result<()> {
    let name = ("import", "partner-feed");
    let operator = clients.process("laptop-mira", 90233, "");
    let action = OperatorAction::Pause { lasting: 4 * HOUR };
    let why = "the partner sends every order twice: paused until they have repaired it";
    operator.order(&OperatorCommand::new(Resource::new(name.0, name.1)?, action, "mira", why)).await?;
    let waiter = clients.process("import-5", 2950, "partner feed").lease(name.0, name.1).wait_forever();
    clients.work(waiter.acquire().await?, 3_000..=6_000).await;
    Ok(())
}

/// A holder that stops renewing, and a claim that takes over when the lease has run out.
async fn silence(clients: Arc<DemoClients>) -> Result<()> {
    const TTL: Duration = Duration::from_secs(60);
    let name = ("import", "prices");
    let lease =
        clients.process("import-6", 3101, "price feed").lease(name.0, name.1).ttl(TTL).acquire().await?;
    clients.pause(5_000..=10_000).await;
    drop(lease.detach());
    let next = clients.process("import-7", 3164, "price feed").lease(name.0, name.1).wait_forever();
    clients.work(next.acquire().await?, 5_000..=9_000).await;
    Ok(())
}

/// A holder that needs far longer than others of its kind. It finishes when it is asked to.
async fn slow_work(clients: Arc<DemoClients>) -> Result<()> {
    let slow = clients.process("web-9", 1377, "merge duplicates");
    let lease = slow.lease("customer", "118").acquire().await?;
    tokio::select! {
        _ = lease.ended() => {}
        () = asked(&lease) => clients.pause(1_000..=3_000).await,
    }
    drop(lease.release().await);
    Ok(())
}
