//! The verb `inspect`: the `GET` routes.

use leasehold_api::{
    inspect::{AuditPage, LeaksPage, LeaksQuery, ResourceQuery, ResourcesPage, ResourcesQuery, SnapshotBody},
    routes,
};
use leasehold_core::{Error, ErrorKind, Page, Query, Resource, Result};
use serde::{Serialize, de::DeserializeOwned};

use crate::{backend::Http, connection::Call, error};

impl Http {
    pub(crate) async fn try_inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::One(resource) => self.one(resource).await,
            Query::Resources(listing) => {
                let page: ResourcesPage = self.get(routes::RESOURCES, &ResourcesQuery::from(listing)).await?;
                page.to_core()
            }
            Query::Audit(listing) => {
                let page: AuditPage = self.get(routes::AUDIT, &ResourcesQuery::from(listing)).await?;
                page.to_core()
            }
            Query::Leaks(listing) => {
                let page: LeaksPage = self.get(routes::LEAKS, &LeaksQuery::of(listing)).await?;
                Ok(page.to_core())
            }
            Query::Foreign { pattern, listing } => {
                let page: LeaksPage = self.get(routes::LEAKS, &LeaksQuery::foreign(pattern, listing)).await?;
                Ok(page.to_core())
            }
            Query::Nodes => self.nodes().await,
            _ => Err(Error::new(ErrorKind::Unsupported, "the API of the server does not have this query")),
        }
    }

    async fn one(&self, resource: &Resource) -> Result<Page> {
        let body: SnapshotBody = self.get(routes::RESOURCE, &ResourceQuery::of(resource)).await?;
        let snapshot = body.to_core()?;
        if snapshot.resource != *resource {
            return Err(error::unreadable(&self.connections.server, &"it names another resource"));
        }
        Ok(Page::Resources { snapshots: vec![snapshot], next: None })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, route: &str, query: &impl Serialize) -> Result<T> {
        let query = serde_urlencoded::to_string(query)
            .map_err(|why| Error::new(ErrorKind::Invalid, format!("the query cannot be written: {why}")))?;
        let path = if query.is_empty() { route.to_owned() } else { format!("{route}?{query}") };
        let call = Call::get(path, self.connections.config.timeout);
        self.connections.call(&call).await?.read(&self.connections.server)
    }
}
