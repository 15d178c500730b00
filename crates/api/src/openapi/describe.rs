//! What all routes share: headers, problem documents, security.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::{API_HEADER, DRAINING_HEADER, LEVEL_HEADER, PROBLEM_JSON, ProblemKind, STORE_HEADER};

/// The names of all kinds of problems.
pub(crate) fn problem_kinds() -> Vec<&'static str> {
    ProblemKind::ALL.iter().map(|kind| kind.as_str()).collect()
}

/// The text at the top of the document, with a table of all problems.
pub(super) fn introduction() -> String {
    let mut text = String::from(
        "Times are durations in whole milliseconds, in fields that end in `_ms`. Tokens are decimal strings. A request with a field \
         that the server does not know is refused; replies may get new fields.\n\n\
         Refusals are problem documents (RFC 9457). `effect` says whether the request may have changed something. A client must take \
         a cut answer, and one without the header `Leasehold-Api`, as one with an unknown effect. Kinds of problems, of which later \
         versions may have more:\n\n| kind | status | what |\n|---|---|---|\n",
    );
    for kind in ProblemKind::ALL {
        let _ = writeln!(text, "| `{}` | {} | {} |", kind.as_str(), kind.status(), kind.title());
    }
    text
}

pub(super) fn tags() -> Value {
    json!([
        {"name": "leases", "description": "Acquire, renew, release and wait."},
        {"name": "read", "description": "Read resources, what operators did, and the health of the store."},
        {"name": "operate", "description": "Commands of operators."},
        {"name": "terraform", "description": "Locks of Terraform and OpenTofu."},
        {"name": "server", "description": "The server itself."},
    ])
}

pub(super) fn security_schemes() -> Value {
    json!({
        "bearer": {
            "type": "http", "scheme": "bearer", "bearerFormat": "lh_<id>_<secret>",
            "description": "A token, which `leasehold token new` prints. A server without a tokens file asks for none.",
        },
        "basic": {"type": "http", "scheme": "basic", "description": "The token is the password; the user name is not used."},
        "certificate": {"type": "mutualTLS", "description": "A client certificate that the tokens file names."},
    })
}

/// The names in `components.headers`, of the headers that every answer has.
const EVERYWHERE: [(&str, &str); 3] =
    [("Leasehold-Api", API_HEADER), ("Leasehold-Store", STORE_HEADER), ("Leasehold-Level", LEVEL_HEADER)];

pub(super) fn headers() -> Value {
    let text = |description: &str, required: bool, pattern: &str| json!({"description": description, "required": required, "schema": {"type": "string", "pattern": pattern}});
    json!({
        "Leasehold-Api": text("The version of the API.", true, "^[0-9]+\\.[0-9]+$"),
        "Leasehold-Store": text("Tells stores apart. A client remembers the one of its first answer, and takes an answer of another store for none.", true, "^[0-9a-f]{16}$"),
        "Leasehold-Level": text("How far the store can be trusted.", true, "^(best-effort|quorum|database|consensus)$"),
        "Leasehold-Draining": text("The server is shutting down: use another one.", false, "^true$"),
        "Retry-After": {"description": "Whole seconds, rounded up. Add jitter.", "required": false, "schema": {"type": "integer", "minimum": 1}},
    })
}

/// The headers of an answer. `None` for the status of a reply.
fn headers_of(status: u16) -> Value {
    debug_assert_eq!(DRAINING_HEADER, "leasehold-draining");
    let reference = |name: &str| json!({"$ref": format!("#/components/headers/{name}")});
    let mut headers = Map::new();
    for (name, header) in EVERYWHERE {
        debug_assert_eq!(name.to_ascii_lowercase(), header);
        headers.insert(name.to_owned(), reference(name));
    }
    headers.insert("Leasehold-Draining".to_owned(), reference("Leasehold-Draining"));
    if matches!(status, 423 | 429) {
        headers.insert("Retry-After".to_owned(), reference("Retry-After"));
    }
    Value::Object(headers)
}

/// An answer with this content.
pub(super) fn response(status: u16, description: &str, content: &Value) -> Value {
    json!({"description": description, "headers": headers_of(status), "content": content})
}

/// The answer with one of these kinds of problems, which have one status.
pub(super) fn problem_response(status: u16, kinds: &[ProblemKind]) -> Value {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let described: Vec<String> =
        kinds.iter().map(|kind| format!("`{}`: {}.", kind.as_str(), kind.title())).collect();
    let schema = json!({
        "allOf": [{"$ref": "#/components/schemas/Problem"}],
        "properties": {"kind": {"enum": names}, "status": {"const": status}},
    });
    let examples: Map<String, Value> = kinds
        .iter()
        .map(|kind| {
            let problem = crate::Problem::new(*kind, "what failed, and why");
            ((*kind).as_str().to_owned(), json!({"value": problem}))
        })
        .collect();
    response(status, &described.join(" "), &json!({PROBLEM_JSON: {"schema": schema, "examples": examples}}))
}
