//! From what etcd answers to what it means.

use etcd_client::{Client, GetOptions, GetResponse, KeyValue, TxnOpResponse};
use leasehold_core::{Effect, Error, ErrorKind, GoneReason};

use crate::{
    entry::{Entry, Value},
    error::Fault,
    keys::Keys,
    line::{Contender, Line, Own, OwnKey, Pause},
    link::Link,
    proof::{Keyed, Seen},
    txn::{Done, of_owner, reading},
};

const BURIED: &str = "!buried";
const EVICTED: &str = "!evicted";

/// What an owner's key says of a grave.
pub(crate) fn grave(why: GoneReason) -> String {
    if why == GoneReason::Evicted { EVICTED } else { BURIED }.to_owned()
}

/// A resource, and what it says of some owners, in the order in which they were asked for.
pub(crate) struct Reading {
    pub(crate) line: Line,
    pub(crate) owns: Vec<OwnKey>,
}

impl Reading {
    /// Reads the answers to [`reading`], the last ones of a transaction.
    pub(crate) fn of(keys: &Keys, done: &Done, first: usize) -> Result<Reading, Fault> {
        let gets: Vec<&GetResponse> = done.answers.iter().skip(first).map(get).collect::<Result<_, _>>()?;
        let [line, pause, owners @ ..] = gets.as_slice() else { return Err(unanswered()) };
        let contenders = line.kvs().iter().map(|kv| contender(keys, kv)).collect::<Result<_, _>>()?;
        let total = usize::try_from(line.count()).unwrap_or(usize::MAX);
        let pause = pause.kvs().first().map(|kv| Pause { modified: kv.mod_revision(), lease: kv.lease() });
        let mut reading =
            Reading { line: Line { revision: done.revision, contenders, total, pause }, owns: Vec::new() };
        for answers in owners.chunks(2) {
            let (own, home) = owner(keys, answers)?;
            reading.owns.push(own);
            home.into_iter().for_each(|home| reading.add(home));
        }
        Ok(reading)
    }

    /// Adds a contender that stands too deep in the line to have been read with it.
    fn add(&mut self, deep: Contender) {
        let contenders = &mut self.line.contenders;
        if contenders.iter().all(|other| other.name != deep.name) {
            contenders.push(deep);
            contenders.sort_by_key(|contender| contender.created);
        }
    }
}

pub(crate) fn get(answer: &TxnOpResponse) -> Result<&GetResponse, Fault> {
    match answer {
        TxnOpResponse::Get(get) => Ok(get),
        _ => Err(Fault::Strange("a read was answered with something else".to_owned())),
    }
}

fn unanswered() -> Fault {
    Fault::Strange("a read has no answer".to_owned())
}

/// Reads the answers to [`of_owner`]: what there is of an owner, and the contender that bears its mark if it is still
/// this owner's.
fn owner(keys: &Keys, answers: &[&GetResponse]) -> Result<(OwnKey, Option<Contender>), Fault> {
    let [own, home] = answers else { return Err(unanswered()) };
    let home = home.kvs().first().map(|kv| contender(keys, kv)).transpose()?;
    let own = own.kvs().first();
    let known = OwnKey {
        own: own.map_or(Own::Nothing, |kv| match String::from_utf8_lossy(kv.value()).as_ref() {
            EVICTED => Own::Grave(GoneReason::Evicted),
            BURIED => Own::Grave(GoneReason::Cancelled),
            name => Own::Contender(name.to_owned()),
        }),
        modified: own.map_or(0, KeyValue::mod_revision),
        home: home.as_ref().map_or(0, |home| home.modified),
    };
    Ok((known, home.filter(|home| home.is_of(&home.name))))
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

    /// Adds what those who were asked for took over, if it stands too deep in the line to have been read with it.
    pub(crate) async fn with_deep(&self, keys: &Keys, mut reading: Reading) -> Result<Reading, Fault> {
        for own in reading.owns.clone() {
            let Own::Contender(name) = &own.own else { continue };
            if reading.line.total > reading.line.contenders.len()
                && let Some(deep) = self.contender(keys, name).await?
            {
                reading.add(deep);
            }
        }
        Ok(reading)
    }

    /// What there is of an owner, and its contender.
    pub(crate) async fn owner(&self, keys: &Keys, mark: &str) -> Result<(OwnKey, Option<Contender>), Fault> {
        let done = self.look(of_owner(keys, mark).into()).await?;
        let answers: Vec<&GetResponse> = done.answers.iter().map(get).collect::<Result<_, _>>()?;
        let (own, home) = owner(keys, &answers)?;
        let contender = match (&home, &own.own) {
            (None, Own::Contender(name)) => self.contender(keys, name).await?,
            _ => home,
        };
        Ok((own, contender.filter(|contender| contender.is_of(mark))))
    }

    /// One contender, if it is there.
    pub(crate) async fn contender(&self, keys: &Keys, name: &str) -> Result<Option<Contender>, Fault> {
        let asked = Keyed { key: keys.contender(name).into(), end: None };
        self.get(asked, GetOptions::new()).await?.kvs().first().map(|kv| contender(keys, kv)).transpose()
    }

    /// A read by itself.
    pub(crate) async fn get(&self, asked: Keyed, options: GetOptions) -> Result<GetResponse, Fault> {
        let options = match &asked.end {
            Some(end) => options.with_range(end.clone()),
            None => options,
        };
        let ask = |mut client: Client| {
            let (key, options) = (asked.key.clone(), options.clone());
            async move { client.get(key, Some(options)).await }
        };
        self.call_again(ask, |answer: &GetResponse, seen: Seen| seen.read(&asked, answer)).await
    }
}
