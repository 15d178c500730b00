//! Prints the OpenAPI document. `cargo xtask openapi` writes it to `crates/api/openapi.json`.

fn main() {
    print!("{}", leasehold_api::openapi::text());
}
