//! The statements of the verbs, with the name of the schema put in.

use crate::schema::{Functions, in_schema};

/// The statements that the backend sends.
///
/// The last parameter and the last column of each is the request id (ADR 0033). The statement returns it, not the function
/// that it calls, so that a client can also use the functions of the previous release.
pub(crate) struct Statements {
    /// Which functions they call.
    pub(crate) functions: Functions,
    pub(crate) acquire: String,
    pub(crate) acquire_many: String,
    pub(crate) acquire_soon: String,
    pub(crate) renew: String,
    pub(crate) release: String,
    pub(crate) release_many: String,
    pub(crate) release_soon: String,
    pub(crate) watch: String,
    pub(crate) order: String,
    pub(crate) snapshots: String,
    pub(crate) list: String,
    pub(crate) audit: String,
}

impl Statements {
    pub(crate) fn new(schema: &str, functions: Functions) -> Statements {
        let named = |sql| in_schema(sql, schema);
        let (acquire, watch) = match functions {
            Functions::Current => (
                "SELECT *, $17::bigint FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
                 $15, $16)",
                "SELECT leasehold.watch($1, $2, $3, $4, $5, $6), $7::bigint",
            ),
            // The previous release does not know the client and its listener.
            Functions::Previous => (
                "SELECT *, $15::bigint FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
                "SELECT leasehold.watch($1, $2, $3, $4, $5), $6::bigint",
            ),
        };
        Statements {
            functions,
            acquire: named(acquire),
            acquire_many: named(
                "SELECT *, $15::bigint FROM leasehold.acquire_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
                 $14)",
            ),
            acquire_soon: named(
                "SELECT *, $18::bigint FROM leasehold.acquire_soon($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
                 $14, $15, $16, $17)",
            ),
            renew: named("SELECT *, $5::bigint FROM leasehold.renew($1, $2, $3, $4)"),
            release: named("SELECT leasehold.release($1, $2, $3, $4), $5::bigint"),
            release_many: named("SELECT *, $5::bigint FROM leasehold.release_many($1, $2, $3, $4)"),
            release_soon: named("SELECT leasehold.release_soon($1, $2, $3, $4, $5), $6::bigint"),
            watch: named(watch),
            order: named("SELECT *, $7::bigint FROM leasehold.command($1, $2, $3, $4, $5, $6)"),
            snapshots: named(include_str!("../sql/snapshots.sql")),
            list: named(include_str!("../sql/list.sql")),
            audit: named(include_str!("../sql/audit.sql")),
        }
    }
}
