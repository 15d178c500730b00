//! The servers of the store, as the leasehold server sees them: it asks them, and keeps their answers for a few seconds.

use std::time::Duration;

use leasehold_api::{
    routes,
    store::{NodeBody, StoreReply},
};
use leasehold_core::{Error, ErrorKind, NodeStatus, Page, Result, WallTime};

use crate::{backend::Http, connection::Call};

/// A server of an earlier version does not have the route.
const NOT_FOUND: u16 = 404;

impl Http {
    pub(crate) async fn nodes(&self) -> Result<Page> {
        let (connections, server) = (&self.connections, &self.connections.server);
        let call = Call::get(routes::STORE.to_owned(), connections.config.timeout);
        let mut answer = connections.call(&call).await?;
        if answer.status == NOT_FOUND {
            let message =
                format!("{server} does not tell about the servers of its store: it is of an earlier version");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let reply: StoreReply = answer.read(server)?;
        let Some(nodes) = reply.nodes else {
            let backend = &reply.backend;
            let message = format!(
                "the store of {server} ({backend:.40}) has no servers, or it does not tell about them"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let ours = connections.wall();
        Ok(Page::Nodes(nodes.into_iter().map(|node| to_core(node, ours)).collect()))
    }
}

fn to_core(node: NodeBody, ours: WallTime) -> NodeStatus {
    let mut status = NodeStatus::named(node.name);
    (status.counts, status.stands_by, status.why) = (node.counts, node.stands_by, node.why);
    status.round_trip = node.round_trip_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
    // How far the clock is ahead of the leasehold server's. Only the difference is known, so it is put on our time.
    status.clocks = node.clock_ahead_ms.filter(|ms| ms.is_finite()).map(|ms| (ahead(ours, ms), ours));
    status
}

fn ahead(time: WallTime, ms: f64) -> WallTime {
    #[expect(clippy::cast_possible_truncation, reason = "a conversion to an integer saturates")]
    let micros = (ms * 1000.0).round() as i64;
    WallTime::from_micros(time.as_micros().saturating_add_signed(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(round_trip_ms: Option<f64>, clock_ahead_ms: Option<f64>) -> NodeBody {
        let name = "10.0.0.1:6379".to_owned();
        NodeBody { name, counts: true, stands_by: false, why: None, round_trip_ms, clock_ahead_ms }
    }

    #[test]
    fn a_node_keeps_its_round_trip_and_the_difference_of_its_clock() {
        let ours = WallTime::from_micros(1_000_000);
        let status = to_core(node(Some(0.5), Some(-3.25)), ours);
        assert_eq!(status.round_trip, Some(Duration::from_micros(500)));
        assert_eq!(status.clocks, Some((WallTime::from_micros(996_750), ours)));
        let down = NodeBody { counts: false, why: Some("no answer".to_owned()), ..node(None, None) };
        let down = to_core(down, ours);
        assert_eq!((down.counts, down.why.as_deref(), down.clocks), (false, Some("no answer"), None));
    }

    #[test]
    fn numbers_that_make_no_sense_are_left_out_and_do_not_panic() {
        let ours = WallTime::from_micros(5);
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let status = to_core(node(Some(number), Some(number)), ours);
            assert_eq!((status.round_trip, status.clocks), (None, None), "{number}");
        }
        assert_eq!(to_core(node(Some(-1.0), Some(-1e300)), ours).round_trip, None);
        assert_eq!(to_core(node(None, Some(-1e300)), ours).clocks, Some((WallTime::from_micros(0), ours)));
    }
}
