//! A read-write lock: many search an index while nobody rebuilds it, and the writer becomes a reader without
//! a gap.
//!
//! With a URL it uses that backend (`redis://…`, `sqlite:…`); without one, leases are kept in memory.
//!
//! ```text
//! cargo run --example search_index [URL]
//! ```

#![expect(clippy::disallowed_methods, reason = "a program may sleep")]

use std::{env, time::Duration};

use leasehold::{Client, Error};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let backend = leasehold::open(&url).await?;
    let index = Client::new(backend.clone()).rwlock("index", "products");

    let mut readers = JoinSet::new();
    for number in 1..=3 {
        let index = Client::new(backend.clone()).rwlock("index", "products");
        readers.spawn(async move {
            let search = async |_| {
                println!("reader {number} searches");
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            index.read().run(search).await
        });
    }
    tokio::time::sleep(Duration::from_millis(30)).await;

    println!("the writer waits for the readers");
    let write = index.write().acquire().await?;
    println!("the writer rebuilds the index alone, with {:?}", write.token());
    tokio::time::sleep(Duration::from_millis(50)).await;

    let read = write.downgrade().await?; // other readers are admitted now, other writers are not
    println!("the writer checks what it wrote, as a reader");
    assert!(index.write().try_acquire().await?.is_none());
    assert!(index.read().try_acquire().await?.is_some());
    drop(read.release().await); // it is checked: a release that fails is repeated in the background
    while let Some(reader) = readers.join_next().await {
        reader.expect("a reader does not panic")?;
    }
    Ok(())
}
