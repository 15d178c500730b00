//! Which faults the proxy injects next.

use std::time::Duration;

use super::{Direction, Misdelivery};
use crate::random::SplitMix64;

/// The faults that are still to be injected.
#[derive(Debug)]
pub(super) struct ProxyFaults {
    random: SplitMix64,
    pub(super) delay_max: Duration,
    /// How many bytes still pass before the connection that carries them is cut, by [`Direction`].
    pub(super) cut_after: [Option<usize>; 2],
    pub(super) lose_replies: u32,
    pub(super) send_twice: u32,
    /// How many replies are still to be delivered to the wrong request, by [`Misdelivery`].
    pub(super) misdeliver: [u32; 3],
    pub(super) misdelivered: u64,
    pub(super) refuse: bool,
    /// The number of connections so far.
    pub(super) connections: u64,
}

/// What happens to a chunk of bytes.
pub(super) enum ChunkAction {
    Pass,
    /// This many bytes pass. Then the connection is cut.
    PassThenCut(usize),
    /// The chunk is lost together with its connection.
    Lose,
    SendTwice,
    Misdeliver(Misdelivery),
}

impl ProxyFaults {
    pub(super) fn new(seed: u64) -> ProxyFaults {
        ProxyFaults {
            random: SplitMix64::new(seed),
            delay_max: Duration::ZERO,
            cut_after: [None; 2],
            lose_replies: 0,
            send_twice: 0,
            misdeliver: [0; 3],
            misdelivered: 0,
            refuse: false,
            connections: 0,
        }
    }

    /// Decides what happens to the next chunk of this direction.
    pub(super) fn next_action(&mut self, direction: Direction, length: usize) -> ChunkAction {
        if let Some(left) = &mut self.cut_after[direction as usize] {
            if *left <= length {
                let passing = *left;
                self.cut_after[direction as usize] = None;
                return ChunkAction::PassThenCut(passing);
            }
            *left -= length;
        }
        match direction {
            Direction::Replies if self.lose_replies > 0 => {
                self.lose_replies -= 1;
                ChunkAction::Lose
            }
            Direction::Requests if self.send_twice > 0 => {
                self.send_twice -= 1;
                ChunkAction::SendTwice
            }
            Direction::Replies => {
                let all = [Misdelivery::Swap, Misdelivery::Repeat, Misdelivery::Stale];
                let how = all.into_iter().find(|how| self.misdeliver[*how as usize] > 0);
                how.map_or(ChunkAction::Pass, ChunkAction::Misdeliver)
            }
            Direction::Requests => ChunkAction::Pass,
        }
    }

    pub(super) fn count_misdelivered(&mut self, how: Misdelivery) {
        let left = &mut self.misdeliver[how as usize];
        *left = left.saturating_sub(1);
        self.misdelivered += 1;
    }

    /// A random delay of up to `delay_max`.
    pub(super) fn random_delay(&mut self) -> Duration {
        self.random.duration_up_to(self.delay_max)
    }
}
