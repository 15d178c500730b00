//! The verb `release`: `POST /v1/release`, on connections that claims and waiters do not use.

use leasehold_api::{
    release::{self, ReleaseBody, ReleaseReply},
    routes,
};
use leasehold_core::{ClaimRef, ReleaseRequest, Released, Result};

use crate::{
    backend::Http,
    connection::{Call, PoolKind},
    list::{self, ListVerb},
};

const RELEASE: ListVerb<ReleaseRequest, ReleaseReply, Released> = ListVerb {
    list: "leases",
    claim: |request| ClaimRef { resource: request.resource.clone(), owner: request.owner },
    outcome: release::outcome,
};

impl Http {
    pub(crate) async fn try_release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let bodies: Vec<ReleaseBody> = requests.iter().map(ReleaseBody::from).collect();
        match list::body(&ReleaseBody::write_many(&bodies, list::timeout_ms(&self.connections))) {
            Ok(body) => {
                let call = Call::post(routes::RELEASE, body, self.connections.config.timeout);
                RELEASE.send(&self.connections, call.on(PoolKind::Leases), requests).await
            }
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}
