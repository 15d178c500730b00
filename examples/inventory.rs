//! One item in stock, and two buyers. The rule that stock is never below zero lives where the stock is; the lease in front
//! only keeps the second buyer from trying in vain. Without it everything stays right: the last part shows that.
//!
//! ```text
//! cargo run -p leasehold-patterns --example inventory [URL]
//! ```

use std::{
    env,
    error::Error,
    sync::{Arc, Mutex},
};

use leasehold::Client;
use rusqlite::Connection;
use tokio::task::JoinSet;

type Shop = Arc<Mutex<Connection>>;

fn shop(stock: i64) -> rusqlite::Result<Shop> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE items (id TEXT PRIMARY KEY, stock INTEGER NOT NULL CHECK (stock >= 0));",
    )?;
    database.execute("INSERT INTO items VALUES ('lamp', ?1)", [stock])?;
    Ok(Arc::new(Mutex::new(database)))
}

/// The decision: one conditional update. No row: somebody else had the last one.
fn buy(shop: &Shop) -> rusqlite::Result<bool> {
    let database = shop.lock().expect("nobody panics here");
    Ok(database.execute("UPDATE items SET stock = stock - 1 WHERE id = 'lamp' AND stock > 0", [])? == 1)
}

fn stock(shop: &Shop) -> rusqlite::Result<i64> {
    shop.lock().expect("nobody panics here").query_row("SELECT stock FROM items", [], |row| row.get(0))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let lamps = shop(1)?;
    let mut buyers = JoinSet::new();
    for name in ["anna", "berta"] {
        let (leases, lamps) = (Client::builder(backend.clone()).label(name).build(), Arc::clone(&lamps));
        buyers.spawn(async move {
            let lease = leases.lease("inventory", "lamp").acquire().await.expect("there is a store");
            let bought = buy(&lamps).expect("there is a table");
            lease.release().await.expect("it was held");
            println!("{name} {}", if bought { "has the last lamp" } else { "is told that it is sold out" });
            bought
        });
    }
    let sold = buyers.join_all().await.into_iter().filter(|bought| *bought).count();
    println!("stock: {}", stock(&lamps)?);
    assert_eq!((sold, stock(&lamps)?), (1, 0));

    // As if every lease had been lost: ten buyers at once, three lamps.
    let lamps = shop(3)?;
    let buyers = (0..10).map(|_| {
        std::thread::spawn({
            let lamps = Arc::clone(&lamps);
            move || buy(&lamps).expect("there is a table")
        })
    });
    let sold =
        buyers.collect::<Vec<_>>().into_iter().filter_map(|buyer| buyer.join().ok()).filter(|bought| *bought);
    assert_eq!((sold.count(), stock(&lamps)?), (3, 0));
    println!("without leases: three of ten were served, stock: {}", stock(&lamps)?);
    Ok(())
}
