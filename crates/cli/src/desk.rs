//! What the operator's commands begin with: a client that looks and orders, and a screen.

use std::env;

use leasehold::{
    AuditRecord, Client, CommandOutcome, Leak, Listing, OperatorCommand, Page, Query, Resource, Snapshot,
};

use crate::{
    args::Global, commands::Context, exit::Failure, names::Scope, output::Output, screen::Screen, text,
};

/// An operator's place of work.
pub(crate) struct Desk {
    client: Client,
    pub(crate) output: Output,
    /// `leasehold`, and how the same store is named, for commands that are shown to be copied.
    program: String,
}

impl Desk {
    pub(crate) async fn open(global: &Global, output: Output) -> Result<Desk, Failure> {
        let context = Context::new(global, output)?;
        let client = Client::new(context.store.open().await?);
        let is_said = env::var("LEASEHOLD_STORE").ok() != global.store && global.store.is_some();
        let store = is_said.then(|| format!(" --store {}", text::quoted(context.store.shown())));
        Ok(Desk { client, output, program: format!("leasehold{}", store.unwrap_or_default()) })
    }

    /// A command line to copy.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let quoted = words.iter().map(|word| text::quoted(word));
        std::iter::once(self.program.clone()).chain(quoted).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn screen(&self) -> Screen {
        let screen = Screen::now();
        if self.output.json { Screen { colour: false, moves: false, ..screen } } else { screen }
    }

    /// Does the store take orders, and keep what was ordered?
    pub(crate) fn check_orders(&self) -> Result<(), Failure> {
        let info = self.client.info();
        if info.capabilities.orders {
            return Ok(());
        }
        let message = format!("{} takes no orders", info.name);
        Err(Failure::config(message).hint("wait until the lease runs out, or stop its holder yourself"))
    }

    /// One resource as it is now.
    pub(crate) async fn one(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let page = self.client.inspect(&Query::One(resource.clone())).await?;
        Ok(page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource.clone())))
    }

    /// All that begin so, in key order.
    pub(crate) async fn all(&self, prefix: &str) -> Result<Vec<Snapshot>, Failure> {
        Ok(self.client.list(prefix).await?)
    }

    pub(crate) async fn within(&self, scope: &Scope) -> Result<Vec<Snapshot>, Failure> {
        match scope {
            Scope::One(resource) => Ok(vec![self.one(resource).await?]),
            Scope::Prefix(prefix) => self.all(prefix).await,
        }
    }

    /// The newest records that are wanted, newest first, and whether there are more.
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
                return Err(unexpected());
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

    /// Keys that would never end, as far as the query goes.
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

fn unexpected() -> Failure {
    Failure::internal("the store answered something else than it was asked")
}
