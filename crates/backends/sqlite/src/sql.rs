//! The statements, by name. They stand in `sql/*.sql`, each under a header of arguments and replies.

/// Finds the statement of this name in a file, without its header, when the crate is built.
const fn statement(file: &'static str, name: &str) -> &'static str {
    const MARK: &str = "-- name: ";
    let mut rest = file;
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        rest = after;
        if starts_with(line, MARK) && equals(tail(line, MARK.len()), name) {
            return body(skip_comments(rest));
        }
    }
    panic!("no statement of this name in the file")
}

/// Up to and with the semicolon that ends it.
const fn body(text: &'static str) -> &'static str {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b';' {
            return text.split_at(at + 1).0;
        }
        at += 1;
    }
    panic!("a statement ends with a semicolon")
}

const fn skip_comments(text: &'static str) -> &'static str {
    let mut rest = text;
    while starts_with(rest, "--") {
        rest = split_line(rest).1;
    }
    rest
}

const fn split_line(text: &'static str) -> (&'static str, &'static str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'\n' {
            return (text.split_at(at).0, text.split_at(at + 1).1);
        }
        at += 1;
    }
    (text, "")
}

const fn tail(text: &'static str, from: usize) -> &'static str {
    text.split_at(from).1
}

const fn starts_with(text: &str, start: &str) -> bool {
    text.len() >= start.len() && equals(text.split_at(start.len()).0, start)
}

const fn equals(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut at = 0;
    while at < left.len() && at < right.len() && left[at] == right[at] {
        at += 1;
    }
    at == left.len() && at == right.len()
}

macro_rules! statements {
    ($($file:ident: $($name:ident)+;)+) => {$(
        pub(crate) mod $file {
            const FILE: &str = include_str!(concat!("../sql/", stringify!($file), ".sql"));
            $(
                #[allow(non_upper_case_globals, reason = "named as in the file")]
                pub(crate) const $name: &str = super::statement(FILE, stringify!($name));
            )+
        }
    )+};
}

/// The tables.
pub(crate) const SCHEMA: &str = include_str!("../sql/schema.sql");

statements! {
    meta: begin commit rollback get put begin_log tables;
    boot: end_seats end_places end_graves move_seats move_resources;
    resource: find insert update earliest_end after remove forget list;
    seat: find insert remove remove_only evict settle prolong note keep ask let_run_out newest of_token next_ends list
        count;
    place: find last insert remove settle prolong head list count;
    grave: find remove insert settle;
    ring: insert prune newest after;
    audit: insert prune list;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_found_without_its_header() {
        const FILE: &str = "-- name: one\n-- takes ?1\nSELECT ?1;\n\n-- name: on\nSELECT\n  2;\n";
        assert_eq!(statement(FILE, "one"), "SELECT ?1;");
        assert_eq!(statement(FILE, "on"), "SELECT\n  2;");
    }

    #[test]
    fn every_statement_fits_the_schema() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        let files = ["meta", "boot", "resource", "seat", "place", "grave", "ring", "audit"];
        for file in files {
            let path = format!("{}/sql/{file}.sql", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            for part in text.split("-- name: ").skip(1) {
                connection
                    .prepare(part.split_once('\n').unwrap().1)
                    .unwrap_or_else(|e| panic!("{file}: {part}: {e}"));
            }
        }
    }

    /// No verb but `inspect` and `order` may read more than it needs (B9).
    #[test]
    fn what_verbs_do_is_found_by_index() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        let statements = [
            [
                meta::get,
                meta::put,
                resource::find,
                resource::insert,
                resource::update,
                resource::earliest_end,
            ],
            [resource::after, resource::remove, resource::forget, seat::find, seat::insert, seat::remove],
            [seat::evict, seat::settle, seat::prolong, seat::note, seat::keep, seat::remove_only],
            [seat::ask, meta::begin_log, meta::get, meta::put, resource::find, resource::update],
            [seat::let_run_out, seat::next_ends, place::find, place::last, place::insert, place::remove],
            [place::settle, place::prolong, place::head, grave::find, grave::remove, grave::insert],
            [grave::settle, ring::insert, ring::prune, ring::newest, ring::after, audit::prune],
        ];
        for statement in statements.as_flattened() {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
            let steps = plan.raw_query().mapped(|row| row.get::<_, String>(3));
            for step in steps.map(Result::unwrap) {
                let whole = step.starts_with("SCAN") && step != "SCAN CONSTANT ROW";
                assert!(!whole && !step.contains("TEMP B-TREE"), "{step}: {statement}");
            }
        }
    }
}
