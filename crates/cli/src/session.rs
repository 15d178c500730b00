//! What the operator's commands share: a client of the store, and how to print.

use std::{path::PathBuf, time::Duration};

use leasehold::{
    AuditRecord, Client, Clock as _, CommandOutcome, Eviction, FencingToken, Leak, Listing, OperatorAction,
    OperatorCommand, Page, Query, Resource, Snapshot, SystemClock, WallTime,
};

use crate::{
    args::Global,
    commands::{Access, Context},
    exit::Failure,
    names::Scope,
    output::Output,
    screen::Screen,
    store::Store,
    text,
};

/// The store and the output of one operator command, such as `leasehold ls`.
pub(crate) struct OperatorSession {
    client: Client,
    pub(crate) output: Output,
    /// `leasehold`, with the typed options that choose the store and the names: the start of every command line that is printed for
    /// copying.
    program: String,
    /// The prefix of a list whose prefix was not typed: empty, or the default namespace.
    pub(crate) default_prefix: String,
}

impl OperatorSession {
    pub(crate) async fn open(
        global: &Global,
        output: Output,
        access: Access,
    ) -> Result<OperatorSession, Failure> {
        let context = Context::new(global, output)?;
        let client = Client::new(context.open(access).await?);
        let program = program(global, &context.store);
        let default_prefix = global.namespace.as_ref().map_or(String::new(), |name| format!("{name}:"));
        Ok(OperatorSession { client, output, program, default_prefix })
    }

    /// A command line that the user can copy into a shell.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        command_line(&self.program, words)
    }

    /// The same for an order about the lock of another program. A Redlock set takes no orders, but each of its nodes does: the user
    /// puts the address of a node for `HOST`.
    pub(crate) fn foreign_command(&self, words: &[&str]) -> String {
        let program = if self.takes_orders() { &self.program } else { "leasehold --store redis://HOST" };
        command_line(program, words)
    }

    pub(crate) fn screen(&self) -> Screen {
        let screen = Screen::now();
        if self.output.json { Screen { colour: false, can_redraw: false, ..screen } } else { screen }
    }

    /// Fails if the store does not support orders (`ask`, `evict`, `pause`, `resume`, `resize`).
    pub(crate) fn check_orders_supported(&self) -> Result<(), Failure> {
        if self.takes_orders() {
            return Ok(());
        }
        let name = self.client.info().name;
        let message = format!("a {name} store does not support orders (ask, evict, pause, resume, resize)");
        Err(Failure::config(message)
            .hint("wait until the lease runs out, or stop the holder's process yourself"))
    }

    /// Whether the store itself takes orders. On a Redlock set, each node takes them by itself.
    pub(crate) fn takes_orders(&self) -> bool {
        self.client.info().capabilities.orders
    }

    /// The current state of one resource.
    pub(crate) async fn snapshot(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let page = self.client.inspect(&Query::One(resource.clone())).await?;
        Ok(page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource.clone())))
    }

    /// The current state of all resources whose key starts with `prefix`, in the order of their keys.
    pub(crate) async fn snapshots(&self, prefix: &str) -> Result<Vec<Snapshot>, Failure> {
        Ok(self.client.list(prefix).await?)
    }

    /// The first `most` resources for which `wanted` is true, in the order of their keys. No more pages are read
    /// than that takes.
    pub(crate) async fn some_snapshots(
        &self,
        prefix: &str,
        most: usize,
        mut wanted: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Vec<Snapshot>, Failure> {
        let mut all = Vec::new();
        // A short first page is enough for most short lists.
        let mut listing = Some(Listing::of(prefix).limit(u32::try_from(most).unwrap_or(0)));
        while let Some(part) = listing.take().filter(|_| all.len() < most) {
            let Page::Resources { snapshots, next } = self.client.inspect(&Query::Resources(part)).await?
            else {
                return Err(Failure::internal(
                    "the store replied to a list of resources with something else",
                ));
            };
            all.extend(snapshots.into_iter().filter(&mut wanted));
            listing = next.map(|next| Listing::of(prefix).after(next));
        }
        all.truncate(most);
        Ok(all)
    }

    pub(crate) async fn snapshots_in(&self, scope: &Scope) -> Result<Vec<Snapshot>, Failure> {
        match scope {
            Scope::One(resource) => Ok(vec![self.snapshot(resource).await?]),
            Scope::Prefix(prefix) => self.snapshots(prefix).await,
        }
    }

    /// The newest `most` audit records for which `wanted` is true, newest first, and whether there are more.
    pub(crate) async fn audit(
        &self,
        prefix: &str,
        most: usize,
        wanted: impl Fn(&AuditRecord) -> bool,
    ) -> Result<(Vec<AuditRecord>, bool), Failure> {
        let mut all = Vec::new();
        let mut listing = Some(Listing::of(prefix));
        while let Some(part) = listing.take() {
            let Page::Audit { records, next } = self.client.inspect(&Query::Audit(part)).await? else {
                return Err(Failure::internal("the store replied to an audit query with something else"));
            };
            all.extend(records.into_iter().filter(&wanted));
            if all.len() > most {
                all.truncate(most);
                return Ok((all, true));
            }
            listing = next.map(|next| Listing::of(prefix).after(next));
        }
        Ok((all, false))
    }

    /// The pause of this resource, if it is paused. Who paused it comes from the audit trail; if that cannot be
    /// read, it is left out.
    pub(crate) async fn pause_info(&self, snapshot: &Snapshot) -> Option<PauseInfo> {
        let (left, resource) = (snapshot.paused_for?, &snapshot.resource);
        let pause = OperatorAction::Pause { lasting: left }.as_str();
        let is_pause =
            |record: &AuditRecord| record.resource == *resource && record.command == pause && record.done;
        let found = self.audit(resource.key(), 1, is_pause).await;
        let order = found.ok().and_then(|(records, _)| records.into_iter().next());
        Some(PauseInfo { left, order })
    }

    /// How long ago the holder with this token was evicted at its expiry, by the audit trail. `None` if the trail
    /// does not say.
    pub(crate) async fn evicted_ago(&self, resource: &Resource, token: FencingToken) -> Option<Duration> {
        let evict = OperatorAction::Evict(Eviction::AtExpiry).as_str();
        let is_eviction = |record: &AuditRecord| {
            record.resource == *resource
                && record.token == Some(token)
                && record.command == evict
                && record.done
        };
        let (records, _) = self.audit(resource.key(), usize::MAX, is_eviction).await.ok()?;
        // The first one counts: since then, the lease is not renewed.
        let micros = SystemClock.wall().as_micros().saturating_sub(records.last()?.at.as_micros());
        Some(Duration::from_micros(micros))
    }

    /// All keys without a ttl that the query finds, page by page.
    pub(crate) async fn leaks(
        &self,
        query: impl Fn(Listing) -> Query,
    ) -> Result<Vec<Leak>, leasehold::Error> {
        let mut all = Vec::new();
        let mut listing = Some(Listing::default());
        while let Some(part) = listing.take() {
            if let Page::Leaks { found, next } = self.client.inspect(&query(part)).await? {
                all.extend(found);
                listing = next.map(|next| Listing::default().after(next));
            }
        }
        Ok(all)
    }

    pub(crate) async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome, Failure> {
        Ok(self.client.order(order).await?)
    }
}

fn command_line(program: &str, words: &[&str]) -> String {
    let quoted = words.iter().map(|word| text::quoted(word));
    std::iter::once(program.to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

/// `leasehold`, with the typed options that choose the store and the names.
pub(crate) fn program(global: &Global, store: &Store) -> String {
    // What comes from a variable needs no option in a printed command: the user's shell has the variable.
    let typed = global.typed;
    let path = |typed: bool, path: &Option<PathBuf>| {
        path.as_ref().filter(|_| typed).map(|path| path.display().to_string())
    };
    let options = [
        ("--config", path(typed.config, &global.config)),
        ("--store", typed.store.then(|| store.shown().to_owned())),
        ("--password-file", path(typed.password_file, &global.password_file)),
    ];
    let given = options
        .into_iter()
        .filter_map(|(option, value)| Some(format!(" {option} {}", text::quoted(&value?))));
    let no_namespace = if global.no_namespace { " --no-namespace" } else { "" };
    format!("leasehold{}{no_namespace}", given.collect::<String>())
}

/// A pause, and the order that began it, if the audit trail has it.
#[derive(Debug)]
pub(crate) struct PauseInfo {
    left: Duration,
    order: Option<AuditRecord>,
}

impl PauseInfo {
    /// `Paused until T by USER: REASON; current holders keep it.`
    pub(crate) fn sentence(&self, now: WallTime) -> String {
        let order = self.order.as_ref().map(|order| (order.by.as_str(), order.why.as_str()));
        text::paused(now.after(self.left), order) + "."
    }
}
