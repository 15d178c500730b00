//! The OpenAPI 3.1 document, made from the types of this crate.
//!
//! | module | what it holds |
//! |---|---|
//! | `operations` | **what each route takes and answers: a new route is described here** |
//! | `operation` | the form of such a description |
//! | `schemas` | JSON schemas of the types |
//! | `describe` | headers, responses, security: what all routes share |
//!
//! `cargo xtask openapi` writes the document to `openapi.json`, and [`OPENAPI`](crate::OPENAPI) has that file. So only this crate's
//! developers build a generator. Requests are described as the server reads them, replies as it writes them.

mod describe;
mod operation;
mod operations;
mod schemas;

pub(crate) use describe::problem_kinds;
pub(crate) use schemas::one_name;
pub use schemas::{ResourceKey, ResourceName};
use serde_json::{Map, Value, json};

/// The document.
pub fn document() -> Value {
    let mut schemas = schemas::Schemas::new();
    let operations = operations::all(&mut schemas);
    let mut paths = Map::new();
    for operation in operations {
        let item = paths.entry(operation.path).or_insert_with(|| json!({}));
        operation.write(item);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "leasehold",
            "version": crate::VERSION,
            "summary": "Leases and locks of any store, for every language",
            "description": describe::introduction(),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7420", "description": "`leasehold serve`"}],
        "tags": describe::tags(),
        "paths": paths,
        "components": {
            "schemas": schemas.finish(),
            "headers": describe::headers(),
            "securitySchemes": describe::security_schemes(),
        },
    });
    // The same text, whatever features of serde_json another crate of the build asks for.
    document.sort_all_objects();
    document
}

/// The document as the text of `openapi.json`.
pub fn text() -> String {
    let text = serde_json::to_string_pretty(&document()).expect("a value is JSON");
    format!("{text}\n")
}
