//! A list of requests in one call, and the outcome of each.

use leasehold_api::{fields, list::Entry};
use leasehold_core::{ClaimRef, Error, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    connection::{Answer, Call, Connections},
    error,
};

/// A verb whose requests travel in a list.
pub(crate) struct ListVerb<Q, R, T> {
    /// The name of the list in the answer.
    pub(crate) list: &'static str,
    pub(crate) claim: fn(&Q) -> ClaimRef,
    /// What an entry of the answer means for its request.
    pub(crate) outcome: fn(&Q, Entry<R>) -> Result<T>,
}

/// How long the server may take for a list, in milliseconds. A little less than the call waits, so that the entries of a store that
/// hangs fail alone.
pub(crate) fn timeout_ms(connections: &Connections) -> Option<u64> {
    Some(fields::ttl_ms(connections.config.timeout * 9 / 10))
}

impl<Q, R: DeserializeOwned, T> ListVerb<Q, R, T> {
    /// One outcome for each request, in order.
    pub(crate) async fn send(&self, connections: &Connections, call: Call, requests: &[Q]) -> Vec<Result<T>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let answered = match connections.call(&call).await {
            Ok(mut answer) => {
                self.entries(connections, &mut answer, requests.len()).map(|list| (answer, list))
            }
            Err(error) => Err(error),
        };
        match answered {
            Ok((mut answer, entries)) => {
                let outcomes = requests.iter().zip(entries);
                outcomes
                    .map(|(request, entry)| self.outcome(connections, &mut answer, request, entry))
                    .collect()
            }
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The entries, as they came: one that cannot be read says nothing about the others.
    fn entries(&self, connections: &Connections, answer: &mut Answer, count: usize) -> Result<Vec<Value>> {
        let mut body: Value = answer.read(&connections.server)?;
        match body.get_mut(self.list).map(Value::take) {
            Some(Value::Array(entries)) if entries.len() == count => Ok(entries),
            _ => {
                answer.distrust();
                let why = format!("it has no list of {count} {}", self.list);
                Err(error::unreadable(&connections.server, &why))
            }
        }
    }

    fn outcome(
        &self,
        connections: &Connections,
        answer: &mut Answer,
        request: &Q,
        entry: Value,
    ) -> Result<T> {
        let entry: Entry<R> = serde_json::from_value(entry).map_err(|why| {
            answer.distrust();
            error::unreadable(&connections.server, &why)
        })?;
        let fits = match &entry {
            Entry::Reply(..) => true,
            Entry::Problem(problem) => !problem.names_another(&(self.claim)(request)),
        };
        let is_reply = matches!(entry, Entry::Reply(..));
        let outcome = (self.outcome)(request, entry);
        // A reply that does not lead to an outcome names another claim.
        if !fits || (is_reply && outcome.is_err()) {
            answer.distrust();
        }
        outcome
    }
}

/// Writes the body of a call.
pub(crate) fn body(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|why| {
        Error::new(leasehold_core::ErrorKind::Invalid, format!("the request cannot be written: {why}"))
    })
}
