//! The conformance suite on a quorum of five real servers, as far as its capabilities allow: two clients that
//! log in as the documented user.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, FailureDomain, OperatorCommand,
    OwnerToken, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Verdict,
    async_trait,
};
use leasehold_testkit::{
    BackendUnderTest, conformance,
    servers::{RedisNodes, RedisServer},
};

fn main() {
    // All tests share the servers and use their own resource names. They end with this process.
    static NODES: OnceLock<(RedisNodes, String)> = OnceLock::new();
    conformance::main("redlock", || async {
        let (nodes, url) = NODES.get_or_init(|| {
            let nodes = RedisNodes::long_lived(5, Duration::from_secs(600));
            let url = acl::create_user_on_nodes(&nodes);
            (nodes, url)
        });
        let open = move || {
            let url = url.clone();
            async move {
                let quorum = leasehold::open(&url).await.expect("the servers are there");
                Arc::new(SettledQuorum { quorum, nodes }) as Arc<dyn Backend>
            }
        };
        let (first, second) = (open().await, open().await);
        // A node has a tenth of the ttl to reply, which must be enough on a loaded machine.
        BackendUnderTest::real(first).opened_again(second).reopened_by(open).short_ttl(Duration::from_secs(2))
    });
}

/// A quorum whose verbs return when all nodes have executed them.
///
/// A real verb returns when a majority has executed it. The other nodes follow a moment later, and until then
/// another client may see the state before. The suite expects one order of events, so this wrapper waits for
/// all nodes.
#[derive(Debug)]
struct SettledQuorum {
    quorum: Arc<dyn Backend>,
    nodes: &'static RedisNodes,
}

/// The longest wait for the other nodes: a node that missed its vote never follows.
const ALL_NODES_MAX: Duration = Duration::from_millis(500);

impl SettledQuorum {
    async fn until_all(&self, is_done: impl Fn(&RedisServer) -> bool) {
        let began = Instant::now();
        while !self.nodes.servers.iter().all(&is_done) && began.elapsed() < ALL_NODES_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn key(resource: &Resource) -> String {
    format!("lock:v1:{{{}}}:owner", resource.key())
}

fn has(node: &RedisServer, key: &str, owner: OwnerToken) -> bool {
    node.command(&["GET", key]).starts_with(&*owner.reveal())
}

#[async_trait]
impl Backend for SettledQuorum {
    fn info(&self) -> &BackendInfo {
        self.quorum.info()
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.quorum.failure_domain(resource)
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let verdicts = self.quorum.acquire(claims).await;
        for (claim, verdict) in claims.iter().zip(&verdicts) {
            let (key, granted) = (key(&claim.resource), matches!(verdict, Ok(Verdict::Granted(_))));
            self.until_all(|node| has(node, &key, claim.owner) == granted).await;
        }
        verdicts
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let began = Instant::now();
        let answers = self.quorum.renew(held).await;
        for (held, answer) in held.iter().zip(&answers) {
            if matches!(answer, Ok(Renewal::Renewed(_))) {
                let key = key(&held.resource);
                self.until_all(|node| {
                    let left =
                        node.command(&["PTTL", &key]).parse().map_or(Duration::ZERO, Duration::from_millis);
                    left + began.elapsed() >= held.ttl || !has(node, &key, held.owner)
                })
                .await;
            }
        }
        answers
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let released = self.quorum.release(requests).await;
        for request in requests {
            let key = key(&request.resource);
            self.until_all(|node| !has(node, &key, request.owner)).await;
        }
        released
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.quorum.wait(claim, since, at_most).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.quorum.inspect(query).await
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        self.quorum.order(order).await
    }
}
