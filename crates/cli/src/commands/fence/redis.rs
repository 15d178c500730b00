//! The fence in Redis: the mark of a resource is stored next to the key that is fenced.

use std::sync::Arc;

use leasehold::Resource;
use leasehold_fence::{Rebase, Rebased, redis::Fence, rule::Mark};
use leasehold_redis::{Config, KeyConnection};

use super::database::{failed, not_opened};
use crate::exit::Failure;

/// How often a node of a cluster may reply that another node has the key before the command gives up.
const REDIRECTS_MAX: usize = 5;

/// A Redis server, Sentinel group or cluster by its store URL, and the key that is fenced.
pub(super) struct RedisFence {
    config: Config,
    key: Option<String>,
}

impl RedisFence {
    pub(super) fn of(url: &str, key: Option<&str>) -> Result<RedisFence, Failure> {
        Ok(RedisFence { config: Config::parse(url).map_err(not_opened)?, key: key.map(str::to_owned) })
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.config.namespace()
    }

    pub(super) async fn mark(&self, resource: &Resource) -> Result<Option<Mark>, Failure> {
        self.with_connection(async |connection, key| Fence::new().mark(connection, resource, key).await).await
    }

    pub(super) async fn rebases(&self, resource: &Resource) -> Result<Vec<Rebased>, Failure> {
        self.with_connection(async |connection, key| Fence::new().rebases(connection, resource, key).await)
            .await
    }

    pub(super) async fn rebase(&self, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark), Failure> {
        let rebase = async |connection: &mut KeyConnection, key: &str| {
            let marks = Fence::new().rebase(connection, resource, key, rebase).await?;
            connection.wait_for_replicas().await.map(|()| marks)
        };
        self.with_connection(rebase).await
    }

    /// Connects to the server that has the key and runs `request` there. A node that does not have the key
    /// any more says so and has changed nothing, so the request is sent again to the node that has it.
    async fn with_connection<T>(
        &self,
        request: impl AsyncFn(&mut KeyConnection, &str) -> leasehold::Result<T>,
    ) -> Result<T, Failure> {
        let missing =
            || Failure::usage("in Redis, a mark belongs to a key: name the key that is fenced with --key");
        let key = self.key.as_deref().ok_or_else(missing)?;
        let mut redirects = 0;
        loop {
            let environment = Arc::new(leasehold::System::current());
            let opened = KeyConnection::open(self.config.clone(), environment, key).await;
            let mut connection = opened.map_err(not_opened)?;
            match request(&mut connection, key).await {
                Err(error) if KeyConnection::has_key_moved(&error) && redirects < REDIRECTS_MAX => {
                    redirects += 1;
                }
                reply => return reply.map_err(failed),
            }
        }
    }
}
