//! What is sent over a connection, and which answer to it is believed: see `proof`.

use std::sync::Arc;

use leasehold_core::RequestId;
use redis::{Cmd, Pipeline, Value};

use crate::{
    error::Fault,
    link::{Link, Wire},
    proof::{self, Bracket},
    script::Script,
};

impl Link {
    /// Calls a script; once more with its text, if the server does not know it.
    pub(crate) async fn run(&self, wire: &Arc<Wire>, script: &Script, mut call: Cmd) -> Result<Value, Fault> {
        let id = proof::number(&mut call, &self.ids);
        self.run_numbered(wire, script, &call, id).await
    }

    /// The second attempt has the same id: it is the same request, and either answer to it tells what became of it.
    async fn run_numbered(
        &self,
        wire: &Arc<Wire>,
        script: &Script,
        call: &Cmd,
        id: RequestId,
    ) -> Result<Value, Fault> {
        let answer = match wire.run(call, id).await {
            Err(fault) if fault.is_no_script() => {
                let answer = Box::pin(wire.run(&script.spelled_out(call), id)).await;
                wire.believed(proof::sent_with_text(id, answer, &wire.address))
            }
            answer => answer,
        };
        answer.inspect_err(|fault| self.noticed(wire, fault)).map_err(|fault| fault.of_script(script))
    }

    /// Calls one script many times, in one go; each has an answer of its own.
    pub(crate) async fn run_all(
        &self,
        wire: &Arc<Wire>,
        script: &Script,
        calls: Vec<Cmd>,
    ) -> Vec<Result<Value, Fault>> {
        let number = |mut call: Cmd| (proof::number(&mut call, &self.ids), call);
        let calls: Vec<(RequestId, Cmd)> = calls.into_iter().map(number).collect();
        let mut answers = self.pipe_calls(wire, &calls).await;
        let forgotten = |answer: &Result<Value, Fault>| matches!(answer, Err(fault) if fault.is_no_script());
        let again: Vec<usize> = (0..calls.len()).filter(|&index| forgotten(&answers[index])).collect();
        if let Some(&first) = again.first() {
            // The first brings the text along, the others find it there.
            let (id, call) = &calls[first];
            answers[first] = self.run_numbered(wire, script, call, *id).await;
            let rest: Vec<_> = again[1..].iter().map(|&index| calls[index].clone()).collect();
            let late = self.pipe_calls(wire, &rest).await;
            again[1..].iter().zip(late).for_each(|(&index, answer)| answers[index] = answer);
        }
        answers.into_iter().map(|answer| answer.map_err(|fault| fault.of_script(script))).collect()
    }

    async fn pipe_calls(&self, wire: &Arc<Wire>, calls: &[(RequestId, Cmd)]) -> Vec<Result<Value, Fault>> {
        if calls.is_empty() {
            return Vec::new();
        }
        let mut pipeline = Pipeline::with_capacity(calls.len());
        calls.iter().for_each(|(_, call)| {
            pipeline.add_command(call.clone());
        });
        let replies = |answers: Vec<Value>| -> Vec<Result<Value, Fault>> {
            let reply = |((id, _), answer): (&(RequestId, Cmd), Value)| wire.reply_to(*id, answer);
            calls.iter().zip(answers).map(reply).collect()
        };
        match wire.send_all(&pipeline, calls.len()).await.map(replies) {
            Ok(replies) => {
                if replies.iter().any(|reply| matches!(reply, Err(Fault::MixedUp(_)))) {
                    self.drop_wire(wire);
                }
                replies
            }
            Err(fault) => {
                self.noticed(wire, &fault);
                calls.iter().map(|_| Err(fault.clone())).collect()
            }
        }
    }

    /// Sends plain commands in one go.
    pub(crate) async fn pipe(&self, wire: &Arc<Wire>, calls: &[Cmd]) -> Vec<Result<Value, Fault>> {
        if calls.is_empty() {
            return Vec::new();
        }
        match self.pipe_bracketed(wire, calls).await {
            Ok(answers) => {
                answers.into_iter().map(|answer| answer.extract_error().map_err(Fault::Command)).collect()
            }
            Err(fault) => {
                self.noticed(wire, &fault);
                calls.iter().map(|_| Err(fault.clone())).collect()
            }
        }
    }

    async fn pipe_bracketed(&self, wire: &Wire, calls: &[Cmd]) -> Result<Vec<Value>, Fault> {
        let bracket = Bracket::new(&self.ids);
        let answers = wire.send_all(&bracket.around(calls), calls.len() + 2).await?;
        wire.believed(bracket.open(answers, &wire.address))
    }

    /// Calls a script at the node that its slot is on the way to. With its text: that node may not know it.
    pub(crate) async fn run_asking(
        &self,
        wire: &Arc<Wire>,
        script: Option<&Script>,
        mut call: Cmd,
    ) -> Result<Value, Fault> {
        let asking = Cmd::new().arg("ASKING").to_owned();
        let Some(script) = script else {
            let answers = self.pipe(wire, &[asking, call]).await;
            return answers.into_iter().nth(1).unwrap_or_else(|| Err(no_answer()));
        };
        let id = proof::number(&mut call, &self.ids);
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(asking).add_command(script.spelled_out(&call));
        let answers = wire.send_all(&pipeline, 2).await;
        let reply = answers.and_then(|answers| match answers.into_iter().nth(1) {
            Some(answer) => {
                let answer = wire.reply_to(id, answer);
                wire.believed(proof::sent_with_text(id, answer, &wire.address))
            }
            None => Err(no_answer()),
        });
        reply.inspect_err(|fault| self.noticed(wire, fault))
    }

    /// Any other command.
    pub(crate) async fn send(&self, wire: &Arc<Wire>, command: &Cmd) -> Result<Value, Fault> {
        let answer = self.pipe(wire, std::slice::from_ref(command)).await.pop();
        answer.unwrap_or_else(|| Err(no_answer())).inspect_err(|fault| self.noticed(wire, fault))
    }
}

fn no_answer() -> Fault {
    Fault::Strange("no answer came".to_owned())
}
