//! The verb `renew`: `POST /v1/renew`, on connections that claims and waiters do not use.

use leasehold_api::{
    renew::{self, RenewBody, RenewReply},
    routes,
};
use leasehold_core::{ClaimRef, RenewRequest, Renewal, Result};

use crate::{
    backend::Http,
    connection::{Call, PoolKind},
    list::{self, ListVerb},
};

const RENEW: ListVerb<RenewRequest, RenewReply, Renewal> = ListVerb {
    list: "leases",
    claim: |request| ClaimRef { resource: request.resource.clone(), owner: request.owner },
    outcome: renew::outcome,
};

impl Http {
    pub(crate) async fn try_renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let bodies: Vec<RenewBody> = requests.iter().map(RenewBody::from).collect();
        match list::body(&RenewBody::write_many(&bodies, list::timeout_ms(&self.connections))) {
            Ok(body) => {
                let call = Call::post(routes::RENEW, body, self.connections.config.timeout);
                RENEW.send(&self.connections, call.on(PoolKind::Leases), requests).await
            }
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}
