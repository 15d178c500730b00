//! Bugs on purpose, one at a time: the simulator must find each of them (`leasehold-sim --planted`).
//!
//! Without the feature `planted` every question here is a constant `false`, and nothing of this is in a program.

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $name:ident,)+) => {
        /// What can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Bug {
            $($(#[doc = $what])+ $name,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),+];

            /// In words.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Bug::$name => concat!($($what),+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    /// the deadline counts from the reply, not from the send
    DeadlineFromReply,
    /// a renewal that comes late revives a lease that was lost
    LossUnlatches,
    /// release does not look at the owner
    ReleaseWithoutOwner,
    /// the backend does not wake those who can move
    WakeUpMissed,
    /// the local line does not call the next one when its head goes away
    HeadNotCalled,
    /// a farewell leaves no tombstone
    NoTombstone,
    /// a seat is handed over without bound while others wait
    EndlessTurns,
    /// the watchdog does not renew
    RenewalSkipped,
    /// a cancelled acquire leaves what it was granted
    GuardDisarmed,
    /// a lease vouches for itself up to its deadline, without a sixth to spare
    NoThreshold,
    /// a renewal revives what expired at the backend
    RenewRevives,
    /// a token may repeat
    TokenRepeats,
    /// a claim that does not wait overtakes those who do
    LeaveOvertakes,
    /// a view vouches while its lease is being released
    VouchesDuringRelease,
    /// the calendar is read when the answer arrives
    CalendarAtReply,
    /// a claim that was granted after an unanswered attempt is buried
    BuriesItsOwn,
    /// an outage fails all waiters of a client, however patient each of them is
    OutageFailsAll,
    /// the pause after an unanswered request is longer than the grant lasts that the request may have brought
    SleepsThroughGrant,
    /// a grant that comes too late to be used is given back, and not renewed first
    LateGrantGivenBack,
    /// a node of a quorum accepts a number that it has accepted for another owner
    NumberForTwo,
    /// a node of a quorum that lost everything votes on
    VotesAfterLoss,
    /// a node of a quorum that lost everything is not told what the others accepted
    NotTold,
    /// one node less than a majority is enough
    MajorityShort,
    /// what a failed attempt has taken of a quorum is not given back
    VotesKept,
    /// a release reaches one node of a quorum
    ReleaseToOne,
    /// an attempt that is executed late takes the lock of a later one along when it is undone
    LateAttemptUndoes,
    /// a vote that arrives after its grant was given back stays
    LateVoteStays,
}

impl Bug {
    /// It is in the quorum, as all from the first of them on are; the others are in the engine or the memory backend.
    pub const fn is_of_quorum(self) -> bool {
        self as u8 >= Bug::NumberForTwo as u8
    }
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants this bug, and no other, in this thread.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted in this thread.
#[cfg(feature = "planted")]
#[must_use]
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// It is not.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn is(_: Bug) -> bool {
    false
}
