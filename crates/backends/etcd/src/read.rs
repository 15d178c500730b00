//! From what etcd answers to what it means.

use etcd_client::{GetResponse, KeyValue, TxnOpResponse};
use leasehold_core::{Effect, Error, ErrorKind, Gone};

use crate::{
    entry::{Entry, Value},
    error::Fault,
    keys::Keys,
    line::{Contender, Line, Own, OwnKey, Pause},
    link::Link,
    txn::{Done, reading},
};

const BURIED: &str = "!buried";
const EVICTED: &str = "!evicted";

/// What an owner's key says of a grave.
pub(crate) fn grave(why: Gone) -> String {
    if why == Gone::Evicted { EVICTED } else { BURIED }.to_owned()
}

/// A resource, and what it says of some owners, in the order in which they were asked for.
pub(crate) struct Reading {
    pub(crate) line: Line,
    pub(crate) owns: Vec<OwnKey>,
}

impl Reading {
    /// Reads the answers to [`reading`], the last ones of a transaction.
    pub(crate) fn of(keys: &Keys, done: &Done, first: usize) -> Result<Reading, Fault> {
        let mut gets = done.answers.iter().skip(first).map(|answer| match answer {
            TxnOpResponse::Get(get) => Ok(get),
            _ => Err(Fault::Strange("a read was answered with something else".to_owned())),
        });
        let mut next =
            || gets.next().unwrap_or_else(|| Err(Fault::Strange("a read has no answer".to_owned())));
        let line = next()?;
        let contenders = line.kvs().iter().map(|kv| contender(keys, kv)).collect::<Result<_, _>>()?;
        let total = usize::try_from(line.count()).unwrap_or(usize::MAX);
        let pause = next()?.kvs().first().map(|kv| Pause { modified: kv.mod_revision(), lease: kv.lease() });
        let line = Line { revision: done.revision, contenders, total, pause };
        let owns = gets.map(|get| get.map(own)).collect::<Result<_, _>>()?;
        Ok(Reading { line, owns })
    }
}

pub(crate) fn own(get: &GetResponse) -> OwnKey {
    let Some(kv) = get.kvs().first() else { return OwnKey { own: Own::Nothing, modified: 0 } };
    let own = match String::from_utf8_lossy(kv.value()).as_ref() {
        EVICTED => Own::Grave(Gone::Evicted),
        BURIED => Own::Grave(Gone::Buried),
        name => Own::Contender(name.to_owned()),
    };
    OwnKey { own, modified: kv.mod_revision() }
}

pub(crate) fn contender(keys: &Keys, kv: &KeyValue) -> Result<Contender, Fault> {
    let key = String::from_utf8_lossy(kv.key()).into_owned();
    let (entry, text) = match Entry::read(kv.value()) {
        Value::Ours(entry) => (Some(entry), String::new()),
        Value::Stranger(text) => (None, text),
        Value::Newer => {
            let message = format!("{key} was written by a newer leasehold: bring this one up to date");
            return Err(Fault::Refused(Error::new(ErrorKind::Corrupt, message).with_effect(Effect::None)));
        }
    };
    let name = key.strip_prefix(&keys.lock).unwrap_or_default().to_owned();
    let (created, modified, lease) = (kv.create_revision(), kv.mod_revision(), kv.lease());
    Ok(Contender { name, created, modified, lease, entry, text })
}

impl Link {
    /// Reads a resource as it is now, and what it says of these owners.
    pub(crate) async fn read(&self, keys: &Keys, marks: &[&str], limit: i64) -> Result<Reading, Fault> {
        let done = self.look(reading(keys, marks, limit)).await?;
        let reading = Reading::of(keys, &done, 0)?;
        self.with_deep(keys, reading).await
    }

    /// Adds the contenders of those who were asked for and stand too deep in the line to have been read with it.
    pub(crate) async fn with_deep(&self, keys: &Keys, mut reading: Reading) -> Result<Reading, Fault> {
        for own in &reading.owns {
            let Own::Contender(name) = &own.own else { continue };
            let line = &mut reading.line;
            if line.total > line.contenders.len() && line.contenders.iter().all(|other| other.name != *name) {
                line.contenders.extend(self.contender(keys, name).await?);
                line.contenders.sort_by_key(|contender| contender.created);
            }
        }
        Ok(reading)
    }

    /// One contender, if it is there.
    pub(crate) async fn contender(&self, keys: &Keys, name: &str) -> Result<Option<Contender>, Fault> {
        let key = keys.contender(name);
        let asked = self.call_again(|mut client| {
            let key = key.clone();
            async move { client.get(key, None).await }
        });
        asked.await?.kvs().first().map(|kv| contender(keys, kv)).transpose()
    }
}
