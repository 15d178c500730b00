//! The verb `renew`: plain holders many at a time, the others one script each, all in one go.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use leasehold_core::{
    Effect, Error, ErrorKind, FencingToken, GoneReason, OwnerToken, RenewRequest, Renewal, Renewed, Result,
    Verb,
};
use redis::{Cmd, Value};

use crate::{
    NAME,
    backend::{Redis, at_least_a_milli, millis},
    cluster::Node,
    config::Replicas,
    error::Fault,
    keys::Keys,
    reply::{Fields, number},
    script::{RENEW, RENEW_ONE},
    together,
};

/// How many plain renewals one script makes: the server serves nobody else meanwhile.
const TOGETHER: usize = 64;

impl Redis {
    pub(crate) async fn renew_batch(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let at =
            |fault: Fault, held: &RenewRequest| fault.into_error().at(Verb::Renew, NAME).on(&held.resource);
        if self.route.config().replicas != Replicas::None {
            let answers = self.renew_replicated(held).await;
            return answers
                .into_iter()
                .zip(held)
                .map(|(answer, held)| answer.map_err(|f| at(f, held)))
                .collect();
        }
        let mut answers: Vec<Option<Result<Renewal, Fault>>> =
            held.iter().map(|held| self.refuse(held).map(Err)).collect();
        self.renew_plain(held, &mut answers).await;
        self.renew_others(held, &mut answers).await;
        let unanswered = || Err(Fault::Strange("a renewal has no answer".to_owned()));
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered));
        answers.zip(held).map(|(answer, held)| answer.map_err(|fault| at(fault, held))).collect()
    }

    /// A renewal that too few replicas have does not count: its effect is unknown, and the deadline stays.
    async fn renew_replicated(&self, held: &[RenewRequest]) -> Vec<Result<Renewal, Fault>> {
        let unanswered = || Fault::Strange("a renewal has no answer".to_owned());
        let mut answers: Vec<Result<Renewal, Fault>> =
            held.iter().map(|held| Err(self.refuse(held).unwrap_or_else(unanswered))).collect();
        let ours = (0..held.len()).filter(|&index| self.refuse(&held[index]).is_none()).collect();
        self.renew_round(held, ours, &mut answers).await;
        // Whoever does not have the slot has done nothing, and has said who has it.
        let moved = |answer: &Result<_, Fault>| matches!(answer, Err(fault) if fault.redirect().is_some());
        let moved: Vec<usize> = (0..held.len()).filter(|&index| moved(&answers[index])).collect();
        if self.route.cluster().is_some() && !moved.is_empty() {
            self.renew_round(held, moved, &mut answers).await;
        }
        answers.into_iter().map(|answer| answer.map_err(|fault| self.route.in_words(fault))).collect()
    }

    /// Node by node, all nodes at once.
    async fn renew_round(
        &self,
        held: &[RenewRequest],
        which: Vec<usize>,
        answers: &mut [Result<Renewal, Fault>],
    ) {
        let mut by_node: BTreeMap<u32, (Arc<Node>, Vec<usize>)> = BTreeMap::new();
        for index in which {
            match self.route.node(&held[index].resource) {
                Ok(node) => by_node.entry(node.number).or_insert_with(|| (node, Vec::new())).1.push(index),
                Err(fault) => answers[index] = Err(fault),
            }
        }
        let groups: Vec<_> = by_node.into_values().collect();
        let asked = groups.iter().map(|(node, indexes)| self.renew_acknowledged(node, held, indexes));
        for ((_, indexes), outcome) in groups.iter().zip(together::all(asked.collect()).await) {
            match outcome {
                Ok(replies) => indexes.iter().zip(replies).for_each(|(&index, reply)| answers[index] = reply),
                Err(fault) => indexes.iter().for_each(|&index| answers[index] = Err(fault.clone())),
            }
        }
    }

    async fn renew_acknowledged(
        &self,
        node: &Node,
        held: &[RenewRequest],
        indexes: &[usize],
    ) -> Result<Vec<Result<Renewal, Fault>>, Fault> {
        let wire = node.pool.take(&node.link).await?;
        let calls = indexes.iter().map(|&index| self.renew_call(&held[index])).collect();
        let mut keys = Keys::of(&held[indexes[0]].resource);
        let done = node.pool.run(wire, &node.link, &RENEW_ONE, calls, keys.mark()).await;
        let mut done = done.inspect_err(|_| node.pool.clear())?;
        let answers = std::mem::take(&mut done.answers);
        let count = |(&index, answer): (&usize, Result<Value, Fault>)| {
            let answer = answer.inspect_err(|fault| self.route.learn(&held[index].resource, node, fault));
            match (answer.and_then(renewal), done.enough()) {
                (Ok(Renewal::Renewed(_)), Err(why)) => Err(why(Effect::Unknown)),
                (answer, _) => answer,
            }
        };
        Ok(indexes.iter().zip(answers).map(count).collect())
    }

    fn refuse(&self, held: &RenewRequest) -> Option<Fault> {
        let most = self.info.limits.note;
        let too_long = held.note.as_ref().is_some_and(|note| note.len() > most);
        too_long
            .then(|| Fault::Refused(Error::new(ErrorKind::Limit, format!("a note has at most {most} bytes"))))
    }

    /// Those without a note to write, in the hope that they hold 1 of 1.
    async fn renew_plain(&self, held: &[RenewRequest], answers: &mut [Option<Result<Renewal, Fault>>]) {
        let twice = named_twice(held);
        let is_plain = |held: &RenewRequest| held.note.is_none() && !twice.contains(&held.owner);
        let plain: Vec<usize> =
            (0..held.len()).filter(|&index| answers[index].is_none() && is_plain(&held[index])).collect();
        // On a cluster a script has the keys of one slot, and while that moves, one key.
        let together = if self.route.cluster().is_some() { 1 } else { TOGETHER };
        let groups: Vec<&[usize]> = plain.chunks(together).collect();
        let call = |group: &&[usize]| (&held[group[0]].resource, plain_call(held, group));
        let replies = self.route.run_all(Some(&RENEW), groups.iter().map(call).collect()).await;
        for (group, reply) in groups.into_iter().zip(replies) {
            match reply {
                Ok(Value::Array(tokens)) if tokens.len() == group.len() => {
                    for (&index, token) in group.iter().zip(tokens) {
                        answers[index] = plainly_kept(&held[index], &token).map(Ok);
                    }
                }
                Ok(_) => {}
                Err(fault) => group.iter().for_each(|&index| answers[index] = Some(Err(fault.clone()))),
            }
        }
    }

    async fn renew_others(&self, held: &[RenewRequest], answers: &mut [Option<Result<Renewal, Fault>>]) {
        let others: Vec<usize> = (0..held.len()).filter(|&index| answers[index].is_none()).collect();
        let call = |&index: &usize| (&held[index].resource, self.renew_call(&held[index]));
        let replies = self.route.run_all(Some(&RENEW_ONE), others.iter().map(call).collect()).await;
        for (&index, reply) in others.iter().zip(replies) {
            answers[index] = Some(reply.and_then(renewal));
        }
        self.renew_moving(held, answers).await;
    }

    fn renew_call(&self, held: &RenewRequest) -> Cmd {
        let owner = held.owner.reveal();
        let mut call = self.call(&RENEW_ONE, &held.resource, &owner, 9);
        self.common(&mut call, &held.resource);
        call.arg(&owner).arg(millis(held.ttl));
        match &held.note {
            None => call.arg(""),
            Some(note) => call.arg([b"n", &**note].concat()),
        };
        call
    }
}

/// Those who are renewed more than once in a batch: one after the other, in its order.
fn named_twice(held: &[RenewRequest]) -> HashSet<OwnerToken> {
    let mut seen = HashSet::with_capacity(held.len());
    held.iter().map(|held| held.owner).filter(|owner| !seen.insert(*owner)).collect()
}

pub(crate) fn plain_call(held: &[RenewRequest], group: &[usize]) -> Cmd {
    let mut call = RENEW.call(group.len());
    for &index in group {
        call.arg(Keys::of(&held[index].resource).owner());
    }
    for &index in group {
        call.arg(held[index].owner.reveal()).arg(at_least_a_milli(held[index].ttl));
    }
    call
}

pub(crate) fn plainly_kept(held: &RenewRequest, token: &Value) -> Option<Renewal> {
    let token = FencingToken::try_from(number(token)?).ok()?;
    Some(Renewal::Renewed(Renewed::new(token, held.ttl)))
}

fn renewal(reply: Value) -> Result<Renewal, Fault> {
    let mut fields = Fields::of(reply)?;
    match fields.text()?.as_str() {
        "kept" => {
            let mut kept = Renewed::new(fields.token()?, fields.millis()?.unwrap_or_default());
            kept.evicting = fields.text()?.contains('e');
            kept.asked = fields.asked()?;
            Ok(Renewal::Renewed(kept))
        }
        "queued" => Ok(Renewal::Queued { remaining: fields.millis()?.unwrap_or_default() }),
        "gone" => {
            let why = match fields.bytes()?.as_deref() {
                None => GoneReason::NotThere,
                Some(b"e") => GoneReason::Evicted,
                Some(_) => GoneReason::Cancelled,
            };
            Ok(Renewal::Gone { why })
        }
        other => Err(Fault::Strange(format!("a renewal was answered with {other:.20?}"))),
    }
}
