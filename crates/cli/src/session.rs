//! What the operator's commands share: a client of the store, and how to print.

use std::env;

use leasehold::{
    AuditRecord, Client, CommandOutcome, Leak, Listing, OperatorCommand, Page, Query, Resource, Snapshot,
};

use crate::{
    args::Global, commands::Context, exit::Failure, names::Scope, output::Output, screen::Screen, text,
};

/// The store and the output of one operator command, such as `leasehold ls`.
pub(crate) struct OperatorSession {
    client: Client,
    pub(crate) output: Output,
    /// `leasehold`, with `--store` if this call has it: the start of every command line that is printed for
    /// copying.
    program: String,
}

impl OperatorSession {
    pub(crate) async fn open(global: &Global, output: Output) -> Result<OperatorSession, Failure> {
        let context = Context::new(global, output)?;
        let client = Client::new(context.store.open().await?);
        // clap reports the option and the variable in the same field. A store from the variable needs no
        // `--store` in a printed command: the user's shell has the variable.
        let was_typed = env::var("LEASEHOLD_STORE").ok() != global.store && global.store.is_some();
        let store = was_typed.then(|| format!(" --store {}", text::quoted(context.store.shown())));
        Ok(OperatorSession { client, output, program: format!("leasehold{}", store.unwrap_or_default()) })
    }

    /// A command line that the user can copy into a shell.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let quoted = words.iter().map(|word| text::quoted(word));
        std::iter::once(self.program.clone()).chain(quoted).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn screen(&self) -> Screen {
        let screen = Screen::now();
        if self.output.json { Screen { colour: false, can_redraw: false, ..screen } } else { screen }
    }

    /// Fails if the store does not support orders (`ask`, `evict`, `pause`, `resume`, `resize`).
    pub(crate) fn check_orders_supported(&self) -> Result<(), Failure> {
        let info = self.client.info();
        if info.capabilities.orders {
            return Ok(());
        }
        let message =
            format!("a {} store does not support orders (ask, evict, pause, resume, resize)", info.name);
        Err(Failure::config(message)
            .hint("wait until the lease runs out, or stop the holder's process yourself"))
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
