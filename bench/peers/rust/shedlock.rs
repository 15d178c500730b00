//! A row in a table, as ShedLock has it: one statement to lock, one to unlock. No queue, no renewal, no fence.

use tokio_postgres::{Client, Statement};

use crate::{
    advisory::{connect, prepare},
    lock::Lock,
};

const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS shedlock (
  name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, locked_at timestamp NOT NULL,
  locked_by varchar(255) NOT NULL)";
const LOCK: &str = "\
INSERT INTO shedlock (name, lock_until, locked_at, locked_by)
VALUES ($1, timezone('utc', now()) + interval '30 s', timezone('utc', now()), $2)
ON CONFLICT (name) DO UPDATE
SET lock_until = excluded.lock_until, locked_at = excluded.locked_at, locked_by = excluded.locked_by
WHERE shedlock.lock_until <= timezone('utc', now())";
const UNLOCK: &str = "\
UPDATE shedlock SET lock_until = timezone('utc', now()) WHERE name = $1 AND locked_by = $2";

/// A connection for each task.
pub(crate) struct ShedLock {
    sessions: Vec<Session>,
}

struct Session {
    client: Client,
    owner: String,
    lock: Statement,
    unlock: Statement,
}

impl ShedLock {
    pub(crate) async fn connect(url: &str, tasks: usize) -> Result<ShedLock, String> {
        let first = connect(url).await?;
        first.batch_execute(TABLE).await.map_err(|error| format!("{TABLE}: {error}"))?;
        let mut sessions = Vec::with_capacity(tasks);
        for task in 0..tasks {
            let client = connect(url).await?;
            let (lock, unlock) = (prepare(&client, LOCK).await?, prepare(&client, UNLOCK).await?);
            sessions.push(Session { client, owner: format!("host-{task}"), lock, unlock });
        }
        Ok(ShedLock { sessions })
    }
}

impl Lock for ShedLock {
    type Held = ();

    async fn acquire(&self, task: usize, resource: &str) -> Result<(), String> {
        let session = &self.sessions[task];
        let changed = session.client.execute(&session.lock, &[&resource, &session.owner]).await;
        match changed.map_err(|error| error.to_string())? {
            1 => Ok(()),
            _ => Err(format!("{resource} is held")),
        }
    }

    async fn release(&self, task: usize, resource: &str, (): ()) -> Result<(), String> {
        let session = &self.sessions[task];
        let changed = session.client.execute(&session.unlock, &[&resource, &session.owner]).await;
        match changed.map_err(|error| error.to_string())? {
            1 => Ok(()),
            _ => Err(format!("{resource} was not held")),
        }
    }

    fn is_alive((): &()) -> bool {
        false
    }
}
