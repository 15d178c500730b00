//! The form of the description of a route.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::describe;
use crate::{JSON, ProblemKind};

/// What a route takes with one method, and all of its answers.
pub(super) struct Operation {
    pub(super) path: &'static str,
    /// The methods under which OpenAPI 3.1 knows it, in small letters.
    methods: Vec<&'static str>,
    /// Those that OpenAPI 3.1 cannot express.
    other_methods: Vec<&'static str>,
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    description: String,
    /// `None`: open to everyone.
    role: Option<&'static str>,
    parameters: Vec<Value>,
    body: Option<Value>,
    replies: BTreeMap<u16, Value>,
    problems: Vec<ProblemKind>,
}

/// What can happen to a request of a known caller, whatever the route.
const OF_CALLERS: &[ProblemKind] = &[
    ProblemKind::WrongHost,
    ProblemKind::Unauthenticated,
    ProblemKind::Denied,
    ProblemKind::Throttled,
    ProblemKind::Internal,
];
/// What can happen to a body.
const OF_BODIES: &[ProblemKind] = &[
    ProblemKind::Malformed,
    ProblemKind::TooLarge,
    ProblemKind::NotJson,
    ProblemKind::TooSlow,
    ProblemKind::Invalid,
];
/// What can happen to a call of the store.
const OF_STORES: &[ProblemKind] = &[
    ProblemKind::Invalid,
    ProblemKind::Unsupported,
    ProblemKind::Limit,
    ProblemKind::Unavailable,
    ProblemKind::ShutDown,
    ProblemKind::Corrupt,
];

impl Operation {
    pub(super) fn new(method: &'static str, path: &'static str, id: &'static str) -> Operation {
        Operation {
            path,
            methods: vec![method],
            other_methods: Vec::new(),
            id,
            tag: "server",
            summary: "",
            description: String::new(),
            role: None,
            parameters: Vec::new(),
            body: None,
            replies: BTreeMap::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn get(path: &'static str, id: &'static str) -> Operation {
        Operation::new("get", path, id)
    }

    pub(super) fn post(path: &'static str, id: &'static str) -> Operation {
        Operation::new("post", path, id)
    }

    /// The same with another method, that OpenAPI 3.1 cannot express.
    pub(super) fn also(mut self, method: &'static str) -> Operation {
        self.other_methods.push(method);
        self
    }

    /// The same with `HEAD`, without the body.
    pub(super) fn and_head(mut self) -> Operation {
        self.methods.push("head");
        self
    }

    pub(super) fn about(mut self, tag: &'static str, summary: &'static str, description: &str) -> Operation {
        (self.tag, self.summary, self.description) = (tag, summary, description.to_owned());
        self
    }

    /// Only for callers with this role.
    pub(super) fn role(mut self, role: &'static str) -> Operation {
        self.role = Some(role);
        self.problems(OF_CALLERS)
    }

    pub(super) fn query(mut self, parameters: Vec<Value>) -> Operation {
        self.parameters = parameters;
        self.problems(&[ProblemKind::Invalid])
    }

    /// It takes a body of JSON, such as these examples.
    pub(super) fn body(mut self, schema: &Value, examples: &[(&str, Value)]) -> Operation {
        let examples: Map<String, Value> =
            examples.iter().map(|(name, value)| ((*name).to_owned(), json!({"value": value}))).collect();
        self.body =
            Some(json!({"required": true, "content": {JSON: {"schema": schema, "examples": examples}}}));
        self.problems(OF_BODIES)
    }

    /// A body that need not be there.
    pub(super) fn optional_body(mut self) -> Operation {
        if let Some(body) = &mut self.body {
            body["required"] = false.into();
        }
        self
    }

    pub(super) fn reply(self, status: u16, description: &str, schema: &Value, example: &Value) -> Operation {
        let content = json!({JSON: {"schema": schema, "examples": {"reply": {"value": example}}}});
        self.reply_with(status, description, &content)
    }

    pub(super) fn text(self, status: u16, description: &str, example: &str) -> Operation {
        let content =
            json!({"text/plain": {"schema": {"type": "string"}, "examples": {"text": {"value": example}}}});
        self.reply_with(status, description, &content)
    }

    pub(super) fn reply_with(mut self, status: u16, description: &str, content: &Value) -> Operation {
        self.replies.insert(status, describe::response(status, description, content));
        self
    }

    /// It calls the store.
    pub(super) fn store(self) -> Operation {
        self.problems(OF_STORES)
    }

    pub(super) fn problems(mut self, kinds: &[ProblemKind]) -> Operation {
        for kind in kinds {
            if !self.problems.contains(kind) {
                self.problems.push(*kind);
            }
        }
        self
    }

    fn responses(&self) -> Value {
        let mut responses: Map<String, Value> =
            self.replies.iter().map(|(status, reply)| (status.to_string(), reply.clone())).collect();
        let mut by_status: BTreeMap<u16, Vec<ProblemKind>> = BTreeMap::new();
        for kind in ProblemKind::ALL.iter().filter(|kind| self.problems.contains(kind)) {
            by_status.entry(kind.status()).or_default().push(*kind);
        }
        for (status, kinds) in by_status {
            let mut problem = describe::problem_response(status, &kinds);
            // One status with two forms: a reply of its own, and problems.
            if let Some(reply) = self.replies.get(&status) {
                let content = reply["content"].as_object().cloned().unwrap_or_default();
                let description =
                    format!("{} {}", as_text(&reply["description"]), as_text(&problem["description"]));
                problem["description"] = description.into();
                if let Some(all) = problem["content"].as_object_mut() {
                    all.extend(content);
                }
            }
            responses.insert(status.to_string(), problem);
        }
        Value::Object(responses)
    }

    /// Adds the operation to the item of its path.
    pub(super) fn write(self, item: &mut Value) {
        let description = match self.role {
            Some(role) => format!("{}\n\nRole: {role}.", self.description),
            None => format!("{}\n\nOpen to everyone.", self.description),
        };
        let mut operation = json!({
            "operationId": self.id, "tags": [self.tag], "summary": self.summary, "description": description,
            "responses": self.responses(),
        });
        operation["security"] = match self.role {
            Some(_) => json!([{"bearer": []}, {"basic": []}, {"certificate": []}]),
            None => json!([]),
        };
        if let Some(role) = self.role {
            operation["x-role"] = role.into();
        }
        if !self.parameters.is_empty() {
            operation["parameters"] = self.parameters.into();
        }
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        for other in self.other_methods {
            // As `additionalOperations` of OpenAPI 3.2.
            item["x-additional-operations"][other] = json!({"same-as": self.id});
        }
        for method in self.methods {
            let mut one = operation.clone();
            if method == "head" {
                one["operationId"] = format!("{}_head", self.id).into();
                let responses = one["responses"].as_object_mut().into_iter().flat_map(Map::values_mut);
                responses
                    .filter_map(Value::as_object_mut)
                    .for_each(|response| drop(response.remove("content")));
            }
            item[method] = one;
        }
    }
}

fn as_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
