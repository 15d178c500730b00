//! The servers as they are now, for people: the one server of the URL, or each of several.
//!
//! One server is asked on the connections of the requests: a server that has no room for another connection still serves
//! those. Of several hosts, those connections lead to one that takes writes, whichever that is. So each host is asked on a
//! connection of its own, which is closed afterwards.

use std::sync::Arc;

use leasehold_core::{Error, ErrorKind, NodeStatus, Page, Result, WallTime};
use leasehold_support::ask_nodes::{
    NodeQuestion, RoundTrip, ask_all, name_of, not_counting, standing_by, timed, timed_over_connection,
};
use tokio_postgres::Row;

use crate::{
    backend::Postgres,
    config::Config,
    connection::{Connection, Statement},
    connections::Connections,
    reply::{Columns as _, first_row},
};

const NODE_STATE: &str = include_str!("../sql/node_state.sql");

/// The columns of `node_state.sql`.
mod column {
    pub(super) const MICROS: usize = 0;
    pub(super) const IS_STANDBY: usize = 1;
    pub(super) const IS_READ_ONLY: usize = 2;
}

impl Postgres {
    pub(crate) async fn nodes(&self) -> Page {
        let (connections, config) = (&self.connections, &self.connections.config);
        let questions = match config.hosts.as_slice() {
            [_] => vec![NodeQuestion::new(name(config, 0), ask_in_use(connections))],
            hosts => {
                let question = |host| NodeQuestion::new(name(config, host), ask_host(connections, host));
                (0..hosts.len()).map(question).collect()
            }
        };
        Page::Nodes(ask_all(&*self.environment, questions).await)
    }
}

/// Without the user and the password.
fn name(config: &Config, host: usize) -> String {
    let (host, port) = &config.hosts[host];
    format!("{}/{}", name_of(host, *port), config.database)
}

/// Asks the only server.
async fn ask_in_use(connections: &Arc<Connections>) -> Result<NodeStatus> {
    let is_broken = |error: &Error| error.kind() == ErrorKind::Unavailable;
    let ask = || connections.query(NODE_STATE, &[]);
    let (rows, trip) = timed_over_connection(&*connections.environment, ask, is_broken).await?;
    status(name(&connections.config, 0), &rows, trip)
}

/// Asks one host of several.
async fn ask_host(connections: &Connections, host: usize) -> Result<NodeStatus> {
    let config = connections.config.of_any_role(host);
    let opening = Connection::open(&config, &connections.environment, &connections.ids, None);
    let connection = ClosedAfterwards(opening.await?);
    let statement = Statement::new(NODE_STATE, &[]);
    let asked = connection.0.query(&statement, config.timeout);
    let (rows, trip) = timed(&*connections.environment, asked).await;
    status(name(&connections.config, host), &rows.map_err(|failed| failed.error)?, trip)
}

/// A connection that is closed at once when it is dropped: the server may be mute, and would keep it open for long.
struct ClosedAfterwards(Connection);

impl Drop for ClosedAfterwards {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn status(name: String, rows: &[Row], trip: RoundTrip) -> Result<NodeStatus> {
    let row = first_row(rows)?;
    let micros: i64 = row.read(column::MICROS)?;
    let time = u64::try_from(micros).ok().map(WallTime::from_micros);
    let status = trip.answered(name, time);
    if row.read(column::IS_STANDBY)? {
        return Ok(standing_by(status, "it is a standby, in recovery: it takes no writes"));
    }
    if row.read(column::IS_READ_ONLY)? {
        return Ok(not_counting(status, "it is set to read only (default_transaction_read_only)"));
    }
    Ok(status)
}
