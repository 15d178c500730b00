//! The verb `renew`: plain holders many at a time, the others one script each, all in one go.

use std::sync::Arc;

use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Gone, Held, Kept, Renewal, Result, Verb};
use redis::{Cmd, Value};

use crate::{
    NAME,
    backend::{Redis, at_least_a_milli, millis},
    config::Replicas,
    error::Fault,
    keys::Keys,
    link::Wire,
    replicas,
    reply::{Fields, number},
    script::{RENEW, RENEW_ONE},
};

/// How many plain renewals one script makes: the server serves nobody else meanwhile.
const TOGETHER: usize = 64;

impl Redis {
    pub(crate) async fn renew_batch(&self, held: &[Held]) -> Vec<Result<Renewal>> {
        let at = |fault: Fault, held: &Held| fault.into_error().at(Verb::Renew, NAME).on(&held.resource);
        if self.link.config.replicas != Replicas::None {
            let answers = self.renew_replicated(held).await;
            return answers
                .into_iter()
                .zip(held)
                .map(|(answer, held)| answer.map_err(|f| at(f, held)))
                .collect();
        }
        let wire = match self.link.wire().await {
            Ok(wire) => wire,
            Err(fault) => return held.iter().map(|held| Err(at(fault.clone(), held))).collect(),
        };
        let mut answers: Vec<Option<Result<Renewal, Fault>>> =
            held.iter().map(|held| self.refuse(held).map(Err)).collect();
        self.renew_plain(&wire, held, &mut answers).await;
        self.renew_others(&wire, held, &mut answers).await;
        let unanswered = || Err(Fault::Strange("a renewal has no answer".to_owned()));
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered));
        answers.zip(held).map(|(answer, held)| answer.map_err(|fault| at(fault, held))).collect()
    }

    /// A renewal that too few replicas have does not count: its effect is unknown, and the deadline stays.
    async fn renew_replicated(&self, held: &[Held]) -> Vec<Result<Renewal, Fault>> {
        let refused: Vec<Option<Fault>> = held.iter().map(|held| self.refuse(held)).collect();
        let asked = held.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let calls: Vec<Cmd> = asked.map(|(held, _)| self.renew_call(held)).collect();
        let outcome = self.renew_acknowledged(held, calls).await;
        let mut answers = match outcome {
            Ok(answers) => answers.into_iter(),
            Err(fault) => held.iter().map(|_| Err(fault.clone())).collect::<Vec<_>>().into_iter(),
        };
        let next =
            || answers.next().unwrap_or_else(|| Err(Fault::Strange("a renewal has no answer".to_owned())));
        let mut next = next;
        refused.into_iter().map(|refused| refused.map_or_else(&mut next, Err)).collect()
    }

    async fn renew_acknowledged(
        &self,
        held: &[Held],
        calls: Vec<Cmd>,
    ) -> Result<Vec<Result<Renewal, Fault>>, Fault> {
        let Some(one) = held.first().filter(|_| !calls.is_empty()) else { return Ok(Vec::new()) };
        let wire = self.pool.take(&self.link).await?;
        let mut keys = Keys::of(&one.resource);
        let done = self.pool.run(wire, &self.link, &RENEW_ONE, calls, keys.mark()).await;
        let (answers, acks) = done.inspect_err(|_| self.pool.clear())?;
        let needed = replicas::needed(&self.link);
        let count = |answer: Result<Renewal, Fault>| match answer {
            Ok(Renewal::Kept(_)) if acks < needed => Err(replicas::too_few(acks, needed, Effect::Unknown)),
            answer => answer,
        };
        Ok(answers.into_iter().map(|answer| count(answer.and_then(renewal))).collect())
    }

    fn refuse(&self, held: &Held) -> Option<Fault> {
        let most = self.info.limits.note;
        let too_long = held.note.as_ref().is_some_and(|note| note.len() > most);
        too_long
            .then(|| Fault::Refused(Error::new(ErrorKind::Limit, format!("a note has at most {most} bytes"))))
    }

    /// Those without a note to write, in the hope that they hold 1 of 1.
    async fn renew_plain(
        &self,
        wire: &Arc<Wire>,
        held: &[Held],
        answers: &mut [Option<Result<Renewal, Fault>>],
    ) {
        let plain: Vec<usize> =
            (0..held.len()).filter(|&index| answers[index].is_none() && held[index].note.is_none()).collect();
        let groups: Vec<&[usize]> = plain.chunks(TOGETHER).collect();
        let calls = groups.iter().map(|group| plain_call(held, group)).collect();
        let replies = self.link.run_all(wire, &RENEW, calls).await;
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

    async fn renew_others(
        &self,
        wire: &Arc<Wire>,
        held: &[Held],
        answers: &mut [Option<Result<Renewal, Fault>>],
    ) {
        let others: Vec<usize> = (0..held.len()).filter(|&index| answers[index].is_none()).collect();
        let calls = others.iter().map(|&index| self.renew_call(&held[index])).collect();
        let replies = self.link.run_all(wire, &RENEW_ONE, calls).await;
        for (&index, reply) in others.iter().zip(replies) {
            answers[index] = Some(reply.and_then(renewal));
        }
    }

    fn renew_call(&self, held: &Held) -> Cmd {
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

fn plain_call(held: &[Held], group: &[usize]) -> Cmd {
    let mut call = RENEW.call(group.len());
    for &index in group {
        call.arg(Keys::of(&held[index].resource).owner());
    }
    for &index in group {
        call.arg(held[index].owner.reveal()).arg(at_least_a_milli(held[index].ttl));
    }
    call
}

fn plainly_kept(held: &Held, token: &Value) -> Option<Renewal> {
    let token = FencingToken::try_from(number(token)?).ok()?;
    Some(Renewal::Kept(Kept::new(token, held.ttl)))
}

fn renewal(reply: Value) -> Result<Renewal, Fault> {
    let mut fields = Fields::of(reply)?;
    match fields.text()?.as_str() {
        "kept" => {
            let mut kept = Kept::new(fields.token()?, fields.millis()?.unwrap_or_default());
            kept.evicting = fields.text()?.contains('e');
            kept.asked = fields.asked()?;
            Ok(Renewal::Kept(kept))
        }
        "queued" => Ok(Renewal::Queued { remaining: fields.millis()?.unwrap_or_default() }),
        "gone" => {
            let why = match fields.bytes()?.as_deref() {
                None => Gone::NotThere,
                Some(b"e") => Gone::Evicted,
                Some(_) => Gone::Buried,
            };
            Ok(Renewal::Gone { why })
        }
        other => Err(Fault::Strange(format!("a renewal was answered with {other:.20?}"))),
    }
}
