//! The members of the URL as they are now, for people: each is asked for its status.
//!
//! A member that has no leader answers, and grants nothing: a majority of the members is missing, or it is cut off from them.
//! No member tells its time.

use std::sync::atomic::Ordering;

use etcd_client::StatusResponse;
use leasehold_core::{NodeStatus, Page};
use leasehold_support::ask_nodes::{
    NodeQuestion, ask_all, name_of, not_counting, standing_by, timed_over_connection,
};

use crate::{backend::Etcd, connection::Connections, error::StoreError};

/// The id of the leader where there is none.
const NO_LEADER: u64 = 0;

impl Etcd {
    pub(crate) async fn nodes(&self) -> Page {
        let connections = &*self.connections;
        let question = |index| {
            let asked = async move { connections.status(index).await.map_err(StoreError::into_error) };
            NodeQuestion::new(connections.name_of(index), asked)
        };
        let questions = (0..connections.config.hosts.len()).map(question).collect();
        Page::Nodes(ask_all(&*connections.environment, questions).await)
    }
}

impl Connections {
    fn name_of(&self, index: usize) -> String {
        let (host, port) = &self.config.hosts[index];
        name_of(host, *port)
    }

    async fn status(&self, index: usize) -> Result<NodeStatus, StoreError> {
        let ask = || self.ask_status(index);
        let (reply, trip) =
            timed_over_connection(&*self.environment, ask, StoreError::is_unreachable).await?;
        let status = trip.answered(self.name_of(index), None);
        Ok(match self.why_it_does_not_count(&reply) {
            Some(why) => not_counting(status, why),
            None if reply.is_learner() => standing_by(status, "it is a learner: it has no vote yet"),
            None => status,
        })
    }

    async fn ask_status(&self, index: usize) -> Result<StatusResponse, StoreError> {
        let member = self.member(index).await?;
        // Boxed: see `Connections::call`.
        let mut maintenance = member.client.maintenance_client();
        match Box::pin(maintenance.status()).await {
            Ok(reply) => {
                member.has_replied.store(true, Ordering::Relaxed);
                Ok(reply)
            }
            Err(error) => {
                let (host, port) = &self.config.hosts[index];
                let error = StoreError::from(error).of_member(host, *port);
                self.forget_if_broken(index, &member, &error);
                Err(error)
            }
        }
    }

    fn why_it_does_not_count(&self, reply: &StatusResponse) -> Option<String> {
        let (known, replied) = (self.known_header().cluster, reply.header().map_or(0, |it| it.cluster_id()));
        if known != 0 && replied != known {
            return Some(StoreError::OtherCluster { known, replied }.into_error().to_string());
        }
        if reply.leader() == NO_LEADER {
            return Some("it has no leader: it does not reach a majority of the members".to_owned());
        }
        // An alarm, such as NOSPACE: etcd takes no writes until it is disarmed.
        let errors = reply.errors().join("; ");
        (!errors.is_empty()).then(|| format!("etcd reports: {errors:.200}"))
    }
}
