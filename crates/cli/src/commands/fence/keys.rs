//! A Redis: its marks are beside the keys that are fenced.

use std::sync::Arc;

use leasehold::Resource;
use leasehold_fence::{Rebase, Rebased, redis::Fence, rule::Mark};
use leasehold_redis::{Config, Visit};

use super::place::{failed, not_opened};
use crate::exit::Failure;

/// How often a node of a cluster may say that another one has the key.
const MOVES: usize = 5;

/// A server as a store names it, and the key whose mark is meant.
pub(super) struct Keys {
    config: Config,
    key: Option<String>,
}

impl Keys {
    pub(super) fn of(url: &str, key: Option<&str>) -> Result<Keys, Failure> {
        Ok(Keys { config: Config::parse(url).map_err(not_opened)?, key: key.map(str::to_owned) })
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.config.namespace()
    }

    pub(super) async fn mark(&self, resource: &Resource) -> Result<Option<Mark>, Failure> {
        self.ask(async |visit, key| Fence::new().mark(visit, resource, key).await).await
    }

    pub(super) async fn rebases(&self, resource: &Resource) -> Result<Vec<Rebased>, Failure> {
        self.ask(async |visit, key| Fence::new().rebases(visit, resource, key).await).await
    }

    pub(super) async fn rebase(&self, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark), Failure> {
        let moved = async |visit: &mut Visit, key: &str| {
            let moved = Fence::new().rebase(visit, resource, key, rebase).await?;
            visit.confirmed().await.map(|()| moved)
        };
        self.ask(moved).await
    }

    /// Asks the server that has the key. Who has it no more says so, and has done nothing.
    async fn ask<T>(
        &self,
        question: impl AsyncFn(&mut Visit, &str) -> leasehold::Result<T>,
    ) -> Result<T, Failure> {
        let missing =
            || Failure::usage("in Redis a mark stands beside a key: name the key that is fenced with --key");
        let key = self.key.as_deref().ok_or_else(missing)?;
        let mut moves = 0;
        loop {
            let environment = Arc::new(leasehold::System::current());
            let mut visit = Visit::open(self.config.clone(), environment, key).await.map_err(not_opened)?;
            match question(&mut visit, key).await {
                Err(error) if Visit::is_over(&error) && moves < MOVES => moves += 1,
                answer => return answer.map_err(failed),
            }
        }
    }
}
