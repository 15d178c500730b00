//! People who give orders, for the audit trail.

use std::sync::Arc;

use leasehold::{Client, Eviction, OperatorAction, OperatorCommand, Result};
use tokio::task::JoinSet;

use super::clients::DemoClients;

/// The operator, the prefix of the resources, the reason, and the order.
const ORDERS: &[(&str, &str, &str, OperatorAction)] = &[
    (
        "mira",
        "report/",
        "the reporting database is about to be restarted",
        OperatorAction::Ask { within: std::time::Duration::from_secs(30) },
    ),
    (
        "tom",
        "stock/",
        "the warehouse sends the file again: this run imports the old one",
        OperatorAction::Evict(Eviction::AtExpiry),
    ),
    (
        "mira",
        "thumbnail/",
        "media-3 has lost its disk, and its process is stopped",
        OperatorAction::Evict(Eviction::Now),
    ),
];

pub(super) fn start(clients: &Arc<DemoClients>, tasks: &mut JoinSet<()>) {
    tasks.spawn(give_orders(Arc::clone(clients)));
}

/// One of each soon, so that there is something to see; then one every few minutes.
async fn give_orders(clients: Arc<DemoClients>) {
    let client = clients.process("laptop-mira", 90233, "");
    for order in ORDERS {
        clients.pause(1_500..=3_000).await;
        give(&clients, &client, order).await;
    }
    loop {
        clients.pause(60_000..=240_000).await;
        if let Some(order) = clients.one_of(ORDERS) {
            give(&clients, &client, order).await;
        }
    }
}

async fn give(clients: &DemoClients, client: &Client, order: &(&str, &str, &str, OperatorAction)) {
    loop {
        match order_one(clients, client, order).await {
            // Nobody holds anything of this kind just now.
            Ok(false) => clients.pause(500..=1_000).await,
            Ok(true) => return,
            Err(error) => {
                tracing::debug!(%error, "an order of the demonstration was not carried out");
                return;
            }
        }
    }
}

/// Gives the order to one holder. False if there is none.
async fn order_one(
    clients: &DemoClients,
    client: &Client,
    (by, prefix, why, action): &(&str, &str, &str, OperatorAction),
) -> Result<bool> {
    let mut held = client.list(prefix).await?;
    held.retain(|seen| seen.holders.iter().any(|holder| !holder.kept));
    let Some(seen) = clients.one_of(&held) else { return Ok(false) };
    let Some(holder) = seen.holders.first() else { return Ok(false) };
    let command = OperatorCommand::new(seen.resource.clone(), *action, by, why);
    client.order(&command.for_token(holder.token)).await?;
    Ok(true)
}
