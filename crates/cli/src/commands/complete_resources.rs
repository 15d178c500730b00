//! `leasehold complete-resources START`: the names of resources, for the shell completions.
//!
//! A completion must be quick and silent: it takes at most [`LIMIT`], prints no error, and creates no store.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Client, Listing, Query, Resource};

use crate::{
    args::Global,
    exit::Failure,
    names::{self, PATH_KIND, PLAIN_KIND},
    output, settings,
    store::Store,
};

/// How long it may take.
const LIMIT: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct CompleteResources {
    /// What was typed so far
    #[arg(default_value = "", allow_hyphen_values = true)]
    start: String,
}

impl CompleteResources {
    pub(crate) async fn run(&self, global: Global) -> Result<ExitCode, Failure> {
        let found = tokio::time::timeout(LIMIT, self.find(global)).await.ok().flatten().unwrap_or_default();
        let lines: String = found.iter().map(|name| format!("{name}\n")).collect();
        output::print(lines.as_bytes()).map(|()| ExitCode::SUCCESS)
    }

    async fn find(&self, mut global: Global) -> Option<Vec<String>> {
        let namespace = settings::settle_for_completion(&mut global).ok()?;
        let backend = Store::choose(&global).ok()?.open_existing().await?;
        let client = Client::new(backend);
        let mut found = Vec::new();
        for start in self.starts() {
            let start = match &namespace {
                Some(namespace) if !start.contains(':') => format!("{namespace}:{start}"),
                _ => start,
            };
            let page = client.inspect(&Query::Resources(Listing::of(&start))).await.ok()?;
            found.extend(page.into_snapshots().into_iter().map(|snapshot| snapshot.resource));
        }
        found.sort();
        found.dedup();
        Some(found.iter().map(|resource| as_typed(resource, namespace.as_deref())).collect())
    }

    /// The starts of keys that the typed text can mean.
    fn starts(&self) -> Vec<String> {
        let plain = Some(format!("{PLAIN_KIND}/{}", self.start)).filter(|_| !self.start.contains(['/', ':']));
        [Some(self.start.clone()), plain]
            .into_iter()
            .flatten()
            .filter_map(|start| names::prefix(&start).ok())
            .collect()
    }
}

/// The shortest name that means this resource.
fn as_typed(resource: &Resource, namespace: Option<&str>) -> String {
    let name = match resource.kind() {
        PLAIN_KIND | PATH_KIND if !resource.is_hashed() => resource.id().into_owned(),
        kind => format!("{kind}/{}", resource.id()),
    };
    match resource.namespace() {
        Some(own) if Some(own) != namespace => format!("{own}:{name}"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_completed_to_what_is_typed_for_it() {
        for typed in ["backup", "report/42", "/var/lock/x", "acme:backup", "acme:report/42"] {
            assert_eq!(as_typed(&names::resource(typed).unwrap(), None), typed);
        }
        assert_eq!(as_typed(&names::resource("acme:backup").unwrap(), Some("acme")), "backup");
    }
}
