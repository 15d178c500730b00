//! One request or many in one body, and one outcome for each.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _, IgnoredAny},
};
use serde_json::Value;

use crate::problem::Problem;

/// The body of acquire, renew and release: one request, or a list of them. The form of the request decides the form of the
/// answer, not the number of entries.
#[derive(Clone, Debug)]
pub enum OneOrMany<T> {
    /// `{"resource":…}`
    One(T),
    /// `{"claims":[…]}` or `{"leases":[…]}`
    Many(Many<T>),
}

/// A list of requests. They are independent: each has its own outcome.
#[derive(Clone, Debug)]
pub struct Many<T> {
    /// The requests.
    pub entries: Vec<T>,
    /// Answer by then. What the store has not answered is `unavailable`, with the effect unknown.
    pub timeout_ms: Option<u64>,
}

/// Why a body could not be read.
#[derive(Debug)]
pub enum Unreadable {
    /// It is not JSON.
    Syntax(serde_json::Error),
    /// It is JSON, and not such a request: an unknown or missing field, a value of another type.
    Form(serde_json::Error),
}

impl Unreadable {
    fn of(error: serde_json::Error) -> Unreadable {
        if error.is_data() { Unreadable::Form(error) } else { Unreadable::Syntax(error) }
    }
}

/// Reads a body that must be such a request.
///
/// # Errors
/// Says whether the body is not JSON or not such a request.
pub fn read_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, Unreadable> {
    if body.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice::<IgnoredAny>(body).map_err(Unreadable::of)?;
        return Err(Unreadable::Form(serde_json::Error::custom(NOT_AN_OBJECT)));
    }
    serde_json::from_slice(body).map_err(Unreadable::of)
}

const NOT_AN_OBJECT: &str = "this must be an object, as in {\"resource\":\"kind/id\"}";

/// Reads a value that is not an array. The types of requests would take one, with the fields in their order: that is no form of the
/// API, and another one with every new field.
pub(crate) fn no_array<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    if value.is_array() {
        return Err(D::Error::custom(NOT_AN_OBJECT));
    }
    serde_json::from_value(value).map_err(D::Error::custom)
}

/// Reads a list of objects.
pub(crate) fn objects<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let values = Vec::<Value>::deserialize(from)?;
    values.into_iter().map(|value| no_array(value).map_err(D::Error::custom)).collect()
}

impl<T> OneOrMany<T> {
    /// The request of a body with one.
    pub fn into_one(self) -> Option<T> {
        if let OneOrMany::One(one) = self { Some(one) } else { None }
    }
}

impl<T: DeserializeOwned> OneOrMany<T> {
    /// Reads a body whose list, if it is one, has this name.
    pub(crate) fn read(body: &[u8], list: &'static str) -> Result<OneOrMany<T>, Unreadable> {
        let value: Value = serde_json::from_slice(body).map_err(Unreadable::of)?;
        if value.is_array() {
            return Err(Unreadable::Form(serde_json::Error::custom(NOT_AN_OBJECT)));
        }
        if value.get(list).is_none() {
            return serde_json::from_value(value).map(OneOrMany::One).map_err(Unreadable::Form);
        }
        Many::from_value(value, list).map(OneOrMany::Many).map_err(Unreadable::Form)
    }
}

impl<T: DeserializeOwned> Many<T> {
    fn from_value(value: Value, list: &'static str) -> Result<Many<T>, serde_json::Error> {
        let Value::Object(fields) = value else { return Err(serde_json::Error::custom("not an object")) };
        let (mut entries, mut timeout_ms) = (Vec::new(), None);
        for (name, value) in fields {
            match name.as_str() {
                "timeout_ms" => timeout_ms = serde_json::from_value(value)?,
                name if name == list => entries = objects(value)?,
                name => {
                    let message = format!("unknown field `{name}`, expected `{list}` or `timeout_ms`");
                    return Err(serde_json::Error::custom(message));
                }
            }
        }
        Ok(Many { entries, timeout_ms })
    }
}

/// The body with a list of requests, as a client sends it.
pub(crate) fn write_many<T: Serialize>(list: &'static str, entries: &[T], timeout_ms: Option<u64>) -> Value {
    let mut body = serde_json::json!({ list: entries });
    if let Some(timeout_ms) = timeout_ms {
        body["timeout_ms"] = timeout_ms.into();
    }
    body
}

/// The outcome of one request: its status with the reply, or a problem. Alone it is an answer; in a list it is an entry, with its
/// status in the field `status`.
#[derive(Clone, Debug)]
pub enum Entry<T> {
    /// A reply, with a status below 400.
    Reply(u16, T),
    /// A refusal. It has its status.
    Problem(Box<Problem>),
}

impl<T> Entry<T> {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Entry::Reply(status, _) => *status,
            Entry::Problem(problem) => problem.status,
        }
    }

    /// The reply, or the problem.
    ///
    /// # Errors
    /// The problem.
    pub fn into_result(self) -> Result<T, Box<Problem>> {
        match self {
            Entry::Reply(_, reply) => Ok(reply),
            Entry::Problem(problem) => Err(problem),
        }
    }
}

impl<T> From<Problem> for Entry<T> {
    fn from(problem: Problem) -> Entry<T> {
        Entry::Problem(Box::new(problem))
    }
}

impl<T: DeserializeOwned> Entry<T> {
    /// Reads the answer to a single request: its HTTP status and its body.
    ///
    /// # Errors
    /// If it is not such an answer. Then the effect is unknown.
    pub fn read(status: u16, body: &[u8]) -> Result<Entry<T>, serde_json::Error> {
        if status < 400 {
            serde_json::from_slice(body).map(|reply| Entry::Reply(status, reply))
        } else {
            serde_json::from_slice(body).map(Entry::Problem)
        }
    }
}

impl<T: Serialize> Serialize for Entry<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithStatus<'a, T> {
            status: u16,
            #[serde(flatten)]
            reply: &'a T,
        }
        match self {
            Entry::Reply(status, reply) => WithStatus { status: *status, reply }.serialize(to),
            Entry::Problem(problem) => problem.serialize(to),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Entry<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Entry<T>, D::Error> {
        let value = Value::deserialize(from)?;
        let status =
            value.get("status").and_then(Value::as_u64).and_then(|status| u16::try_from(status).ok());
        let status = status.ok_or_else(|| D::Error::missing_field("status"))?;
        if status < 400 {
            serde_json::from_value(value).map(|reply| Entry::Reply(status, reply)).map_err(D::Error::custom)
        } else {
            serde_json::from_value(value).map(Entry::Problem).map_err(D::Error::custom)
        }
    }
}

/// The answer to a list of claims.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "T: Serialize + DeserializeOwned")]
pub struct Claims<T> {
    /// One outcome for each claim, in their order.
    pub claims: Vec<Entry<T>>,
}

/// The answer to a list of renewals or releases.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "T: Serialize + DeserializeOwned")]
pub struct Leases<T> {
    /// One outcome for each request, in their order.
    pub leases: Vec<Entry<T>>,
}
