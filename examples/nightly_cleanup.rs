//! A scheduled job on three machines: the tick runs once. A lease only saves work, so every item is still
//! changed by a conditional update with an audit row. A second run finds nothing to do.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example nightly_cleanup [URL]
//! ```

use std::{env, error::Error};

use leasehold::Client;
use leasehold_patterns::schedule::{Cron, Schedule, TickOutcome, TickTime, reports};
use rusqlite::{Connection, params};

/// The database with the records.
fn database() -> rusqlite::Result<Connection> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE records (id INTEGER PRIMARY KEY, state TEXT NOT NULL, version INTEGER NOT NULL);
         CREATE TABLE audit (record INTEGER NOT NULL, event TEXT NOT NULL, machine TEXT NOT NULL, tick TEXT NOT NULL);
         INSERT INTO records VALUES (1, 'expired', 1), (2, 'expired', 4), (3, 'kept', 1), (4, 'expired', 2);",
    )?;
    Ok(database)
}

/// Erases expired records. Each is one transaction with its audit row, so a run that is interrupted keeps
/// what it has done.
fn clean_up(database: &mut Connection, machine: &str, tick: TickTime) -> rusqlite::Result<usize> {
    let expired: Vec<(i64, i64)> = database
        .prepare("SELECT id, version FROM records WHERE state = 'expired'")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut cleaned = 0;
    for (id, version) in expired {
        let item = database.transaction()?;
        let changed = item.execute(
            "UPDATE records SET state = 'erased', version = version + 1
             WHERE id = ?1 AND state = 'expired' AND version = ?2",
            params![id, version],
        )?;
        if changed == 1 {
            let row = params![id, machine, tick.to_string()];
            item.execute("INSERT INTO audit VALUES (?1, 'erased', ?2, ?3)", row)?;
            cleaned += 1;
        }
        item.commit()?;
    }
    Ok(cleaned)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let mut database = database()?;
    let tick: TickTime = "2026-11-15T02:30:00Z".parse().map_err(|()| "not a time")?;
    let schedule = Schedule::parse("30 2 * * *")?;
    println!("{schedule} means: {}", schedule.described());

    // `Cron::run` does this at every tick. Here three machines try the same tick, one after the other.
    let mut runs = 0;
    for machine in ["host-a", "host-b", "host-c"] {
        let client = Client::builder(backend.clone()).label(machine).build();
        let Some(claimed) = Cron::new(&client, "cleanup", schedule.clone()).claim(tick).await? else {
            println!("  {machine}: another machine has the tick of {tick}");
            continue;
        };
        let run = client.lease("cron", "cleanup").run(async |_| clean_up(&mut database, machine, tick));
        let cleaned = run.await??;
        claimed.finish(TickOutcome::Succeeded).await;
        println!("  {machine}: ran, {cleaned} records erased");
        runs += 1;
    }
    if runs == 0 {
        println!("the tick is claimed: this program ran before, with the same backend");
        return Ok(());
    }

    let again = clean_up(&mut database, "started by hand", tick)?;
    println!("a second run finds {again} records to erase");
    let rows: i64 = database.query_row("SELECT count(*) FROM audit", [], |row| row.get(0))?;
    println!("the audit has {rows} rows");
    assert_eq!((runs, again, rows), (1, 0, 3));

    let report = &reports(&Client::new(backend)).await?[0];
    println!("{} last succeeded for {:?}", report.job, report.last_success.map(|tick| tick.to_string()));
    Ok(())
}
