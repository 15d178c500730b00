//! The operator's verb: what is done and its line in the audit trail are one transaction.

use leasehold_core::{
    ClaimRef, CommandOutcome, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand,
    ReleaseRequest, Timestamp,
};
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError};

use crate::{
    backend::ZooKeeper,
    control,
    error::Fault,
    evaluate::LOOKS,
    inspect::Entry,
    names::{AUDIT, folder, marker},
    record::{Record, Wish},
    session::Session,
    transaction::Transaction,
    view::{Seen, View},
};

/// How many orders the trail keeps. The oldest go first.
const TRAIL: usize = 5_000;
/// How many of the oldest go at once.
const TRIM: usize = 100;

/// A holder whom an order may mean.
struct Meant {
    token: FencingToken,
    seen: Seen,
}

impl ZooKeeper {
    pub(crate) async fn try_order(&self, order: &OperatorCommand) -> Result<CommandOutcome, Fault> {
        let session = self.link.session().await?;
        for _ in 0..LOOKS {
            if let Some(ordered) = self.order_once(&session, order).await? {
                self.trim(&session).await;
                return Ok(ordered);
            }
        }
        Err(Fault::too_busy())
    }

    /// `None` if someone else changed the same at the same time.
    async fn order_once(
        &self,
        session: &Session,
        order: &OperatorCommand,
    ) -> Result<Option<CommandOutcome>, Fault> {
        let (resource, now) = (&order.resource, self.now());
        session.client.sync(&folder(resource)).await.or_else(is_missing).map_err(Fault::of)?;
        let view = session.weighed(resource, now).await?;
        let holders = match &view {
            Some(view) => self.meant(session, order, view).await?,
            None => Vec::new(),
        };
        let newest = holders.iter().map(|meant| meant.token).max();
        let meant = match order.token {
            Some(token) => holders.iter().find(|meant| meant.token == token),
            None => holders.iter().max_by_key(|meant| meant.token),
        };
        let needs_holder = matches!(order.action, OperatorAction::Ask { .. } | OperatorAction::Evict(_));
        let nobody = view.as_ref().is_none_or(|view| view.line.contenders.is_empty());
        let absent = meant.is_none() && (needs_holder || order.token.is_some());
        let unused = nobody && matches!(order.action, OperatorAction::Resize { .. });
        let mut transaction = session.transaction();
        self.record(session, &mut transaction, order, !(absent || unused));
        if absent || unused {
            transaction.commit_named().await?;
            return Ok(Some(CommandOutcome::HolderChanged { token: newest }));
        }
        match (order.action, meant, &view) {
            (OperatorAction::Ask { within }, Some(meant), Some(view)) => {
                let mut record = meant.seen.record.clone();
                let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
                let until = session.server_millis(now).saturating_add(within);
                record.asked = Some(Wish { by: order.by.clone(), why: order.why.clone(), until });
                rewrite(&mut transaction, order, view, meant, &record);
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some(meant), Some(view)) => {
                let mut record = meant.seen.record.clone();
                record.evicting = true;
                rewrite(&mut transaction, order, view, meant, &record);
            }
            (OperatorAction::Evict(Eviction::Now), Some(meant), Some(view)) => {
                self.evict(session, &mut transaction, order, (view, meant), now).await?;
            }
            _ => self.control_ops(session, &mut transaction, order, view.as_ref(), now).await?,
        }
        match transaction.commit_named().await {
            Ok(_) => Ok(Some(CommandOutcome::Done)),
            Err(MultiWriteError::OperationFailed {
                source: Driver::NoNode | Driver::BadVersion | Driver::NodeExists,
                ..
            }) => Ok(None),
            Err(error) => Err(Fault::from(error)),
        }
    }

    async fn meant(
        &self,
        session: &Session,
        order: &OperatorCommand,
        view: &View,
    ) -> Result<Vec<Meant>, Fault> {
        let seated: Vec<_> = (0..view.seating().seated).collect();
        let mut meant = Vec::with_capacity(seated.len());
        for seen in session.read(&order.resource, &view.line, &seated).await? {
            let token = session.token_of(&order.resource, &seen.record, &seen.stat).await?;
            meant.push(Meant { token, seen });
        }
        Ok(meant)
    }

    fn record(
        &self,
        session: &Session,
        transaction: &mut Transaction<'_>,
        order: &OperatorCommand,
        done: bool,
    ) {
        let entry = Entry {
            resource: order.resource.key().to_owned(),
            token: order.token.map(FencingToken::get),
            by: order.by.clone(),
            why: order.why.clone(),
            command: order.action.as_str().to_owned(),
            done,
        };
        let bytes = serde_json::to_vec(&entry).expect("texts and numbers can be written");
        let mode = session.mode(CreateMode::PersistentSequential);
        transaction.create_sequential(&format!("{AUDIT}/order-"), &bytes, &mode);
    }

    /// The holder's node goes with its marker, and its owner does not come back with the same claim.
    async fn evict(
        &self,
        session: &Session,
        transaction: &mut Transaction<'_>,
        order: &OperatorCommand,
        (view, meant): (&View, &Meant),
        now: Timestamp,
    ) -> Result<(), Fault> {
        let contender = &view.line.contenders[meant.seen.position];
        let path = format!("{}/{}", folder(&order.resource), contender.name);
        transaction.delete(&path, Some(meant.seen.stat.version));
        if let Some(owner) = meant.seen.record.heir().or(contender.owner) {
            let claim = ClaimRef { resource: order.resource.clone(), owner };
            let keep = ReleaseRequest::tombstone_ttl(session.lease);
            session.add_grave(transaction, &claim, (keep, GoneReason::Evicted), now);
            // Strangers and versions from before markers have none.
            let marker = marker(&claim);
            if session.client.check_stat(&marker).await.map_err(Fault::of)?.is_some() {
                transaction.delete(&marker, None);
            }
        }
        Ok(())
    }

    /// A pause, its end, or another capacity.
    async fn control_ops(
        &self,
        session: &Session,
        transaction: &mut Transaction<'_>,
        order: &OperatorCommand,
        view: Option<&View>,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let old = view.and_then(|view| view.control.as_ref());
        let mut control = old.cloned().unwrap_or_default();
        match order.action {
            OperatorAction::Pause { lasting } => {
                let lasting = i64::try_from(lasting.as_millis()).unwrap_or(i64::MAX);
                control.pause(session.server_millis(now).saturating_add(lasting));
            }
            OperatorAction::Resume => control.resume(),
            OperatorAction::Resize { capacity } => control.capacity = Some(capacity.get()),
            _ => {}
        }
        // Whoever holds now goes on holding, whatever the rule will say from now on.
        let seated = view.map_or(0, |view| view.seating().seated);
        let last = view.and_then(|view| view.line.contenders[..seated].last());
        control.through = last.map(|last| last.key().to_owned());
        let path = control::path(&order.resource);
        match (old, control.is_empty()) {
            (None, true) => Ok(()),
            (Some(old), true) => {
                transaction.delete(&path, Some(old.version));
                Ok(())
            }
            (Some(old), false) => {
                transaction.set_data(&path, &control.to_bytes(), Some(old.version));
                Ok(())
            }
            (None, false) => {
                let folder = folder(&order.resource);
                let made = session.client.mkdir(&folder, &session.mode(CreateMode::Container)).await;
                made.map_err(Fault::of)?;
                let mode = session.mode(Session::CONTROL_MODE);
                transaction.create(&path, &control.to_bytes(), &mode);
                Ok(())
            }
        }
    }

    /// Keeps the trail bounded. A hint: nothing depends on it.
    async fn trim(&self, session: &Session) {
        let Ok(mut names) = session.client.list_children(AUDIT).await else { return };
        if names.len() <= TRAIL + TRIM {
            return;
        }
        names.sort_unstable();
        for name in names.iter().take(names.len() - TRAIL) {
            if session.client.delete(&format!("{AUDIT}/{name}"), None).await.is_err() {
                return;
            }
        }
    }
}

fn is_missing(error: Driver) -> Result<(), Driver> {
    if error == Driver::NoNode { Ok(()) } else { Err(error) }
}

/// Writes into the holder's node, unless someone else has in the meantime.
fn rewrite(
    transaction: &mut Transaction<'_>,
    order: &OperatorCommand,
    view: &View,
    meant: &Meant,
    record: &Record,
) {
    let name = &view.line.contenders[meant.seen.position].name;
    let path = format!("{}/{name}", folder(&order.resource));
    transaction.set_data(&path, &record.to_bytes(), Some(meant.seen.stat.version));
}
