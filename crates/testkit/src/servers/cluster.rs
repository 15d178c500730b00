//! A Redis Cluster: three primaries with a replica each.

use std::{io, ops::RangeInclusive};

use super::{
    daemon::{eventually, free_port},
    redis::{RedisServer, TlsFiles, ask, ask_all},
};

const SLOTS: u16 = 16384;
const PRIMARIES: usize = 3;

/// Six nodes, of which three are primaries at the start. A node is taken for dead after a second; the others go on
/// without its slots.
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
    /// The nodes: at the start, the first three are the primaries, and each of the last three is the replica of the one
    /// three before it.
    pub nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl RedisCluster {
    /// One that keeps nothing on disk but who is who.
    ///
    /// # Panics
    /// If `redis-server` is not installed or the nodes do not find together.
    pub fn start() -> RedisCluster {
        RedisCluster::of(2 * PRIMARIES, &RedisServer::with)
    }

    /// Three primaries, and no replicas.
    ///
    /// # Panics
    /// As [`start`](RedisCluster::start).
    pub fn without_replicas() -> RedisCluster {
        RedisCluster::of(PRIMARIES, &RedisServer::with)
    }

    /// One whose nodes talk to each other by TLS and name their TLS ports to whoever asks by TLS; with options more.
    ///
    /// # Panics
    /// As [`start`](RedisCluster::start).
    pub fn with_tls(files: &TlsFiles, more: &[&str]) -> RedisCluster {
        RedisCluster::of(2 * PRIMARIES, &|options| {
            let tls = ["--tls-cluster", "yes", "--tls-replication", "yes"];
            RedisServer::with_tls(files, &[options, &tls, more].concat())
        })
    }

    fn of(count: usize, run: &dyn Fn(&[&str]) -> RedisServer) -> RedisCluster {
        let start = |_| {
            let bus = free_port().to_string();
            let mut options = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            options.extend(["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]);
            // A replica stands for election however old its data is: that is what some tests are about.
            options.extend(["--cluster-replica-validity-factor", "0"]);
            // A primary whose last slot is moved away stays one.
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
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if number < PRIMARIES {
                let slots = RedisCluster::slots_at_the_start(number);
                let (first, last) = (slots.start().to_string(), slots.end().to_string());
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
        }
        // A handshake that takes longer than a node's timeout is given up, so whoever is not known is introduced again.
        eventually("the nodes do not meet", || {
            let known = ask(self.nodes[0].port(), &["CLUSTER", "NODES"])?;
            let ours = self.nodes.iter().zip(&self.ids).zip(buses);
            let missing: Vec<_> = ours.filter(|((_, id), _)| !known.contains(id.as_str())).collect();
            let shaking = known.matches("handshake").count();
            if missing.is_empty() && shaking == 0 {
                return Ok(());
            }
            if shaking < missing.len() {
                for ((node, _), bus) in missing {
                    let port = node.peer_port().to_string();
                    ask(self.nodes[0].port(), &["CLUSTER", "MEET", "127.0.0.1", &port, bus])?;
                }
            }
            Err(io::Error::other(known))
        });
        for (number, node) in self.nodes.iter().enumerate() {
            eventually("the nodes do not know each other", || {
                let known = ask(node.port(), &["CLUSTER", "NODES"])?;
                let all = self.ids.iter().all(|id| known.contains(id.as_str()));
                if all && !known.contains("handshake") { Ok(()) } else { Err(io::Error::other(known)) }
            });
            if number >= PRIMARIES {
                let follow = ["CLUSTER", "REPLICATE", &self.ids[number - PRIMARIES]];
                eventually("a replica does not follow", || match ask(node.port(), &follow)? {
                    ok if ok == "OK" => Ok(()),
                    error => Err(io::Error::other(error)),
                });
            }
        }
    }

    /// Waits until all nodes that run agree on who has which slots, and every replica follows its primary.
    ///
    /// # Panics
    /// If they do not.
    pub fn await_agreement(&self) {
        eventually("the nodes do not agree", || {
            let views: Vec<String> = self
                .running()
                .map(|node| ask(node.port(), &["CLUSTER", "NODES"]).map(|text| slots_in(&text)))
                .collect::<io::Result<_>>()?;
            let agree = views.windows(2).all(|pair| pair[0] == pair[1]);
            let states = self.running().map(|node| ask(node.port(), &["CLUSTER", "INFO"]));
            let fine = states.collect::<io::Result<Vec<_>>>()?.iter().all(|s| s.contains("cluster_state:ok"));
            let roles = self.running().map(|node| ask(node.port(), &["ROLE"]));
            let roles = roles.collect::<io::Result<Vec<_>>>()?;
            let follow = roles.iter().all(|role| role.starts_with("master") || role.contains(" connected "));
            if agree && fine && follow { Ok(()) } else { Err(io::Error::other(views.join("\n"))) }
        });
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_up())
    }

    /// The slots of the primary with this number, at the start.
    pub fn slots_at_the_start(number: usize) -> RangeInclusive<u16> {
        let share = SLOTS / PRIMARIES as u16 + 1;
        let first = share * number as u16;
        first..=(first + share - 1).min(SLOTS - 1)
    }

    /// The URL by which a client finds the cluster: it names three of the nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.nodes[..PRIMARIES].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The slot of a hash tag.
    ///
    /// # Panics
    /// If no node answers.
    pub fn slot(&self, tag: &str) -> u16 {
        let node = self.running().next().expect("a node runs");
        node.command(&["CLUSTER", "KEYSLOT", tag]).parse().expect("a slot is a number")
    }

    /// The number of the node that has a slot, as most of those that run say.
    ///
    /// # Panics
    /// If they do not say.
    pub fn owner(&self, slot: u16) -> usize {
        eventually("nobody has the slot", || {
            let mut votes = vec![0; self.nodes.len()];
            for node in self.running() {
                let text = ask(node.port(), &["CLUSTER", "NODES"])?;
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
    /// If nobody has it.
    pub fn other_than(&self, slot: u16) -> usize {
        (self.owner(slot) + 1) % PRIMARIES
    }

    /// Begins to move slots: until [`end_move`](RedisCluster::end_move), the keys in them are here or there.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn begin_move(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let set =
            |slot: u16, word: &str, id: &str| question(&["CLUSTER", "SETSLOT", &slot.to_string(), word, id]);
        let importing: Vec<_> = slots.clone().map(|slot| set(slot, "IMPORTING", &self.ids[from])).collect();
        self.all_well(to, &importing);
        let migrating: Vec<_> = slots.map(|slot| set(slot, "MIGRATING", &self.ids[to])).collect();
        self.all_well(from, &migrating);
    }

    /// Moves all keys in slots that are on their way.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_keys(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let (source, port) = (self.nodes[from].port(), self.nodes[to].peer_port().to_string());
        let list = |slot: u16| question(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"]);
        let lists = ask_all(source, &slots.map(list).collect::<Vec<_>>()).expect("the node lists its keys");
        let full = lists.iter().filter(|keys| !keys.is_empty());
        let migrate = full.map(|keys| {
            let mut words = question(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"]);
            words.extend(keys.split(' ').map(str::to_owned));
            words
        });
        let answers = ask_all(source, &migrate.collect::<Vec<_>>()).expect("keys can be moved");
        assert!(answers.iter().all(|answer| answer == "OK" || answer == "NOKEY"), "{answers:?}");
    }

    /// The slots have arrived.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn end_move(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let set = |slot: u16| question(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]]);
        let set: Vec<_> = slots.map(set).collect();
        self.all_well(to, &set);
        self.all_well(from, &set);
    }

    /// Moves slots of one primary, with all that is in them.
    ///
    /// # Panics
    /// If a node refuses.
    pub fn move_slots(&self, slots: RangeInclusive<u16>, to: usize) {
        let from = self.owner(*slots.start());
        self.begin_move(slots.clone(), from, to);
        self.move_keys(slots.clone(), from, to);
        self.end_move(slots, from, to);
    }

    fn all_well(&self, node: usize, questions: &[Vec<String>]) {
        let answers = ask_all(self.nodes[node].port(), questions).expect("the node answers");
        assert!(answers.iter().all(|answer| answer == "OK"), "{answers:?}");
    }

    /// The replica of the primary with this number at the start hears of nothing more from it, and is frozen until it
    /// is thawed.
    ///
    /// # Panics
    /// If either is down.
    pub fn cut_off_replica(&self, primary: usize) -> &RedisServer {
        let replica = &self.nodes[primary + PRIMARIES];
        replica.freeze();
        // Otherwise what is written next would wait for it in a buffer.
        self.nodes[primary].command(&["CLIENT", "KILL", "TYPE", "replica"]);
        replica
    }

    /// Waits until another node than this one has the slot, and all that run know. Its number.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn await_failover(&self, slot: u16, from: usize) -> usize {
        let now = eventually("no failover", || {
            let now = self.owner(slot);
            if now == from { Err(io::Error::other("still the old one")) } else { Ok(now) }
        });
        self.await_agreement();
        now
    }
}

fn question(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Who has which slots, of an answer to `CLUSTER NODES`, in an order that does not depend on who was asked.
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

/// Whether a line of `CLUSTER NODES` is of a node that has this slot and is not dead.
fn has_slot(line: &str, slot: u16) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let dead = words.get(2).is_none_or(|flags| flags.split(',').any(|flag| flag == "fail"));
    let within = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    };
    !dead && words.iter().skip(8).any(within)
}
