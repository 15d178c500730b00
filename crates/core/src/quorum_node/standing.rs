//! Whether one node of a set has a vote now, and if not, why: for people who look at the set. Pure, as
//! [`membership`](super::membership), which decides what to do about it.

use std::time::Duration;

use super::{BirthMark, Health, VoterStatus, membership::GATE, node_model::since};

/// Why a node that replied has no vote now; `None` if it has one. `None` in `nodes` is a node that did not reply, and says
/// nothing here.
pub fn reason_without_vote(nodes: &[Option<Health>], node: usize) -> Option<String> {
    let health = nodes.get(node)?.as_ref()?;
    if let Some(twin) = twin_of(nodes, node) {
        let number = twin + 1;
        return Some(format!(
            "it is the same server as node {number}, which has one vote: name each server once"
        ));
    }
    let Some(mark) = &health.mark else {
        return Some(without_mark(nodes));
    };
    if mark.size != nodes.len() {
        return Some(format!(
            "it belongs to a set of {} nodes, and the URL names {}: all clients must name the same nodes",
            mark.size,
            nodes.len()
        ));
    }
    if is_of_another_set(nodes, mark) {
        return Some("it belongs to another set of nodes: all clients must name the same nodes".to_owned());
    }
    if mark.run != health.run {
        return after_restart(health, mark);
    }
    match mark.standing {
        VoterStatus::Voting => None,
        VoterStatus::Founding => Some(founding(health, mark)),
        VoterStatus::Quarantined { since: from } => {
            Some(quarantined(mark.gate.saturating_sub(since(from, health.now))))
        }
    }
}

/// Another node before this one that is the same server.
fn twin_of(nodes: &[Option<Health>], node: usize) -> Option<usize> {
    let run = &nodes[node].as_ref()?.run;
    nodes[..node].iter().position(|other| other.as_ref().is_some_and(|other| other.run == *run))
}

/// The marks that name the set for good.
fn founded_marks(nodes: &[Option<Health>]) -> impl Iterator<Item = &BirthMark> {
    let marks = nodes.iter().flatten().filter_map(|health| health.mark.as_ref());
    marks.filter(|mark| mark.standing != VoterStatus::Founding)
}

/// Whether more nodes belong to another set than to the set of this mark.
fn is_of_another_set(nodes: &[Option<Health>], mark: &BirthMark) -> bool {
    let count = |set: &str| founded_marks(nodes).filter(|mark| mark.set == set).count();
    let most = founded_marks(nodes).map(|mark| count(&mark.set)).max().unwrap_or(0);
    mark.standing != VoterStatus::Founding && count(&mark.set) < most
}

fn without_mark(nodes: &[Option<Health>]) -> String {
    match founded_marks(nodes).map(|mark| mark.gate).max() {
        Some(gate) => format!(
            "it has no birth mark, so it is new or has lost its data: it votes when the uptime gate of {gate:?} has passed"
        ),
        None => "it has no birth mark yet: a client that reaches all nodes founds the set".to_owned(),
    }
}

/// The mark is of an earlier run of the server, and no client has noticed it.
fn after_restart(health: &Health, mark: &BirthMark) -> Option<String> {
    if mark.durable && health.durable {
        return Some(
            "it was restarted and has kept its data: it votes as soon as a client has noticed".to_owned(),
        );
    }
    Some(quarantined(mark.gate.saturating_sub(health.uptime)))
}

fn founding(health: &Health, mark: &BirthMark) -> String {
    let gate = if mark.gate.is_zero() { GATE } else { mark.gate };
    let left = gate.saturating_sub(health.uptime);
    if health.durable || left.is_zero() {
        return "the set is new: it votes as soon as a client has reached all nodes".to_owned();
    }
    format!(
        "the set is new: it votes in {:?}, when its server has been up for the uptime gate of {gate:?}; if nothing was \
         ever granted on these servers, let them vote now: leasehold redlock found URL",
        up_to_seconds(left)
    )
}

fn quarantined(left: Duration) -> String {
    let why = "it was restarted or emptied and may have forgotten what it granted, so it is quarantined";
    if left.is_zero() {
        return format!("{why}: it votes when it has received the last tokens from a majority that votes");
    }
    format!("{why}: it votes in {:?}", up_to_seconds(left))
}

/// Whole seconds, for people.
fn up_to_seconds(left: Duration) -> Duration {
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallTime;

    const AN_HOUR: Duration = Duration::from_secs(3600);

    fn at(seconds: u64) -> WallTime {
        WallTime::from_micros(seconds * 1_000_000)
    }

    fn node(run: &str, standing: VoterStatus) -> Health {
        let mark = BirthMark {
            set: "set".to_owned(),
            size: 3,
            gate: GATE,
            run: run.to_owned(),
            durable: false,
            standing,
        };
        let (run, uptime) = (run.to_owned(), AN_HOUR);
        Health { run, now: at(1_000_000), uptime, durable: false, mark: Some(mark) }
    }

    fn set(changed: impl FnOnce(&mut Health)) -> Vec<Option<Health>> {
        let mut nodes = ["a", "b", "c"].map(|run| node(run, VoterStatus::Voting));
        changed(&mut nodes[2]);
        nodes.map(Some).to_vec()
    }

    fn reason(changed: impl FnOnce(&mut Health)) -> String {
        let nodes = set(changed);
        assert_eq!(reason_without_vote(&nodes, 0), None, "only the third node was changed");
        reason_without_vote(&nodes, 2).expect("it has no vote")
    }

    fn change_mark(health: &mut Health, change: impl FnOnce(&mut BirthMark)) {
        change(health.mark.as_mut().expect("it has a mark"));
    }

    #[test]
    fn a_node_with_a_valid_mark_votes_and_one_that_does_not_reply_has_no_reason_here() {
        let mut nodes = set(|_| {});
        assert_eq!(reason_without_vote(&nodes, 2), None);
        nodes[2] = None;
        assert_eq!(reason_without_vote(&nodes, 2), None);
        assert_eq!(reason_without_vote(&nodes, 3), None);
    }

    #[test]
    fn a_node_that_may_have_forgotten_says_how_long_it_is_quarantined() {
        let since = at(1_000_000 - 60);
        let left =
            reason(|node| change_mark(node, |mark| mark.standing = VoterStatus::Quarantined { since }));
        assert!(left.contains("quarantined") && left.ends_with("540s"), "{left}");
        let since = at(0);
        let over =
            reason(|node| change_mark(node, |mark| mark.standing = VoterStatus::Quarantined { since }));
        assert!(over.contains("majority that votes"), "{over}");
        let restarted = reason(|node| (node.run, node.uptime) = ("d".to_owned(), Duration::from_secs(1)));
        assert!(restarted.contains("restarted") && restarted.ends_with("599s"), "{restarted}");
        let emptied = reason(|node| node.mark = None);
        assert!(emptied.contains("lost its data") && emptied.contains("600s"), "{emptied}");
    }

    #[test]
    fn a_durable_node_that_was_restarted_is_not_quarantined() {
        let kept = reason(|node| {
            (node.run, node.durable) = ("d".to_owned(), true);
            change_mark(node, |mark| mark.durable = true);
        });
        assert!(kept.contains("kept its data"), "{kept}");
    }

    #[test]
    fn a_node_that_does_not_belong_to_the_set_is_told_apart() {
        let twin = reason(|node| node.run = "a".to_owned());
        assert!(twin.contains("same server as node 1"), "{twin}");
        let size = reason(|node| change_mark(node, |mark| mark.size = 5));
        assert!(size.contains("set of 5 nodes") && size.contains("names 3"), "{size}");
        let other = reason(|node| change_mark(node, |mark| mark.set = "other".to_owned()));
        assert!(other.contains("another set"), "{other}");
    }

    #[test]
    fn a_new_set_says_when_it_votes_and_which_command_ends_the_wait() {
        let mut nodes = ["a", "b", "c"].map(|run| Some(node(run, VoterStatus::Founding)));
        for health in nodes.iter_mut().flatten() {
            health.uptime = Duration::from_secs(100);
        }
        let waits = reason_without_vote(&nodes, 1).expect("it has not voted");
        assert!(waits.contains("500s") && waits.contains("leasehold redlock found URL"), "{waits}");
        for health in nodes.iter_mut().flatten() {
            health.mark = None;
        }
        let unmarked = reason_without_vote(&nodes, 1).expect("it has not voted");
        assert!(unmarked.contains("founds the set"), "{unmarked}");
    }
}
