//! A line as it is, read from the servers: who is there, what an operator said, and what stands in the nodes.

use leasehold_core::{Blocked, ClaimRef, FencingToken, HeldBy, Resource, Timestamp};
use zookeeper_client::{Error as Driver, MultiReadResult, Stat};

use crate::{
    control::Control,
    error::Fault,
    line::{Line, Seating},
    names::{folder, marker},
    record::{Record, token},
    session::Session,
};

/// How many nodes are read in one request.
pub(crate) const READ: usize = 100;
/// How many of a line are weighed: those behind cannot move anyway.
const WEIGHED: usize = 2 * READ;

/// A line, and what an operator said to it.
pub(crate) struct View {
    pub(crate) line: Line,
    pub(crate) control: Option<Control>,
    pub(crate) pzxid: i64,
    /// Of the folder: it changes with every transaction that gives a claim a contender.
    pub(crate) version: i32,
}

impl View {
    pub(crate) fn seating(&self) -> Seating {
        self.line.seating(self.control.as_ref())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.control.as_ref().is_some_and(Control::is_paused)
    }
}

/// Whether a folder's data names another resource: then the answer belongs to another request. Folders that Curator made, and
/// those to which a version from before markers wrote last, name none.
fn names_another(data: &[u8], resource: &Resource) -> bool {
    let key = std::str::from_utf8(data).ok().filter(|key| Resource::from_key(key).is_ok());
    key.is_some_and(|key| key != resource.key())
}

/// A contender's node, read.
pub(crate) struct Seen {
    pub(crate) position: usize,
    pub(crate) record: Record,
    pub(crate) stat: Stat,
}

impl Session {
    /// Forgets what is remembered of a claim whose node is not in the line: another session has let it go. Whether that
    /// was so.
    pub(crate) fn forget_gone(&self, claim: &ClaimRef, view: Option<&View>) -> bool {
        let is_there = |node: &str| view.is_some_and(|view| view.line.position(node).is_some());
        let mut entries = self.entries();
        let gone = entries.get(claim).is_some_and(|entry| !is_there(&entry.node));
        let entry = if gone { entries.remove(claim) } else { None };
        drop(entries);
        drop(entry); // outside of the lock: it rings
        gone
    }

    /// The line as it is, one request; one more if an operator has said something. None if it has no folder.
    pub(crate) async fn view(&self, resource: &Resource, now: Timestamp) -> Result<Option<View>, Fault> {
        let (path, mut reader) = (folder(resource), self.client.new_multi_reader());
        reader.add_get_data(&path).map_err(Fault::of)?;
        reader.add_get_children(&path).map_err(Fault::of)?;
        let mut answers = reader.commit().await.map_err(Fault::of)?.into_iter();
        let (children, stat) = match (answers.next(), answers.next()) {
            (Some(MultiReadResult::Data { data, stat }), Some(MultiReadResult::Children { children }))
                if !names_another(&data, resource) =>
            {
                (children, stat)
            }
            (Some(MultiReadResult::Error { err: Driver::NoNode }), _) => return Ok(None),
            (Some(MultiReadResult::Error { err }), _) => return Err(Fault::of(err)),
            _ => return Err(Fault::unfit()),
        };
        let line = Line::of(children)?;
        let control = if line.has_control { self.control(resource, now).await? } else { None };
        Ok(Some(View { line, control, pzxid: stat.pzxid, version: stat.version }))
    }

    /// The same with the weights that were lowered since, which names do not tell: one more request if anyone weighs
    /// more than one.
    pub(crate) async fn weighed(&self, resource: &Resource, now: Timestamp) -> Result<Option<View>, Fault> {
        let Some(mut view) = self.view(resource, now).await? else { return Ok(None) };
        let all = view.line.contenders.len();
        self.weigh(resource, &mut view.line, all, None).await?;
        Ok(Some(view))
    }

    /// Learns of the first so many which weigh less than their names say. The answer must contain the witness.
    pub(crate) async fn weigh(
        &self,
        resource: &Resource,
        line: &mut Line,
        first: usize,
        witness: Option<&str>,
    ) -> Result<(), Fault> {
        let heavy = |position: &usize| line.contenders[*position].share.weight() > 1;
        let heavy: Vec<_> = (0..first).filter(heavy).take(WEIGHED).collect();
        for Seen { position, record, .. } in self.read_witnessed(resource, line, &heavy, witness).await? {
            if let Some(weight) = record.weight {
                let name = line.contenders[position].name.clone();
                line.lower(&name, weight);
            }
        }
        Ok(())
    }

    /// Reads the nodes at these positions. Those that are gone are left out.
    pub(crate) async fn read(
        &self,
        resource: &Resource,
        line: &Line,
        positions: &[usize],
    ) -> Result<Vec<Seen>, Fault> {
        self.read_witnessed(resource, line, positions, None).await
    }

    /// The same for what a grant may depend on: the same request lists the folder, and the list must contain the name of the
    /// contender that asks. So the answer is of this line and not older than the contender, whichever client wrote the folder's data.
    async fn read_witnessed(
        &self,
        resource: &Resource,
        line: &Line,
        positions: &[usize],
        witness: Option<&str>,
    ) -> Result<Vec<Seen>, Fault> {
        let (folder, mut seen) = (folder(resource), Vec::with_capacity(positions.len()));
        for positions in positions.chunks(READ) {
            let mut reader = self.client.new_multi_reader();
            reader.add_get_data(&folder).map_err(Fault::of)?;
            for &position in positions {
                let path = format!("{folder}/{}", line.contenders[position].name);
                reader.add_get_data(&path).map_err(Fault::of)?;
            }
            if witness.is_some() {
                reader.add_get_children(&folder).map_err(Fault::of)?;
            }
            let mut answers = reader.commit().await.map_err(Fault::of)?;
            if let Some(witness) = witness {
                let listed = answers.pop();
                let is_there = |children: &[String]| children.iter().any(|child| child == witness);
                if !matches!(listed, Some(MultiReadResult::Children { children }) if is_there(&children)) {
                    return Err(Fault::unfit());
                }
            }
            let is_another = |answer: &MultiReadResult| matches!(answer, MultiReadResult::Data { data, .. } if names_another(data, resource));
            if answers.len() != 1 + positions.len() || is_another(&answers[0]) {
                return Err(Fault::unfit());
            }
            for (&position, answer) in positions.iter().zip(answers.into_iter().skip(1)) {
                if let MultiReadResult::Data { data, stat } = answer {
                    seen.push(Seen { position, record: Record::read(&data), stat });
                }
            }
        }
        Ok(seen)
    }

    /// The token of whoever has this node.
    pub(crate) async fn token_of(
        &self,
        resource: &Resource,
        record: &Record,
        stat: &Stat,
    ) -> Result<FencingToken, Fault> {
        if let (true, Some(owner)) = (record.downgraded, record.heir()) {
            let claim = ClaimRef { resource: resource.clone(), owner };
            if let Some(stat) = self.client.check_stat(&marker(&claim)).await.map_err(Fault::of)? {
                return Ok(token(stat.czxid)?);
            }
        }
        Ok(token(stat.czxid)?)
    }

    /// As others see the holder that has this node.
    pub(crate) async fn held_by(
        &self,
        resource: &Resource,
        line: &Line,
        seen: &Seen,
        now: Timestamp,
    ) -> Result<HeldBy, Fault> {
        let token = self.token_of(resource, &seen.record, &seen.stat).await?;
        let named = line.contenders[seen.position].share.weight();
        let weight = seen.record.weight.map_or(named, |weight| weight.min(named));
        let now = self.server_millis(now);
        Ok(seen.record.seen(&seen.stat, token, weight, now, self.silence_max))
    }

    /// A few of the holders, and the newest change among those that are looked at.
    pub(crate) async fn holders(
        &self,
        resource: &Resource,
        view: &View,
        now: Timestamp,
    ) -> Result<(Vec<HeldBy>, i64), Fault> {
        let most = view.seating().seated.min(Blocked::HOLDERS_MAX);
        let seen = self.read(resource, &view.line, &(0..most).collect::<Vec<_>>()).await?;
        let mut holders = Vec::with_capacity(seen.len());
        for seen in &seen {
            holders.push(self.held_by(resource, &view.line, seen, now).await?);
        }
        let said = view.control.as_ref().map_or(0, |control| control.mzxid);
        let newest = seen.iter().map(|seen| seen.stat.mzxid).chain([said, view.pzxid]).max();
        Ok((holders, newest.unwrap_or(0)))
    }
}
