//! An authorised payment is captured once, although the worker dies at the worst moment. The lease in front saves a second
//! call; the row decides who may try; and the provider, who can check no token, gets an idempotency key made of the
//! payment's id.
//!
//! ```text
//! cargo run -p leasehold-patterns --example payment_capture [URL]
//! ```

use std::{collections::HashMap, env, error::Error};

use leasehold::Client;
use rusqlite::{Connection, params};

/// Somebody else's system: it remembers keys, as good ones do.
#[derive(Default)]
struct Provider {
    answers: HashMap<String, String>,
    charged: u32,
}

impl Provider {
    fn capture(&mut self, key: &str, cents: i64) -> String {
        let charged = &mut self.charged;
        let answer = self.answers.entry(key.to_owned()).or_insert_with(|| {
            *charged += 1;
            format!("receipt {charged} for {cents}")
        });
        answer.clone()
    }
}

fn database() -> rusqlite::Result<Connection> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE payments (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL, status TEXT NOT NULL, receipt TEXT);
         CREATE TABLE audit (payment INTEGER NOT NULL, event TEXT NOT NULL, worker TEXT NOT NULL);
         INSERT INTO payments VALUES (7, 1000, 'AUTHORISED', NULL);",
    )?;
    Ok(database)
}

/// A conditional change with its audit row, or nothing.
fn step(
    database: &mut Connection,
    worker: &str,
    from: &[&str],
    to: &str,
    receipt: Option<&str>,
) -> rusqlite::Result<bool> {
    let transaction = database.transaction()?;
    let sql = "UPDATE payments SET status = ?1, receipt = coalesce(?2, receipt) WHERE id = 7 AND status IN (?3, ?4)";
    let from = [from.first().unwrap_or(&""), from.get(1).unwrap_or(&"")];
    let changed = transaction.execute(sql, params![to, receipt, from[0], from[1]])? == 1;
    if changed {
        transaction.execute("INSERT INTO audit VALUES (7, ?1, ?2)", params![to, worker])?;
    }
    transaction.commit()?;
    Ok(changed)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let (mut database, mut provider) = (database()?, Provider::default());

    for (worker, dies) in [("worker-1", true), ("worker-2", false), ("worker-3", false)] {
        let leases = Client::builder(backend.clone()).label(worker).build();
        let lease = leases.lease("payment", "7").acquire().await?;
        // CAPTURING too: whoever was there before may have died after the call and before its answer was written down.
        if !step(&mut database, worker, &["AUTHORISED", "CAPTURING"], "CAPTURING", None)? {
            println!("{worker}: nothing to do");
            lease.release().await?;
            continue;
        }
        let receipt = lease.hold(async { provider.capture("payment-7", 1000) }).await?;
        if dies {
            println!("{worker}: dies after the call, before the answer is written down");
            lease.release().await?; // in earnest, its lease would run out
            continue;
        }
        step(&mut database, worker, &["CAPTURING"], "CAPTURED", Some(&receipt))?;
        println!("{worker}: {receipt}");
        lease.release().await?;
    }
    let (status, receipt): (String, String) =
        database
            .query_row("SELECT status, receipt FROM payments", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    println!("{status}, {receipt}, charged {} time", provider.charged);
    assert_eq!((status.as_str(), provider.charged), ("CAPTURED", 1));
    Ok(())
}
