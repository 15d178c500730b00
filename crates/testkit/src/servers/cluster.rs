//! A Redis Cluster: three primaries with one replica each.

use std::{io, ops::RangeInclusive};

use super::{
    daemon::{eventually, free_port},
    redis::{RedisServer, TlsFiles, send_command, send_commands},
};

const SLOTS: u16 = 16384;
const PRIMARIES: usize = 3;

/// A cluster of six nodes, of which three are primaries at the start.
///
/// A node counts as failed after a second. The other nodes keep serving their own slots meanwhile.
///
/// ```no_run
/// use leasehold_testkit::servers::RedisCluster;
///
/// let cluster = RedisCluster::start();
/// let slot = cluster.slot("report/42");
/// let to = cluster.other_than(slot);
/// cluster.move_slots(slot..=slot, to);
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    /// The nodes. At the start, nodes 0 to 2 are the primaries, and node `n + 3` is the replica of node `n`.
    pub nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl RedisCluster {
    /// Starts a cluster that keeps nothing on disk but its configuration.
    ///
    /// # Panics
    /// If `redis-server` is not installed or the nodes do not form a cluster.
    pub fn start() -> RedisCluster {
        RedisCluster::form(2 * PRIMARIES, &RedisServer::with)
    }

    /// Starts three primaries without replicas.
    ///
    /// # Panics
    /// As [`start`](RedisCluster::start).
    pub fn without_replicas() -> RedisCluster {
        RedisCluster::form(PRIMARIES, &RedisServer::with)
    }

    /// Starts a cluster with additional options, whose nodes use TLS among themselves. To a client that
    /// connected with TLS they report their TLS ports.
    ///
    /// # Panics
    /// As [`start`](RedisCluster::start).
    pub fn with_tls(files: &TlsFiles, more: &[&str]) -> RedisCluster {
        RedisCluster::form(2 * PRIMARIES, &|options| {
            let tls = ["--tls-cluster", "yes", "--tls-replication", "yes"];
            RedisServer::with_tls(files, &[options, &tls, more].concat())
        })
    }

    fn form(count: usize, run: &dyn Fn(&[&str]) -> RedisServer) -> RedisCluster {
        let start = |_| {
            let bus = free_port().to_string();
            let mut options = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            options.extend(["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]);
            // A replica may be elected however old its data is: some tests are about this case.
            options.extend(["--cluster-replica-validity-factor", "0"]);
            // A primary that has lost its last slot stays a primary.
            options.extend(["--cluster-allow-replica-migration", "no"]);
            (run(&options), bus)
        };
        let (nodes, buses): (Vec<_>, Vec<_>) = (0..count).map(start).unzip();
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"])).collect();
        let cluster = RedisCluster { nodes, ids };
        cluster.introduce(&buses);
        cluster.await_agreement();
        cluster
    }

    fn introduce(&self, buses: &[String]) {
        for (number, node) in self.nodes.iter().enumerate() {
            // Different epochs, as `redis-cli --cluster create` sets them: otherwise the nodes must resolve
            // conflicts.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if number < PRIMARIES {
                let slots = RedisCluster::slots_at_the_start(number);
                let (first, last) = (slots.start().to_string(), slots.end().to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
        }
        // A node gives up a handshake that takes longer than its timeout, so nodes that are still unknown
        // meet again.
        eventually("the nodes do not meet", || {
            let known = send_command(self.nodes[0].port(), &["CLUSTER", "NODES"])?;
            let ours = self.nodes.iter().zip(&self.ids).zip(buses);
            let missing: Vec<_> = ours.filter(|((_, id), _)| !known.contains(id.as_str())).collect();
            let shaking = known.matches("handshake").count();
            if missing.is_empty() && shaking == 0 {
                return Ok(());
            }
            if shaking < missing.len() {
                for ((node, _), bus) in missing {
                    let port = node.peer_port().to_string();
                    send_command(self.nodes[0].port(), &["CLUSTER", "MEET", "127.0.0.1", &port, bus])?;
                }
            }
            Err(io::Error::other(known))
        });
        for (number, node) in self.nodes.iter().enumerate() {
            eventually("the nodes do not know each other", || {
                let known = send_command(node.port(), &["CLUSTER", "NODES"])?;
                let all = self.ids.iter().all(|id| known.contains(id.as_str()));
                if all && !known.contains("handshake") { Ok(()) } else { Err(io::Error::other(known)) }
            });
            if number >= PRIMARIES {
                let follow = ["CLUSTER", "REPLICATE", &self.ids[number - PRIMARIES]];
                eventually("a replica does not follow", || match send_command(node.port(), &follow)? {
                    ok if ok == "OK" => Ok(()),
                    error => Err(io::Error::other(error)),
                });
            }
        }
    }

    /// Waits until all running nodes agree on the owner of each slot, and every replica follows its primary.
    ///
    /// # Panics
    /// If they do not.
    pub fn await_agreement(&self) {
        eventually("the nodes do not agree", || {
            let views: Vec<String> = self
                .running()
                .map(|node| send_command(node.port(), &["CLUSTER", "NODES"]).map(|text| slots_in(&text)))
                .collect::<io::Result<_>>()?;
            let agree = views.windows(2).all(|pair| pair[0] == pair[1]);
            let states = self.running().map(|node| send_command(node.port(), &["CLUSTER", "INFO"]));
            let fine = states.collect::<io::Result<Vec<_>>>()?.iter().all(|s| s.contains("cluster_state:ok"));
            let roles = self.running().map(|node| send_command(node.port(), &["ROLE"]));
            let roles = roles.collect::<io::Result<Vec<_>>>()?;
            let follow = roles.iter().all(|role| role.starts_with("master") || role.contains(" connected "));
            if agree && fine && follow { Ok(()) } else { Err(io::Error::other(views.join("\n"))) }
        });
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    /// The slots of primary `number` at the start.
    pub fn slots_at_the_start(number: usize) -> RangeInclusive<u16> {
        let share = SLOTS / PRIMARIES as u16 + 1;
        let first = share * number as u16;
        first..=(first + share - 1).min(SLOTS - 1)
    }

    /// The URL by which a client finds the cluster. It has the first three nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.nodes[..PRIMARIES].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The slot of a hash tag.
    ///
    /// # Panics
    /// If no node replies.
    pub fn slot(&self, tag: &str) -> u16 {
        let node = self.running().next().expect("a node runs");
        node.command(&["CLUSTER", "KEYSLOT", tag]).parse().expect("a slot is a number")
    }

    /// The number of the node that has this slot, according to most of the running nodes.
    ///
    /// # Panics
    /// If no node reports an owner.
    pub fn owner(&self, slot: u16) -> usize {
        eventually("no node has the slot", || {
            let mut votes = vec![0; self.nodes.len()];
            for node in self.running() {
                let text = send_command(node.port(), &["CLUSTER", "NODES"])?;
                let owner = text.lines().find(|line| has_slot(line, slot));
                let owner =
                    owner.and_then(|line| self.ids.iter().position(|id| line.starts_with(id.as_str())));
                if let Some(owner) = owner {
                    votes[owner] += 1;
                }
            }
            let most = (0..votes.len()).max_by_key(|&number| votes[number]).unwrap_or(0);
            if votes[most] > 0 { Ok(most) } else { Err(io::Error::other(format!("{slot}"))) }
        })
    }

    /// A primary that does not have this slot.
    ///
    /// # Panics
    /// If no node has it.
    pub fn other_than(&self, slot: u16) -> usize {
        (self.owner(slot) + 1) % PRIMARIES
    }

    /// Begins to move slots. Until [`end_move`](RedisCluster::end_move), a key is on one node or on the
    /// other.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn begin_move(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let set =
            |slot: u16, word: &str, id: &str| command(&["CLUSTER", "SETSLOT", &slot.to_string(), word, id]);
        let importing: Vec<_> = slots.clone().map(|slot| set(slot, "IMPORTING", &self.ids[from])).collect();
        self.expect_all_ok(to, &importing);
        let migrating: Vec<_> = slots.map(|slot| set(slot, "MIGRATING", &self.ids[to])).collect();
        self.expect_all_ok(from, &migrating);
    }

    /// Moves all keys of slots that are being moved.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_keys(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let (source, port) = (self.nodes[from].port(), self.nodes[to].peer_port().to_string());
        let list = |slot: u16| command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"]);
        let lists =
            send_commands(source, &slots.map(list).collect::<Vec<_>>()).expect("the node lists its keys");
        let full = lists.iter().filter(|keys| !keys.is_empty());
        let migrate = full.map(|keys| {
            let mut words = command(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"]);
            words.extend(keys.split(' ').map(str::to_owned));
            words
        });
        let replies = send_commands(source, &migrate.collect::<Vec<_>>()).expect("keys can be moved");
        assert!(replies.iter().all(|reply| reply == "OK" || reply == "NOKEY"), "{replies:?}");
    }

    /// Ends the move: from now on the slots belong to node `to`.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn end_move(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let set = |slot: u16| command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]]);
        let set: Vec<_> = slots.map(set).collect();
        self.expect_all_ok(to, &set);
        self.expect_all_ok(from, &set);
    }

    /// Moves slots of one primary together with their keys.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_slots(&self, slots: RangeInclusive<u16>, to: usize) {
        let from = self.owner(*slots.start());
        self.begin_move(slots.clone(), from, to);
        self.move_keys(slots.clone(), from, to);
        self.end_move(slots, from, to);
    }

    fn expect_all_ok(&self, node: usize, commands: &[Vec<String>]) {
        let replies = send_commands(self.nodes[node].port(), commands).expect("the node replies");
        assert!(replies.iter().all(|reply| reply == "OK"), "{replies:?}");
    }

    /// Freezes the replica of primary `primary` and breaks their connection, so that the replica misses all
    /// later writes.
    ///
    /// # Panics
    /// If either does not run.
    pub fn cut_off_replica(&self, primary: usize) -> &RedisServer {
        let replica = &self.nodes[primary + PRIMARIES];
        replica.freeze();
        // Otherwise the next writes would wait for the replica in a buffer of the primary.
        self.nodes[primary].command(&["CLIENT", "KILL", "TYPE", "replica"]);
        replica
    }

    /// Waits until a node other than `from` has the slot and all running nodes know it. Returns the number of
    /// that node.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn await_failover(&self, slot: u16, from: usize) -> usize {
        let now = eventually("no failover", || {
            let now = self.owner(slot);
            if now == from { Err(io::Error::other("it is still the old node")) } else { Ok(now) }
        });
        self.await_agreement();
        now
    }
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The slots of each node in a reply to `CLUSTER NODES`, sorted, so that the replies of two nodes can be
/// compared.
fn slots_in(text: &str) -> String {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let id = words.next()?;
        let slots: Vec<&str> = words.skip(7).filter(|word| !word.starts_with('[')).collect();
        (!slots.is_empty()).then(|| format!("{id} {}", slots.join(" ")))
    };
    let mut lines: Vec<String> = text.lines().filter_map(line).collect();
    lines.sort();
    lines.join("\n")
}

/// Whether a line of `CLUSTER NODES` describes a node that has this slot and has not failed.
fn has_slot(line: &str, slot: u16) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let dead = words.get(2).is_none_or(|flags| flags.split(',').any(|flag| flag == "fail"));
    let within = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    };
    !dead && words.iter().skip(8).any(within)
}
