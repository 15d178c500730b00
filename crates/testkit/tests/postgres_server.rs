//! Tests of the PostgreSQL servers that tests start.

use leasehold_testkit::servers::{PgBouncer, PostgresServer};

#[test]
fn a_server_is_killed_stopped_and_run_again_with_its_data() {
    let server = PostgresServer::start();
    server.sql("CREATE TABLE kept (a int); INSERT INTO kept VALUES (1)");
    server.kill();
    assert!(server.try_sql("SELECT 1").is_err());
    server.run_again();
    server.sql("INSERT INTO kept VALUES (2)");
    server.stop();
    server.run_again();
    assert_eq!(server.sql("SELECT * FROM kept ORDER BY 1"), "1\n2");
}

#[test]
fn a_synchronous_standby_takes_over_with_all_data() {
    let primary = PostgresServer::start();
    let standby = primary.standby(true);
    primary.sql("CREATE TABLE kept (a int); INSERT INTO kept VALUES (1)");
    primary.kill();
    standby.promote();
    assert_eq!(standby.sql("SELECT * FROM kept"), "1");
}

#[test]
fn a_pool_starts_on_its_own_port() {
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 2);
    assert!(pool.url().contains(&pool.port().to_string()));
}
