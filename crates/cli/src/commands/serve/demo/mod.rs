//! `leasehold serve --demo`: a server on a temporary store with workers, so that one command shows the dashboard.
//!
//! | module | what it holds |
//! |---|---|
//! | `folder` | the temporary folder of the store |
//! | `clients` | clients that look like processes of several hosts |
//! | `everyday` | workers that acquire, hold and release, of several kinds |
//! | `incidents` | what goes wrong, again and again: a stuck queue, a crash, a deadlock and others |
//! | `jobs` | an election, and schedules |
//! | `operators` | people who give orders, for the audit trail |

mod clients;
mod everyday;
mod folder;
mod incidents;
mod jobs;
mod operators;

use std::{sync::Arc, time::Duration};

use leasehold::Backend;
use tokio::task::JoinSet;

use self::{clients::DemoClients, folder::DemoFolder};
use crate::{exit::Failure, output::Output, text};

/// In the demonstration a claim is stuck soon, so that there is something to see within a minute.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(15);

/// The demonstration: its store, and the tasks that use it.
#[derive(Debug)]
pub(super) struct Demo {
    folder: DemoFolder,
    tasks: JoinSet<()>,
}

impl Demo {
    /// Makes the folder of the store.
    pub(super) fn prepare() -> Result<Demo, Failure> {
        Ok(Demo { folder: DemoFolder::create()?, tasks: JoinSet::new() })
    }

    /// The URL of the store.
    pub(super) fn store_url(&self) -> String {
        crate::store_url::file_url(&self.folder.database())
    }

    /// Starts the workers.
    pub(super) fn start(&mut self, backend: Arc<dyn Backend>) {
        let clients = Arc::new(DemoClients::new(backend));
        everyday::start(&clients, &mut self.tasks);
        incidents::start(&clients, &mut self.tasks);
        jobs::start(&clients, &mut self.tasks);
        operators::start(&clients, &mut self.tasks);
    }

    /// Says what there is to see, and where.
    pub(super) fn introduce(&self, output: Output, dashboard: &str, has_tokens: bool) {
        output.note(&format!("a demonstration of the dashboard: open {dashboard}"));
        for (resource, what) in incidents::DESCRIPTIONS.iter().chain(jobs::DESCRIPTIONS) {
            output.note(&format!("  {resource:<20} {what}"));
        }
        let url = self.store_url();
        output.note(&format!(
            "a claim that waits is stuck after {} here. A problem that you resolve comes back after {}",
            text::span(STUCK_AFTER),
            text::span(incidents::RETURNS_AFTER)
        ));
        if !has_tokens {
            output.note(
                "everyone on this machine can give orders here: only a demonstration allows this without tokens",
            );
        }
        output.note(&format!(
            "to use the commands on the same store: leasehold --store {} ls",
            text::quoted(&url)
        ));
        output.note("Ctrl-C ends it and removes the store");
    }

    /// Ends all workers and removes the store.
    pub(super) async fn end(mut self) {
        self.tasks.shutdown().await;
        self.folder.remove();
    }
}
