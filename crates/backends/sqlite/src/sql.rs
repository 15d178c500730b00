//! The statements of `sql/*.sql`, by name. In the files, each has a header that says what it takes and gives.

/// Finds the statement of this name in a file, without its header. It runs when the crate is built, so a
/// wrong name does not compile.
const fn statement(file: &'static str, name: &str) -> &'static str {
    const NAME_PREFIX: &str = "-- name: ";
    let mut rest = file;
    while !rest.is_empty() {
        let (line, after) = split_line(rest);
        rest = after;
        if starts_with(line, NAME_PREFIX) && equals(tail(line, NAME_PREFIX.len()), name) {
            return body(skip_comments(rest));
        }
    }
    panic!("no statement of this name in the file")
}

/// The text up to the semicolon that ends the statement, and with it.
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

/// The statements that create the tables.
pub(crate) const SCHEMA: &str = include_str!("../sql/schema.sql");
/// The statements that bring a file of format 1 to format 2.
pub(crate) const UPGRADE_2: &str = include_str!("../sql/upgrade_2.sql");

statements! {
    meta: begin commit rollback get put start_new_log count_tables;
    reboot: remove_holders remove_places remove_tombstones move_kept move_resources;
    resource: find insert update earliest_end sweep_candidates remove raise_floor list;
    holder: find insert remove remove_only evict remove_expired extend set_note keep ask_to_finish mark_evicting
        newest find_by_token ending_soonest list count;
    queue: find last insert remove remove_expired note_heard call make_silent head live_head
        silent list count;
    tombstone: find remove insert remove_expired;
    wakeup: insert prune newest after;
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
        let files = ["meta", "reboot", "resource", "holder", "queue", "tombstone", "wakeup", "audit"];
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

    /// Only `inspect` and `order` may scan a table: every other verb takes the same time whatever the size of
    /// the file.
    #[test]
    fn statements_of_the_verbs_use_an_index() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        let statements: [&[&str]; 12] = [
            &[meta::get, meta::put, meta::start_new_log],
            &[resource::find, resource::insert, resource::update, resource::earliest_end],
            &[resource::sweep_candidates, resource::remove, resource::raise_floor],
            &[holder::find, holder::insert, holder::remove, holder::evict, holder::remove_expired],
            &[holder::extend, holder::set_note, holder::keep, holder::remove_only, holder::ask_to_finish],
            &[holder::mark_evicting, holder::ending_soonest],
            &[queue::find, queue::last, queue::insert, queue::remove, queue::remove_expired],
            &[queue::note_heard, queue::call, queue::make_silent, queue::head, queue::live_head],
            &[queue::silent],
            &[tombstone::find, tombstone::remove, tombstone::insert, tombstone::remove_expired],
            &[wakeup::insert, wakeup::prune, wakeup::newest, wakeup::after],
            &[audit::prune],
        ];
        for statement in statements.into_iter().flatten() {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
            let steps = plan.raw_query().mapped(|row| row.get::<_, String>(3));
            for step in steps.map(Result::unwrap) {
                let is_full_scan = step.starts_with("SCAN") && step != "SCAN CONSTANT ROW";
                assert!(!is_full_scan && !step.contains("TEMP B-TREE"), "{step}: {statement}");
            }
        }
    }

    /// A verb must not read a long queue of silent claims.
    #[test]
    fn live_claims_are_found_without_reading_the_silent_ones() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        for (statement, expected) in [
            (queue::head, "PRIMARY KEY (resource=?)"),
            (queue::live_head, "INDEX place_silent (resource=? AND silent=?)"),
            (queue::silent, "INDEX place_silent (resource=? AND silent=?)"),
        ] {
            let plan = format!("EXPLAIN QUERY PLAN {statement}");
            let steps: Vec<String> = connection
                .prepare(&plan)
                .unwrap()
                .raw_query()
                .mapped(|row| row.get(3))
                .map(Result::unwrap)
                .collect();
            assert!(steps.iter().any(|step| step.contains(expected)), "{steps:?}: {statement}");
        }
    }
}
