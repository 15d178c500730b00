//! The fence of PostgreSQL with sqlx, diesel and sea-orm. Each file has the example of `docs/fencing.md`, and runs it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod diesel_driver;
mod documented;
mod sea_orm_driver;
mod sqlx_driver;

use std::sync::Arc;

use leasehold_core::{Error, Pass};
use leasehold_testkit::{passes::pass_for, servers::PostgresServer};
use libtest_mimic::{Arguments, Trial};

/// The name of a test, and its function. It gets a server whose database has the fence.
type Test = (&'static str, fn(&PostgresServer));

/// The schema of the fence, as `leasehold fence schema` prints it.
const SCHEMA: &str = include_str!("../../../sql/postgres/schema.sql");

/// Creates a fenced table `orders` in a schema of its own for this driver, and a role that finds it. Returns the URL of the role.
fn create_table(server: &PostgresServer, driver: &str) -> String {
    server.sql(&format!(
        "CREATE SCHEMA {driver};
         CREATE ROLE {driver} SUPERUSER LOGIN;
         ALTER ROLE {driver} SET search_path = {driver};
         CREATE TABLE {driver}.orders (id bigint PRIMARY KEY, total bigint NOT NULL);
         INSERT INTO {driver}.orders VALUES (7, 100);
         CREATE TRIGGER zz_leasehold_fence BEFORE INSERT OR UPDATE OR DELETE ON {driver}.orders
           FOR EACH ROW EXECUTE FUNCTION leasehold_fence.guard('{driver}:order/{{id}}')"
    ));
    server.url().replace("postgres@", &format!("{driver}@"))
}

/// The pass of a holder of order 7 in the table of this driver.
fn pass(driver: &str, token: u64, owner: u8) -> Pass {
    pass_for(&format!("{driver}:order/7"), token, owner)
}

/// The two numbers of a refusal: the presented token, and the highest one.
fn stale_numbers(error: &(dyn std::error::Error + 'static)) -> Option<(u64, u64)> {
    let (presented, highest) = error.downcast_ref::<Error>()?.stale_token()?;
    Some((presented.get(), highest.get()))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn main() {
    let arguments = Arguments::from_args();
    let tests = [sqlx_driver::TESTS, diesel_driver::TESTS, sea_orm_driver::TESTS, documented::TESTS].concat();
    // A list of the names needs no server.
    let server = (!arguments.list).then(|| {
        let server = Arc::new(PostgresServer::start());
        server.sql(SCHEMA);
        server
    });
    let trials = tests.into_iter().map(|(name, test)| {
        let server = server.clone();
        Trial::test(name, move || {
            test(server.as_ref().expect("a test runs on a server"));
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(server);
    conclusion.exit();
}
