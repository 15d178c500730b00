//! Operator's commands on ZooKeeper: ask a holder to finish, evict it, pause, resume or resize a resource.
//!
//! 1. Read the contenders, the control node and the nodes of the holders.
//! 2. Choose the holder that the command is about: the holder with the given token, or the newest holder.
//! 3. If the command needs a holder and there is none with that token, write only the audit record and say
//!    which token is the newest now.
//! 4. Otherwise one transaction carries out the command and writes the audit record. If another client has
//!    changed one of the nodes since step 1, the transaction fails, and it starts again.
//!
//! A lock of another program has no token, so steps 2 to 4 do not choose it (ADR 0065). If only Curator holds the
//! resource, *ask to finish* writes Curator's own request to release into its node.
//!
//! | action | what the transaction changes |
//! |---|---|
//! | ask to finish, evict at expiry | the data of the holder's node, which it reads when it renews |
//! | evict foreign | deletes the node of another program, which the command names by a hash |
//! | evict now | deletes the holder's node and marker; a tombstone keeps its claim from coming back |
//! | pause, resume, resize | the control node |

use leasehold_core::{
    ClaimRef, CommandOutcome, Eviction, FencingToken, ForeignLock, OperatorAction, OperatorCommand,
    ReleaseRequest,
};
use zookeeper_client::Error as Driver;

use crate::{
    ROUNDS_MAX, RoundOutcome,
    backend::ZooKeeper,
    claim_record::{CURATOR_REVOKE, ClaimRecord, StoredFinishRequest},
    control_node::ControlNode,
    error::StoreError,
    paths::{self, folder},
    resource_view::{ContenderNode, ResourceView, foreign_lock},
    session::Session,
    transaction::{Transaction, TransactionError},
};

/// A holder, with its node.
struct HolderNode {
    token: FencingToken,
    node: ContenderNode,
}

/// A lock of another program that holds the resource, with its node.
struct ForeignNode {
    lock: ForeignLock,
    node: ContenderNode,
    /// Curator reads the data of its nodes: it can be asked to release.
    is_curator: bool,
}

/// A command and the state of its resource.
struct CommandContext<'a> {
    session: &'a Session,
    command: &'a OperatorCommand,
    view: Option<ResourceView>,
    holders: Vec<HolderNode>,
    foreign: Vec<ForeignNode>,
}

impl ZooKeeper {
    pub(crate) async fn try_order(&self, command: &OperatorCommand) -> Result<CommandOutcome, StoreError> {
        let session = self.session().await?;
        for _ in 0..ROUNDS_MAX {
            let context = CommandContext::read(&session, command).await?;
            if let RoundOutcome::Done(outcome) = context.carry_out().await? {
                session.trim_audit_trail().await;
                return Ok(outcome);
            }
        }
        Err(StoreError::contention())
    }
}

impl<'a> CommandContext<'a> {
    /// Step 1.
    async fn read(
        session: &'a Session,
        command: &'a OperatorCommand,
    ) -> Result<CommandContext<'a>, StoreError> {
        let resource = &command.resource;
        // An operator acts on what others have seen: the server that we are connected to may be behind.
        session.sync(&folder(resource)).await?;
        let view = session.view_with_weights(resource).await?;
        let (mut holders, mut foreign) = (Vec::new(), Vec::new());
        if let Some(view) = &view {
            let positions: Vec<_> = (0..view.admission().holder_count).collect();
            for node in session.read_contenders(resource, &view.list, &positions).await? {
                let contender = &view.list.contenders[node.position];
                if session.is_foreign(resource, contender, &node.record).await? {
                    let is_curator = contender.owner.is_some();
                    let lock = foreign_lock(resource, contender, &node);
                    foreign.extend(lock.map(|lock| ForeignNode { lock, node, is_curator }));
                    continue;
                }
                let token = session.token_of(resource, &node.record, &node.stat).await?;
                holders.push(HolderNode { token, node });
            }
        }
        Ok(CommandContext { session, command, view, holders, foreign })
    }

    /// Step 2.
    fn target(&self) -> Option<&HolderNode> {
        match self.command.token {
            Some(token) => self.holders.iter().find(|holder| holder.token == token),
            None => self.holders.iter().max_by_key(|holder| holder.token),
        }
    }

    /// The lock of another program that the command is about.
    fn foreign_target(&self) -> Option<&ForeignNode> {
        match self.command.action {
            OperatorAction::EvictForeign { value } => {
                self.foreign.iter().find(|foreign| foreign.lock.value_hash == value)
            }
            OperatorAction::Ask { .. } if self.command.token.is_none() && self.holders.is_empty() => {
                self.foreign.iter().find(|foreign| foreign.is_curator)
            }
            _ => None,
        }
    }

    /// Whether the command can have an effect.
    fn is_applicable(&self) -> bool {
        let action = self.command.action;
        let lacks_target = match action {
            OperatorAction::EvictForeign { .. } => self.foreign_target().is_none(),
            OperatorAction::Ask { .. } | OperatorAction::Evict(_) => {
                self.target().is_none() && self.foreign_target().is_none()
            }
            _ => self.target().is_none() && self.command.token.is_some(),
        };
        // Without contenders a new capacity has no effect: the next claim sets the capacity.
        let is_unused = self.view.as_ref().is_none_or(|view| view.list.contenders.is_empty());
        let resizes_unused = is_unused && matches!(action, OperatorAction::Resize { .. });
        !(lacks_target || resizes_unused)
    }

    /// Steps 3 and 4. `Retry` if another client changed one of the nodes at the same time.
    async fn carry_out(&self) -> Result<RoundOutcome<CommandOutcome>, StoreError> {
        let mut transaction = self.session.transaction();
        let is_applicable = self.is_applicable();
        self.session.add_audit_record(&mut transaction, self.command, is_applicable);
        if !is_applicable {
            transaction.commit_with_request_id().await?;
            let token = self.holders.iter().map(|holder| holder.token).max();
            return Ok(RoundOutcome::Done(CommandOutcome::HolderChanged { token }));
        }
        self.add_action(&mut transaction).await?;
        match transaction.commit_with_request_id().await {
            Ok(_) => Ok(RoundOutcome::Done(CommandOutcome::Done)),
            Err(TransactionError::Operation {
                source: Driver::NoNode | Driver::BadVersion | Driver::NodeExists,
                ..
            }) => Ok(RoundOutcome::Retry),
            Err(error) => Err(StoreError::from(error)),
        }
    }

    /// Adds the operations of the command's action.
    async fn add_action(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        if let Some(foreign) = self.foreign_target() {
            let version = Some(foreign.node.stat.version);
            match self.command.action {
                OperatorAction::Ask { .. } => {
                    transaction.set_data(&foreign.lock.key, CURATOR_REVOKE, version)
                }
                _ => transaction.delete(&foreign.lock.key, version),
            };
            return Ok(());
        }
        match (self.command.action, self.target(), &self.view) {
            (OperatorAction::Ask { within }, Some(target), Some(view)) => {
                let within_ms = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
                let request = StoredFinishRequest {
                    by: self.command.by.clone(),
                    why: self.command.why.clone(),
                    deadline_ms: self.session.server_now_ms().saturating_add(within_ms),
                };
                let mut record = target.node.record.clone();
                record.finish_request = Some(request);
                self.add_rewrite(transaction, view, target, &record);
                Ok(())
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some(target), Some(view)) => {
                let mut record = target.node.record.clone();
                record.evicting = true;
                self.add_rewrite(transaction, view, target, &record);
                Ok(())
            }
            (OperatorAction::Evict(Eviction::Now), Some(target), Some(view)) => {
                self.add_eviction(transaction, view, target).await
            }
            _ => self.add_control_change(transaction).await,
        }
    }

    /// Writes a new record into the holder's node, which must have the version that was read.
    fn add_rewrite(
        &self,
        transaction: &mut Transaction<'_>,
        view: &ResourceView,
        target: &HolderNode,
        record: &ClaimRecord,
    ) {
        let name = &view.list.contenders[target.node.position].name;
        let path = paths::contender(&self.command.resource, name);
        transaction.set_data(&path, &record.to_bytes(), Some(target.node.stat.version));
    }

    /// Deletes the holder's node and marker, and leaves a tombstone, so that the same claim is not granted
    /// again.
    async fn add_eviction(
        &self,
        transaction: &mut Transaction<'_>,
        view: &ResourceView,
        target: &HolderNode,
    ) -> Result<(), StoreError> {
        let (session, resource) = (self.session, &self.command.resource);
        let contender = &view.list.contenders[target.node.position];
        let path = paths::contender(resource, &contender.name);
        transaction.delete(&path, Some(target.node.stat.version));
        let Some(owner) = target.node.record.successor().or(contender.owner) else { return Ok(()) };
        let claim = ClaimRef { resource: resource.clone(), owner };
        let keep = ReleaseRequest::tombstone_ttl(session.lease_ttl);
        session.add_eviction_tombstone(transaction, &claim, keep);
        // Contenders of other programs and of early versions have no marker.
        let marker = paths::marker(&claim);
        if session.client.check_stat(&marker).await?.is_some() {
            transaction.delete(&marker, None);
        }
        Ok(())
    }

    /// Creates, changes or deletes the control node: a pause, its end, or another capacity.
    async fn add_control_change(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        let (session, resource) = (self.session, &self.command.resource);
        let old = self.view.as_ref().and_then(|view| view.control.as_ref());
        let new = self.changed_control(old);
        let path = paths::control_node(resource);
        match (old, new.is_empty()) {
            (None, true) => {}
            (Some(old), true) => {
                transaction.delete(&path, Some(old.version));
            }
            (Some(old), false) => {
                transaction.set_data(&path, &new.to_bytes(), Some(old.version));
            }
            (None, false) => {
                session.create_folder(&folder(resource)).await?;
                transaction.create(&path, &new.to_bytes(), &session.control_node_options());
            }
        }
        Ok(())
    }

    /// The control node after the command.
    fn changed_control(&self, old: Option<&ControlNode>) -> ControlNode {
        let mut control = old.cloned().unwrap_or_default();
        match self.command.action {
            OperatorAction::Pause { lasting } => {
                let lasting_ms = i64::try_from(lasting.as_millis()).unwrap_or(i64::MAX);
                control.pause(self.session.server_now_ms().saturating_add(lasting_ms));
            }
            OperatorAction::Resume => control.resume(),
            OperatorAction::Resize { capacity } => control.capacity = Some(capacity.get()),
            _ => {}
        }
        // Contenders that hold the resource now keep it, even if they do not fit the new capacity (ADR 0025).
        control.last_holder_key = self.view.as_ref().and_then(|view| {
            let holders = &view.list.contenders[..view.admission().holder_count];
            holders.last().map(|last| last.sort_key().to_owned())
        });
        control
    }
}
