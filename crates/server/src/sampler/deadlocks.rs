//! Processes that wait for each other.
//!
//! 1. The graph has a node for each process and for each resource. A process points to the resources that it waits for, a resource to the
//!    processes that hold it.
//! 2. A process counts only if it holds something, and a wait only if it has lasted for a while and began after the process held
//!    something: programs do many things at a time, and a short wait is no sign of a deadlock.
//! 3. The strongly connected components are found with Tarjan's algorithm, with a stack of its own instead of recursion.
//! 4. Of each component, one circle is reported.
//!
//! All steps are linear in the number of holders and waiters that a sample lists.

use std::{collections::HashMap, time::Duration};

use leasehold_api::{
    deadlocks::{Certainty, DeadlockBody, ResourceRef, WaitBody},
    fields::{self, TokenText},
    inspect::HolderBody,
};
use leasehold_core::{HeldBy, Holder, QueueEntry, Resource, Snapshot};
use leasehold_support::text::{printable, span};

use crate::access::Scope;

/// A wait that is shorter says nothing.
const WAITED_AT_LEAST: Duration = Duration::from_secs(3);
/// The longest circle that is told with all its processes.
const WAITS_MAX: usize = 50;

/// A circle of processes, each of which waits for what the next one holds.
#[derive(Debug)]
pub(crate) struct Deadlock {
    /// The resources of the circle: the first process waits for the first one.
    pub(super) resources: Vec<Resource>,
    body: DeadlockBody,
}

impl Deadlock {
    /// Its description, if the caller may see all of its resources.
    pub(crate) fn body(&self, scope: Scope<'_>) -> Option<&DeadlockBody> {
        self.resources.iter().all(|resource| scope.has(resource)).then_some(&self.body)
    }
}

/// What names a process: two of them are not the same because they say the same of themselves, so a deadlock is only possible.
type Process<'a> = (&'a str, u32, &'a str);

fn process(holder: &Holder) -> Option<Process<'_>> {
    // Without a process id, many callers of a server would count as one process.
    (holder.pid != 0).then_some((holder.host.as_str(), holder.pid, holder.subject.as_str()))
}

#[derive(Default)]
struct Graph<'a> {
    nodes: HashMap<Process<'a>, usize>,
    /// Of each process: the grants that it has.
    holds: Vec<Vec<(usize, &'a HeldBy)>>,
    /// Of each process: the resources that it waits for.
    waits: Vec<Vec<(usize, &'a QueueEntry)>>,
    resources: Vec<&'a Snapshot>,
    /// Of each resource: the processes that hold it.
    holders: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn of(snapshots: impl Iterator<Item = &'a Snapshot>) -> Graph<'a> {
        // Nobody is stuck at a resource without a queue, and nobody is in the way there.
        let resources = snapshots.filter(|snapshot| !snapshot.queue.is_empty()).collect();
        let mut graph = Graph { resources, ..Graph::default() };
        for (resource, snapshot) in graph.resources.clone().into_iter().enumerate() {
            let mut holders = Vec::new();
            for by in snapshot.holders.iter().filter(|by| !by.kept) {
                let Some(process) = process(&by.holder) else { continue };
                let node = *graph.nodes.entry(process).or_insert(graph.holds.len());
                if node == graph.holds.len() {
                    graph.holds.push(Vec::new());
                    graph.waits.push(Vec::new());
                }
                graph.holds[node].push((resource, by));
                holders.push(node);
            }
            holders.sort_unstable();
            holders.dedup();
            graph.holders.push(holders);
        }
        for (resource, snapshot) in graph.resources.clone().into_iter().enumerate() {
            for entry in &snapshot.queue {
                graph.add_wait(resource, entry);
            }
        }
        graph
    }

    fn add_wait(&mut self, resource: usize, entry: &'a QueueEntry) {
        let Some(node) = process(&entry.holder).and_then(|process| self.nodes.get(&process).copied()) else {
            return;
        };
        let is_long = entry.waited >= WAITED_AT_LEAST;
        let held_before = self.holds[node].iter().any(|(_, by)| by.held_for >= entry.waited);
        // A process that waits for what it holds itself does two things at a time.
        let holds_it = self.holders[resource].binary_search(&node).is_ok();
        let is_known = self.waits[node].last().is_some_and(|(last, _)| *last == resource);
        if is_long && held_before && !holds_it && !is_known {
            self.waits[node].push((resource, entry));
        }
    }

    /// Processes come first, then resources.
    fn len(&self) -> usize {
        self.holds.len() + self.resources.len()
    }

    fn next(&self, node: usize, position: usize) -> Option<usize> {
        match node.checked_sub(self.holds.len()) {
            None => self.waits[node].get(position).map(|(resource, _)| self.holds.len() + resource),
            Some(resource) => self.holders[resource].get(position).copied(),
        }
    }

    /// For each node the number of its component, and how many nodes each component has.
    fn components(&self) -> (Vec<usize>, Vec<usize>) {
        const NONE: usize = usize::MAX;
        let (mut order, mut lowest) = (vec![NONE; self.len()], vec![0; self.len()]);
        let (mut component, mut sizes) = (vec![NONE; self.len()], Vec::new());
        let (mut found, mut open) = (0, Vec::new());
        for root in 0..self.len() {
            if order[root] != NONE {
                continue;
            }
            // A node, and how many of its edges were followed.
            let mut path = vec![(root, 0)];
            while let Some((node, followed)) = path.pop() {
                if followed == 0 {
                    (order[node], lowest[node]) = (found, found);
                    found += 1;
                    open.push(node);
                }
                if let Some(next) = self.next(node, followed) {
                    path.push((node, followed + 1));
                    if order[next] == NONE {
                        path.push((next, 0));
                    } else if component[next] == NONE {
                        lowest[node] = lowest[node].min(order[next]);
                    }
                    continue;
                }
                if lowest[node] == order[node] {
                    let mut size = 0;
                    while let Some(member) = open.pop() {
                        (component[member], size) = (sizes.len(), size + 1);
                        if member == node {
                            break;
                        }
                    }
                    sizes.push(size);
                }
                if let Some((parent, _)) = path.last() {
                    lowest[*parent] = lowest[*parent].min(lowest[node]);
                }
            }
        }
        (component, sizes)
    }

    /// A circle in the component of this process: it is walked along until a node comes again. Processes and resources take turns.
    fn circle(&self, start: usize, component: &[usize]) -> Vec<usize> {
        let mut seen_at: HashMap<usize, usize> = HashMap::new();
        let (mut path, mut node) = (Vec::new(), start);
        loop {
            if let Some(from) = seen_at.insert(node, path.len()) {
                let mut circle = path.split_off(from);
                // The first one is a process.
                if circle.first().is_some_and(|first| *first >= self.holds.len()) {
                    circle.rotate_left(1);
                }
                return circle;
            }
            path.push(node);
            let mut next = (0..).map_while(|position| self.next(node, position));
            match next.find(|next| component[*next] == component[start]) {
                Some(next) => node = next,
                None => return Vec::new(), // a component of more than one node has an edge for each
            }
        }
    }

    fn describe(&self, circle: &[usize]) -> Option<Deadlock> {
        let (processes, resources): (Vec<usize>, Vec<usize>) =
            circle.iter().partition(|node| **node < self.holds.len());
        let resources: Vec<usize> = resources.into_iter().map(|node| node - self.holds.len()).collect();
        let mut waits = Vec::new();
        for (position, node) in processes.iter().enumerate().take(WAITS_MAX) {
            let before = resources[(position + resources.len() - 1) % resources.len()];
            let (_, by) = self.holds[*node].iter().find(|(held, _)| *held == before)?;
            let (wanted, entry) =
                self.waits[*node].iter().find(|(wanted, _)| *wanted == resources[position])?;
            waits.push(WaitBody {
                process: HolderBody::from(&*by.holder),
                holds: self.resources[before].resource.to_string(),
                token: TokenText(by.token),
                waits_for: self.resources[*wanted].resource.to_string(),
                waited_ms: fields::ms_down(entry.waited),
            });
        }
        let resources: Vec<Resource> =
            resources.iter().map(|resource| self.resources[*resource].resource.clone()).collect();
        let named =
            resources.iter().map(|one| ResourceRef { resource: one.to_string(), key: one.key().to_owned() });
        let body = DeadlockBody {
            certainty: Certainty::Possible,
            resources: named.collect(),
            sentence: sentence(&waits),
            waits,
        };
        Some(Deadlock { resources, body })
    }
}

/// `nightly (pid 12 on a) holds report/1 and waits for report/2; …`
fn sentence(waits: &[WaitBody]) -> String {
    let each = waits.iter().map(|wait| {
        let HolderBody { host, pid, label, .. } = &wait.process;
        let name = if label.is_empty() { "a process" } else { label.as_str() };
        let waited = span(Duration::from_millis(wait.waited_ms));
        let text = format!(
            "{name} (pid {pid} on {host}) holds {} and has waited {waited} for {}",
            wait.holds, wait.waits_for
        );
        printable(&text)
    });
    each.collect::<Vec<_>>().join("; ")
}

/// All circles of these resources: one of each component.
pub(super) fn find<'a>(snapshots: impl Iterator<Item = &'a Snapshot>) -> Vec<Deadlock> {
    let graph = Graph::of(snapshots);
    let (component, sizes) = graph.components();
    let mut told = vec![false; sizes.len()];
    let mut found = Vec::new();
    for process in 0..graph.holds.len() {
        let of = component[process];
        if sizes[of] > 1 && !std::mem::replace(&mut told[of], true) {
            found.extend(graph.describe(&graph.circle(process, &component)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::FencingToken;

    use super::*;

    fn holder(pid: u32) -> Arc<Holder> {
        Arc::new(Holder::new("host", pid, "worker"))
    }

    /// A resource, with the processes that hold it and those that wait.
    fn resource(name: &str, holders: &[u32], waiters: &[u32]) -> Snapshot {
        let mut snapshot = Snapshot::empty(format!("r/{name}").parse().unwrap());
        for pid in holders {
            let mut by = HeldBy::new(holder(*pid), FencingToken::new(u64::from(*pid) + 1).unwrap(), 1);
            by.held_for = Duration::from_secs(60);
            snapshot.holders.push(by);
        }
        let waited = Duration::from_secs(30);
        snapshot.queue = waiters.iter().map(|pid| QueueEntry::new(holder(*pid), 1, waited, waited)).collect();
        snapshot
    }

    fn circles(snapshots: &[Snapshot]) -> Vec<Vec<(u32, String, String)>> {
        let waits = |deadlock: &Deadlock| {
            let waits = deadlock.body.waits.iter();
            waits.map(|wait| (wait.process.pid, wait.holds.clone(), wait.waits_for.clone())).collect()
        };
        find(snapshots.iter()).iter().map(waits).collect()
    }

    fn wait(pid: u32, holds: &str, waits_for: &str) -> (u32, String, String) {
        (pid, format!("r/{holds}"), format!("r/{waits_for}"))
    }

    #[test]
    fn two_processes_that_wait_for_each_other() {
        let snapshots = [resource("a", &[1], &[2, 9]), resource("b", &[2], &[1])];
        assert_eq!(circles(&snapshots), [[wait(1, "a", "b"), wait(2, "b", "a")]]);
        let found = find(snapshots.iter());
        assert_eq!(
            found[0].body.sentence,
            "worker (pid 1 on host) holds r/a and has waited 30s for r/b; worker (pid 2 on host) holds r/b and has waited 30s for r/a"
        );
    }

    #[test]
    fn longer_circles_and_several_of_them() {
        let three = [resource("a", &[1], &[3]), resource("b", &[2], &[1]), resource("c", &[3], &[2])];
        assert_eq!(circles(&three), [[wait(1, "a", "b"), wait(2, "b", "c"), wait(3, "c", "a")]]);
        let two = [
            resource("a", &[1], &[2]),
            resource("b", &[2], &[1]),
            resource("x", &[11], &[12]),
            resource("y", &[12], &[11]),
        ];
        assert_eq!(circles(&two).len(), 2);
        let shared = [resource("a", &[1, 5], &[2]), resource("b", &[2, 6], &[1])];
        assert_eq!(circles(&shared).len(), 1, "one of several holders");
    }

    #[test]
    fn what_is_no_circle() {
        let chain = [resource("a", &[1], &[2]), resource("b", &[2], &[3]), resource("c", &[3], &[4])];
        assert!(circles(&chain).is_empty());
        let own = [resource("a", &[1], &[1]), resource("b", &[1], &[1])];
        assert!(circles(&own).is_empty(), "one process that does several things");
        let mut short = [resource("a", &[1], &[2]), resource("b", &[2], &[1])];
        short[0].queue[0].waited = Duration::from_secs(1);
        assert!(circles(&short).is_empty(), "a short wait");
        let mut later = [resource("a", &[1], &[2]), resource("b", &[2], &[1])];
        later[1].holders[0].held_for = Duration::from_secs(20);
        assert!(circles(&later).is_empty(), "it held nothing when it began to wait");
        let unknown = [resource("a", &[0], &[0]), resource("b", &[0], &[0])];
        assert!(circles(&unknown).is_empty(), "processes without an id");
    }

    #[test]
    fn a_chain_of_many_needs_no_stack_and_a_large_circle_is_found() {
        let many = 50_000;
        let name = |number: u32| format!("{number}");
        let mut chain: Vec<Snapshot> =
            (0..many).map(|number| resource(&name(number), &[number + 1], &[number + 2])).collect();
        assert!(circles(&chain).is_empty());
        chain.push(resource("last", &[many + 1], &[1]));
        let found = find(chain.iter());
        assert_eq!((found.len(), found[0].resources.len()), (1, many as usize + 1));
        assert_eq!(found[0].body.waits.len(), WAITS_MAX);
    }

    #[test]
    fn it_is_shown_to_those_who_may_see_all_of_it() {
        let mut snapshots = [resource("a", &[1], &[2]), resource("b", &[2], &[1])];
        snapshots[0].resource = "acme:r/a".parse().unwrap();
        let found = find(snapshots.iter());
        let namespaces = ["acme".to_owned()];
        assert!(found[0].body(Scope::of_namespaces(&namespaces)).is_none());
        assert!(found[0].body(Scope::everything()).is_some());
    }
}
