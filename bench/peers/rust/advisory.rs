//! PostgreSQL's advisory locks: held by a session, so each task has a connection of its own.

use tokio_postgres::{Client, NoTls, Statement};

use crate::lock::Lock;

/// A connection for each task.
pub(crate) struct Advisory {
    sessions: Vec<Session>,
}

struct Session {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

impl Advisory {
    pub(crate) async fn connect(url: &str, tasks: usize) -> Result<Advisory, String> {
        let mut sessions = Vec::with_capacity(tasks);
        for _ in 0..tasks {
            let client = connect(url).await?;
            let lock = prepare(&client, "SELECT pg_advisory_lock(hashtextextended($1, 0))").await?;
            let unlock = prepare(&client, "SELECT pg_advisory_unlock(hashtextextended($1, 0))").await?;
            sessions.push(Session { client, lock, unlock });
        }
        Ok(Advisory { sessions })
    }
}

impl Lock for Advisory {
    type Held = ();

    async fn acquire(&self, task: usize, resource: &str) -> Result<(), String> {
        let session = &self.sessions[task];
        session
            .client
            .query_one(&session.lock, &[&resource])
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    }

    async fn release(&self, task: usize, resource: &str, (): ()) -> Result<(), String> {
        let session = &self.sessions[task];
        let row = session.client.query_one(&session.unlock, &[&resource]).await;
        let unlocked: bool = row.map_err(|error| error.to_string())?.get(0);
        if unlocked { Ok(()) } else { Err(format!("{resource} was not held")) }
    }

    fn is_alive((): &()) -> bool {
        false
    }
}

/// Opens a connection, and drives it in a task of its own.
pub(crate) async fn connect(url: &str) -> Result<Client, String> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.map_err(|error| format!("cannot connect: {error}"))?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) async fn prepare(client: &Client, sql: &str) -> Result<Statement, String> {
    client.prepare(sql).await.map_err(|error| format!("{sql}: {error}"))
}
