//! Both libraries in one program: the state is in a database that sqlx opens, the lease in a file.

/// Adds one to a counter, under a lease.
pub async fn count(pool: &sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    let leases = leasehold::connect("sqlite:leases.db").await?;
    let add = async |_| sqlx::query("UPDATE counter SET value = value + 1").execute(pool).await;
    leases.lease("counter", "1").run(add).await??;
    Ok(())
}
