//! A conditional update with a lease in front of it: one item in stock, two buyers.
//!
//! The database enforces the rule that stock is never below zero. The lease only saves the second buyer a
//! vain attempt. The second part buys without leases, and the stock is still right.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
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

/// Buys one item, by a conditional update. False if there is none left.
fn buy(shop: &Shop) -> rusqlite::Result<bool> {
    let database = shop.lock().expect("no thread panics with the lock");
    Ok(database.execute("UPDATE items SET stock = stock - 1 WHERE id = 'lamp' AND stock > 0", [])? == 1)
}

fn stock(shop: &Shop) -> rusqlite::Result<i64> {
    shop.lock()
        .expect("no thread panics with the lock")
        .query_row("SELECT stock FROM items", [], |row| row.get(0))
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
            let request = leases.lease("inventory", "lamp");
            let bought = request.run(async |_| buy(&lamps)).await.expect("the backend works");
            let bought = bought.expect("the table exists");
            println!("{name} {}", if bought { "bought the last lamp" } else { "was too late: sold out" });
            bought
        });
    }
    let sold = buyers.join_all().await.into_iter().filter(|bought| *bought).count();
    println!("stock: {}", stock(&lamps)?);
    assert_eq!((sold, stock(&lamps)?), (1, 0));

    // Without leases, as if every lease had been lost: ten buyers at once, three lamps.
    let lamps = shop(3)?;
    let buyers = (0..10).map(|_| {
        std::thread::spawn({
            let lamps = Arc::clone(&lamps);
            move || buy(&lamps).expect("the table exists")
        })
    });
    let sold =
        buyers.collect::<Vec<_>>().into_iter().filter_map(|buyer| buyer.join().ok()).filter(|bought| *bought);
    assert_eq!((sold.count(), stock(&lamps)?), (3, 0));
    println!("without leases: three of ten buyers got a lamp, stock: {}", stock(&lamps)?);
    Ok(())
}
