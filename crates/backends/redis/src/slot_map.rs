//! The slot map as a node of a cluster reports it: `CLUSTER SLOTS` and `CLUSTER INFO`.

use leasehold_core::{Effect, Error, ErrorKind};
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};

use crate::{
    config::Config,
    connect::{self, Peer},
    error::StoreError,
    server_info::{IS_NO_CLUSTER, cluster_epoch},
    slot::SLOTS,
};

/// What one node says about the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClusterReport {
    pub(crate) epoch: u64,
    /// First slot, last slot, and the address of the primary that has them.
    pub(crate) ranges: Vec<(u16, u16, (String, u16))>,
    pub(crate) replicas: Vec<(String, u16)>,
}

/// The commands whose replies [`parse`] reads.
pub(crate) fn questions() -> [Cmd; 2] {
    ["SLOTS", "INFO"].map(|about| Cmd::new().arg("CLUSTER").arg(about).to_owned())
}

/// Asks a node, over a connection of its own.
pub(crate) async fn ask(config: &Config, host: &str, port: u16) -> Result<ClusterReport, StoreError> {
    let mut driver = connect::open(config, Peer::server(host, port), None).await?;
    let answered = send_questions(&mut driver).await.map_err(explain);
    let (slots, info) = answered.map_err(|error| Peer::server(host, port).name(error, config))?;
    Ok(parse(&slots, &info, host))
}

/// The replies are not checked for misdelivery: a wrong map costs a redirect, and the epoch that becomes part
/// of tokens is read again, and checked, when a primary is connected to (`server_info::examine`).
async fn send_questions(driver: &mut MultiplexedConnection) -> Result<(Value, Value), redis::RedisError> {
    let mut pipeline = Pipeline::with_capacity(2);
    questions().into_iter().for_each(|question| {
        pipeline.add_command(question);
    });
    let mut replies = driver.send_packed_commands(&pipeline, 0, 2).await?.into_iter();
    let mut next = || replies.next().unwrap_or(Value::Nil).extract_error();
    Ok((next()?, next()?))
}

fn explain(error: redis::RedisError) -> StoreError {
    if error.detail().unwrap_or_default().contains("cluster support disabled") {
        let error = Error::new(ErrorKind::Unsupported, IS_NO_CLUSTER).with_effect(Effect::None);
        return StoreError::Translated(error);
    }
    StoreError::Connect(error)
}

/// Reads the replies of a node. `CLUSTER SLOTS` is a list of ranges, each with its primary and then its
/// replicas.
pub(crate) fn parse(slots: &Value, info: &Value, asked_host: &str) -> ClusterReport {
    let (mut ranges, mut replicas) = (Vec::new(), Vec::new());
    let Value::Array(shards) = slots else {
        return ClusterReport { epoch: 0, ranges, replicas };
    };
    for shard in shards {
        let Value::Array(fields) = shard else { continue };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = fields.as_slice() else { continue };
        let mut nodes = nodes.iter().filter_map(|node| address(node, asked_host));
        let bound = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
        if let (Some(first), Some(last), Some(primary)) = (bound(first), bound(last), nodes.next())
            && first <= last
        {
            ranges.push((first, last, primary));
        }
        replicas.extend(nodes);
    }
    replicas.sort();
    replicas.dedup();
    ClusterReport { epoch: cluster_epoch(info), ranges, replicas }
}

/// Reads `[host, port, id, …]`. A node that does not know its own host has the host where it was asked.
fn address(node: &Value, asked_host: &str) -> Option<(String, u16)> {
    let Value::Array(fields) = node else { return None };
    let [host, Value::Int(port), ..] = fields.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => String::from_utf8_lossy(host).into_owned(),
        Value::SimpleString(host) => host.clone(),
        _ => String::new(),
    };
    let host = if matches!(host.as_str(), "" | "?") { asked_host.to_owned() } else { host };
    Some((host, u16::try_from(*port).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resp(text: &str) -> Value {
        redis::parse_redis_value(text.replace('\n', "\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn a_report_says_which_node_has_which_slots() {
        let node = |host: &str, port: u16| format!("*3\n{host}\n:{port}\n$2\nid\n");
        let (known, unknown, hidden) = ("$9\n127.0.0.1", "$0\n", "$-1");
        let slots = format!(
            "*2\n*4\n:0\n:8191\n{}{}*3\n:8192\n:16383\n{}",
            node(known, 7000),
            node(unknown, 7003),
            node(hidden, 7001)
        );
        let info = Value::BulkString(b"cluster_state:ok\r\ncluster_current_epoch:17\r\n".to_vec());
        let report = parse(&resp(&slots), &info, "cache");
        assert_eq!(report.epoch, 17);
        let of = |host: &str, port| (host.to_owned(), port);
        assert_eq!(report.ranges, [(0, 8191, of("127.0.0.1", 7000)), (8192, 16383, of("cache", 7001))]);
        assert_eq!(report.replicas, [of("cache", 7003)]);
        assert!(parse(&Value::Nil, &Value::Nil, "cache").ranges.is_empty());
        let backwards = format!("*1\n*3\n:8191\n:0\n{}", node(known, 7000));
        assert!(
            parse(&resp(&backwards), &info, "cache").ranges.is_empty(),
            "the range ends before it begins"
        );
    }
}
