//! An authorised payment is captured once, although a worker dies at the worst moment.
//!
//! - The lease saves a second call.
//! - The row in the database decides which worker may try.
//! - The payment provider cannot check a fencing token, so it gets an idempotency key made of the payment's
//!   id.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run -p leasehold-patterns --example payment_capture [URL]
//! ```

use std::{collections::HashMap, env, error::Error};

use leasehold::Client;
use rusqlite::{Connection, params};

/// The payment provider. It returns the same receipt for the same idempotency key.
#[derive(Default)]
struct Provider {
    receipts: HashMap<String, String>,
    charged: u32,
}

impl Provider {
    fn capture(&mut self, key: &str, cents: i64) -> String {
        let charged = &mut self.charged;
        let receipt = self.receipts.entry(key.to_owned()).or_insert_with(|| {
            *charged += 1;
            format!("receipt {charged} for {cents}")
        });
        receipt.clone()
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

/// Changes the status if it is one of `from`, with an audit row. False if it is not.
fn change_status(
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
        let captured = leases.lease("payment", "7").run(async |_| {
            // From CAPTURING too: the worker before may have died after the call, before it stored the receipt.
            if !change_status(&mut database, worker, &["AUTHORISED", "CAPTURING"], "CAPTURING", None)? {
                println!("{worker}: nothing to do");
                return Ok(());
            }
            let receipt = provider.capture("payment-7", 1000);
            if dies {
                println!("{worker}: dies after the call, before it stores the receipt");
                return Ok(()); // in reality its lease would run out
            }
            change_status(&mut database, worker, &["CAPTURING"], "CAPTURED", Some(&receipt))?;
            println!("{worker}: {receipt}");
            Ok::<(), rusqlite::Error>(())
        });
        captured.await??; // the first ? is for the lease, the second for the work
    }
    let (status, receipt): (String, String) =
        database
            .query_row("SELECT status, receipt FROM payments", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    println!("{status}, {receipt}, charged {} time", provider.charged);
    assert_eq!((status.as_str(), provider.charged), ("CAPTURED", 1));
    Ok(())
}
