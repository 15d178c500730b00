//! The examples of `docs/fencing.md` are the code that runs here.

use leasehold_testkit::servers::PostgresServer;

use crate::{Test, diesel_driver, sea_orm_driver, sqlx_driver};

pub(crate) const TESTS: &[Test] = &[("the_examples_of_the_documentation_are_those_that_run", same_text)];

const PAGE: &str = include_str!("../../../../../docs/fencing.md");

fn same_text(_: &PostgresServer) {
    for source in [sqlx_driver::SOURCE, diesel_driver::SOURCE, sea_orm_driver::SOURCE] {
        let (_, rest) = source.split_once("// docs: begin\n").expect("the example begins");
        let (example, _) = rest.split_once("// docs: end").expect("the example ends");
        assert!(PAGE.contains(example.trim_end()), "docs/fencing.md does not have this example:\n{example}");
    }
}
