//! JSON schemas of the types.

use std::borrow::Cow;

use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::{Contract, SchemaSettings},
    json_schema,
};
use serde_json::{Map, Value, json};

use crate::{bounds, fields::OwnerText, fields::TokenText, problem::Problem};

/// A resource as people write it: the form of a field.
#[derive(Debug)]
#[non_exhaustive]
pub struct ResourceName;

/// The key of a resource: the form of a field.
#[derive(Debug)]
#[non_exhaustive]
pub struct ResourceKey;

/// Exactly one of `resource` and `key` names the resource of a request.
pub(crate) fn one_name() -> Value {
    let only = |given: &str, absent: &str| json!({"required": [given], "properties": {given: {"type": "string"}, absent: {"type": "null"}}});
    json!([only("resource", "key"), only("key", "resource")])
}

/// A type that is written as one text.
macro_rules! text_schema {
    ($type:ty, $name:literal, $description:literal, $pattern:literal, $example:literal) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string", "description": $description, "pattern": $pattern, "examples": [$example],
                })
            }
        }
    };
}

text_schema!(
    ResourceName,
    "ResourceName",
    "`[namespace:]kind/id`. The id has 1 to 256 bytes without control characters.",
    "^([a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}/[^\\u0000-\\u001f\\u007f-\\u009f]{1,256}$",
    "report/42"
);
text_schema!(
    ResourceKey,
    "ResourceKey",
    "A resource with its id percent-encoded, or replaced by a hash.",
    "^([a-z0-9._-]{1,64}:)?[a-z0-9._-]{1,64}/(~[0-9a-f]{32}|([A-Za-z0-9._:@+=,-]|%[0-9A-F]{2}){1,256})$",
    "report/42"
);
text_schema!(
    OwnerText,
    "OwnerToken",
    "The secret of a claim: 32 random hex digits, chosen by the client.",
    "^[0-9a-f]{32}$",
    "0123456789abcdef0123456789abcdef"
);
text_schema!(
    TokenText,
    "Token",
    "A fencing token, or the number of a shared grant.",
    "^[1-9][0-9]{0,15}$",
    "1795004954701560"
);

/// The schemas of the document.
pub(super) struct Schemas {
    requests: SchemaGenerator,
    replies: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Schemas {
        let generator = |contract: Contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            (settings.meta_schema, settings.contract) = (None, contract);
            settings.into_generator()
        };
        let mut schemas =
            Schemas { requests: generator(Contract::Deserialize), replies: generator(Contract::Serialize) };
        schemas.reply::<Problem>();
        schemas
    }

    /// A type that the server reads.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    /// A type that the server writes.
    pub(super) fn reply<T: JsonSchema>(&mut self) -> Value {
        self.replies.subschema_for::<T>().to_value()
    }

    /// One request, or a list of them with this name.
    pub(super) fn one_or_many<T: JsonSchema>(&mut self, list: &str) -> Value {
        let one = self.request::<T>();
        let many = json!({
            "type": "object",
            "properties": {
                list: {"type": "array", "items": one, "maxItems": bounds::ENTRIES},
                "timeout_ms": {
                    "description": "Answer by then. What the store has not answered is `unavailable`, with the effect unknown.",
                    "type": ["integer", "null"], "minimum": 1, "maximum": bounds::TIMEOUT_MS,
                },
            },
            "required": [list],
            "additionalProperties": false,
        });
        json!({"anyOf": [one, many]})
    }

    /// A reply of a type whose variants have these names in the field `verdict`.
    pub(super) fn verdict<T: JsonSchema>(&mut self, verdicts: &[&str]) -> Value {
        let reply = self.reply::<T>();
        json!({"allOf": [reply], "properties": {"verdict": {"enum": verdicts}}})
    }

    /// The answer to a list: an outcome for each entry.
    pub(super) fn outcomes<T: JsonSchema>(&mut self, list: &str) -> Value {
        let reply = self.reply::<T>();
        let entry = json!({"anyOf": [
            {
                "allOf": [reply],
                "properties": {"status": {"type": "integer", "minimum": 200, "maximum": 299}},
                "required": ["status"],
            },
            {"$ref": "#/components/schemas/Problem"},
        ]});
        json!({
            "type": "object",
            "properties": {list: {"type": "array", "items": entry}},
            "required": [list],
        })
    }

    /// The parameters of a query of this type.
    pub(super) fn query<T: JsonSchema>(&mut self) -> Vec<Value> {
        let schema = T::json_schema(&mut self.requests).to_value();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let parameter = |(name, mut schema): (String, Value)| {
            // A query cannot say null.
            without_null(&mut schema);
            plain_text(&mut schema);
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            json!({
                "name": name, "in": "query", "required": required.contains(&name.as_str()),
                "description": description.unwrap_or_default(), "schema": schema,
            })
        };
        properties.into_iter().map(parameter).collect()
    }

    /// All schemas that were named.
    pub(super) fn finish(mut self) -> Value {
        let mut all = Map::new();
        for (name, mut schema) in self.replies.take_definitions(true) {
            absent_instead_of_null(&mut schema);
            all.insert(name, schema);
        }
        for (name, schema) in self.requests.take_definitions(true) {
            all.insert(name, schema);
        }
        all.values_mut().for_each(plain_text);
        Value::Object(all)
    }
}

/// A field of a reply that need not be there is left out, never null.
fn absent_instead_of_null(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let required: Vec<String> = fields
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect();
            if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
                let optional = properties.iter_mut().filter(|(name, _)| !required.contains(*name));
                optional.for_each(|(_, schema)| without_null(schema));
            }
            fields.values_mut().for_each(absent_instead_of_null);
        }
        Value::Array(values) => values.iter_mut().for_each(absent_instead_of_null),
        _ => {}
    }
}

/// Takes `null` out of the values of a schema.
fn without_null(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|one| one != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
        choices.retain(|one| one["type"] != "null");
        if let [only] = choices.as_slice() {
            let only = only.as_object().cloned().unwrap_or_default();
            fields.remove("anyOf");
            fields.extend(only);
        }
    }
    if fields.get("default").is_some_and(Value::is_null) {
        fields.remove("default");
    }
}

/// Documentation of Rust, as text for everyone: links to items become their names. And no number format that only Rust has.
fn plain_text(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = without_links(text);
            }
            if fields.get("format").is_some_and(|format| format == "uint") {
                fields.insert("format".to_owned(), "uint64".into());
            }
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            fields.values_mut().for_each(plain_text);
        }
        Value::Array(values) => values.iter_mut().for_each(plain_text),
        _ => {}
    }
}

/// ``[`Item`](path)`` and ``[`Item`]`` become `` `Item` ``.
fn without_links(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        out.push_str(before);
        let Some((label, after)) = link[1..].split_once(']').filter(|(label, _)| label.starts_with('`'))
        else {
            out.push('[');
            rest = &link[1..];
            continue;
        };
        out.push_str(label);
        rest = after
            .strip_prefix('(')
            .and_then(|target| target.split_once(')'))
            .map_or(after, |(_, after)| after);
    }
    out + rest
}
