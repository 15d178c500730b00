//! The verb `acquire`: `POST /v1/acquire`, without waiting.

use leasehold_api::{
    acquire::{self, AcquireReply, ClaimBody},
    routes,
};
use leasehold_core::{Claim, Effect, Result, Verdict};

use crate::{
    backend::Http,
    connection::Call,
    list::{self, ListVerb},
};

const ACQUIRE: ListVerb<Claim, AcquireReply, Verdict> =
    ListVerb { list: "claims", claim: Claim::reference, outcome: acquire::outcome };

impl Http {
    pub(crate) async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        if let Err(error) = self.connections.check_one_store() {
            return claims.iter().map(|_| Err(error.clone())).collect();
        }
        let bodies: Vec<ClaimBody> = claims.iter().map(ClaimBody::from).collect();
        let body = ClaimBody::write_many(&bodies, list::timeout_ms(&self.connections));
        match list::body(&body) {
            Ok(body) => {
                let call = Call::post(routes::ACQUIRE, body, self.connections.config.timeout);
                let verdicts = ACQUIRE.send(&self.connections, call, claims).await;
                // Another request may have met another store meanwhile.
                match self.connections.check_one_store() {
                    Ok(()) => verdicts,
                    Err(error) => {
                        let error = error.with_effect(Effect::Unknown);
                        verdicts.into_iter().map(|verdict| verdict.and(Err(error.clone()))).collect()
                    }
                }
            }
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}
