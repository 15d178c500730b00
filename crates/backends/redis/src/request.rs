//! Sends scripts and commands over a connection, and checks which request each reply belongs to
//! (`request_id.rs`).
//!
//! Scripts are called by their digest. A server that was restarted does not know the digest and replies
//! `NOSCRIPT`, without effect; the call is then repeated with the source of the script.

use std::sync::Arc;

use leasehold_core::RequestId;
use redis::{Cmd, Pipeline, Value};

use crate::{
    connection::{Connection, Connections},
    error::StoreError,
    request_id::{self, PingBracket},
    script::Script,
};

/// The outcome of one call or command.
pub(crate) type Reply = Result<Value, StoreError>;

impl Connections {
    /// Calls a script.
    pub(crate) async fn run(&self, connection: &Arc<Connection>, script: &Script, mut call: Cmd) -> Reply {
        let id = request_id::add_id(&mut call, &self.request_ids);
        self.run_with_id(connection, script, &call, id).await
    }

    /// Calls a script whose call contains this id. The repetition after `NOSCRIPT` has the same id: it is the
    /// same request, and a reply to either of the two tells what became of it.
    async fn run_with_id(
        &self,
        connection: &Arc<Connection>,
        script: &Script,
        call: &Cmd,
        id: RequestId,
    ) -> Reply {
        let reply = match connection.run(call, id).await {
            Err(error) if error.is_no_script() => {
                let reply = Box::pin(connection.run(&script.with_source(call), id)).await;
                connection.note_misdelivery(request_id::expect_known_script(id, reply, &connection.address))
            }
            reply => reply,
        };
        reply
            .inspect_err(|error| self.discard_if_broken(connection, error))
            .map_err(|error| error.in_script(script))
    }

    /// Calls one script several times in one pipeline. Each call has its own reply.
    pub(crate) async fn run_all(
        &self,
        connection: &Arc<Connection>,
        script: &Script,
        calls: Vec<Cmd>,
    ) -> Vec<Reply> {
        let with_id = |mut call: Cmd| (request_id::add_id(&mut call, &self.request_ids), call);
        let calls: Vec<(RequestId, Cmd)> = calls.into_iter().map(with_id).collect();
        let mut replies = self.pipe_calls(connection, &calls).await;
        let is_no_script = |reply: &Reply| matches!(reply, Err(error) if error.is_no_script());
        let again: Vec<usize> = (0..calls.len()).filter(|&index| is_no_script(&replies[index])).collect();
        if let Some(&first) = again.first() {
            // The first call brings the source along; after it the server knows the digest.
            let (id, call) = &calls[first];
            replies[first] = self.run_with_id(connection, script, call, *id).await;
            let rest: Vec<_> = again[1..].iter().map(|&index| calls[index].clone()).collect();
            let repeated = self.pipe_calls(connection, &rest).await;
            again[1..].iter().zip(repeated).for_each(|(&index, reply)| replies[index] = reply);
        }
        replies.into_iter().map(|reply| reply.map_err(|error| error.in_script(script))).collect()
    }

    async fn pipe_calls(&self, connection: &Arc<Connection>, calls: &[(RequestId, Cmd)]) -> Vec<Reply> {
        if calls.is_empty() {
            return Vec::new();
        }
        let mut pipeline = Pipeline::with_capacity(calls.len());
        calls.iter().for_each(|(_, call)| {
            pipeline.add_command(call.clone());
        });
        let check = |replies: Vec<Value>| -> Vec<Reply> {
            let check = |((id, _), reply): (&(RequestId, Cmd), Value)| connection.check_reply(*id, reply);
            calls.iter().zip(replies).map(check).collect()
        };
        match connection.send_all(&pipeline, calls.len()).await.map(check) {
            Ok(replies) => {
                // After one misdelivered reply, every later one may belong to another request too.
                if replies.iter().any(|reply| matches!(reply, Err(StoreError::Misdelivered(_)))) {
                    self.discard(connection);
                }
                replies
            }
            Err(error) => {
                self.discard_if_broken(connection, &error);
                calls.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// Sends plain commands in one pipeline.
    pub(crate) async fn send_all(&self, connection: &Arc<Connection>, commands: &[Cmd]) -> Vec<Reply> {
        if commands.is_empty() {
            return Vec::new();
        }
        match self.send_bracketed(connection, commands).await {
            Ok(replies) => {
                replies.into_iter().map(|reply| reply.extract_error().map_err(StoreError::Command)).collect()
            }
            Err(error) => {
                self.discard_if_broken(connection, &error);
                commands.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    async fn send_bracketed(
        &self,
        connection: &Connection,
        commands: &[Cmd],
    ) -> Result<Vec<Value>, StoreError> {
        let bracket = PingBracket::new(&self.request_ids);
        let replies = connection.send_all(&bracket.wrap(commands), commands.len() + 2).await?;
        connection.note_misdelivery(bracket.unwrap(replies, &connection.address))
    }

    /// Calls a script, or sends a command if there is no script, at the node that imports the slot (after
    /// `-ASK`).
    ///
    /// The source of the script is sent along, because that node may not know it and a repetition would need
    /// a second `ASKING`.
    pub(crate) async fn run_asking(
        &self,
        connection: &Arc<Connection>,
        script: Option<&Script>,
        mut call: Cmd,
    ) -> Reply {
        let asking = Cmd::new().arg("ASKING").to_owned();
        let Some(script) = script else {
            let replies = self.send_all(connection, &[asking, call]).await;
            return replies.into_iter().nth(1).unwrap_or_else(|| Err(StoreError::missing_reply()));
        };
        let id = request_id::add_id(&mut call, &self.request_ids);
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(asking).add_command(script.with_source(&call));
        let replies = connection.send_all(&pipeline, 2).await;
        let reply = replies.and_then(|replies| match replies.into_iter().nth(1) {
            Some(reply) => {
                let reply = connection.check_reply(id, reply);
                connection.note_misdelivery(request_id::expect_known_script(id, reply, &connection.address))
            }
            None => Err(StoreError::missing_reply()),
        });
        reply.inspect_err(|error| self.discard_if_broken(connection, error))
    }

    /// Sends one plain command.
    pub(crate) async fn send(&self, connection: &Arc<Connection>, command: &Cmd) -> Reply {
        let reply = self.send_all(connection, std::slice::from_ref(command)).await.pop();
        reply
            .unwrap_or_else(|| Err(StoreError::missing_reply()))
            .inspect_err(|error| self.discard_if_broken(connection, error))
    }
}
