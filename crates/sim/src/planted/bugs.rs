//! The planted bugs: what each one is, and how it is put into a copy of the source.

/// A bug that the simulator must find.
#[derive(Debug)]
pub struct PlantedBug {
    /// Its name, as the environment variable has it.
    pub name: &'static str,
    /// What is wrong, in one sentence.
    pub what: &'static str,
    /// Whether runs over a quorum of nodes find it, and not runs over one server.
    pub is_of_quorum: bool,
    /// The first and the last seed to try. Two bugs take a rare coincidence.
    pub seeds: (u64, u64),
    /// How it is planted.
    pub edits: &'static [Edit],
}

/// Replaces a text that stands once in a file.
#[derive(Debug)]
pub struct Edit {
    /// The file, from the root of the workspace.
    pub file: &'static str,
    /// The text to replace.
    pub find: &'static str,
    /// The text to put in its place.
    pub replace: &'static str,
}

const MODEL: &str = "crates/core/src/model.rs";
const QUEUE: &str = "crates/core/src/queue.rs";
const NODE: &str = "crates/core/src/quorum_node/node_model.rs";
const TALLY: &str = "crates/core/src/quorum_node/tally.rs";
const ACQUISITION: &str = "crates/leasehold/src/engine/acquisition.rs";
const GATHER: &str = "crates/support/src/gather.rs";
const HELD_LEASE: &str = "crates/leasehold/src/engine/held_lease.rs";
const LOCAL_QUEUE: &str = "crates/leasehold/src/engine/local_queue.rs";
const PENDING_CLAIM: &str = "crates/leasehold/src/engine/pending_claim.rs";
const RELEASE: &str = "crates/leasehold/src/engine/release.rs";
const RENEWAL: &str = "crates/leasehold/src/engine/renewal.rs";
const TIMES: &str = "crates/leasehold/src/engine/times.rs";
const WATCHDOG: &str = "crates/leasehold/src/engine/watchdog.rs";
const MEMORY: &str = "crates/leasehold/src/memory.rs";
const QUORUM_MEMBERSHIP: &str = "crates/leasehold/src/quorum/membership.rs";
const QUORUM_RENEW: &str = "crates/leasehold/src/quorum/renew.rs";
const QUORUM_UNDO: &str = "crates/leasehold/src/quorum/undo.rs";

/// A bug in the engine or in the memory backend.
const fn bug(name: &'static str, what: &'static str, seeds: u64, edits: &'static [Edit]) -> PlantedBug {
    PlantedBug { name, what, is_of_quorum: false, seeds: (1, seeds), edits }
}

/// A bug in the quorum.
const fn quorum_bug(
    name: &'static str,
    what: &'static str,
    seeds: (u64, u64),
    edits: &'static [Edit],
) -> PlantedBug {
    PlantedBug { name, what, is_of_quorum: true, seeds, edits }
}

/// All of them.
pub const BUGS: &[PlantedBug] = &[
    bug(
        "deadline-from-reply",
        "the deadline counts from the reply, not from the send",
        40,
        &[
            Edit {
                file: HELD_LEASE,
                find: "let times = LeaseTimes::of(start.sent.at, start.remaining, start.ttl);",
                replace: r#"let mut start = start;
        if leasehold_core::planted("deadline-from-reply") {
            start.sent = self.send_time();
        }
        let times = LeaseTimes::of(start.sent.at, start.remaining, start.ttl);"#,
            },
            Edit {
                file: RENEWAL,
                find: r#"let Some(key) = lease.watch_key() else { return };
        if let Some(ttl) = new_ttl {"#,
                replace: r#"let sent = if leasehold_core::planted("deadline-from-reply") { self.send_time() } else { sent };
        let Some(key) = lease.watch_key() else { return };
        if let Some(ttl) = new_ttl {"#,
            },
        ],
    ),
    bug(
        "loss-unlatches",
        "a renewal that comes late revives a lease that was lost",
        40,
        &[Edit {
            file: HELD_LEASE,
            find: r#"self.end(self.stop_reason(now));
        self.recorded_end()"#,
            replace: r#"if leasehold_core::planted("loss-unlatches") {
            return Some(self.stop_reason(now));
        }
        self.end(self.stop_reason(now));
        self.recorded_end()"#,
        }],
    ),
    bug(
        "release-without-owner",
        "a release does not compare the owner",
        40,
        &[Edit {
            file: MODEL,
            find: "let owner = request.owner;",
            replace: r#"let any = self.holders.iter().next().map(|(owner, ..)| owner);
        let owner = any.filter(|_| crate::planted("release-without-owner")).unwrap_or(request.owner);"#,
        }],
    ),
    bug(
        "wakeup-missed",
        "the backend does not wake the waiters that can be granted",
        40,
        &[Edit {
            file: MEMORY,
            find: "if self.waits == 0 {",
            replace: r#"if self.waits == 0 || leasehold_core::planted("wakeup-missed") {"#,
        }],
    ),
    bug(
        "head-not-called",
        "the local queue does not call the next waiter when its head goes away",
        120,
        &[Edit {
            file: LOCAL_QUEUE,
            find: "let next = queue.promote_next();",
            replace: r#"let next = if leasehold_core::planted("head-not-called") { None } else { queue.promote_next() };"#,
        }],
    ),
    bug(
        "no-tombstone",
        "a release leaves no tombstone",
        40,
        &[Edit {
            file: MODEL,
            find: "if let Some(keep) = request.tombstone {",
            replace: r#"if let Some(keep) = request.tombstone.filter(|_| !crate::planted("no-tombstone")) {"#,
        }],
    ),
    bug(
        "endless-handovers",
        "a grant is handed over without bound while others wait",
        120,
        &[Edit {
            file: MODEL,
            find: "let too_often = ",
            replace: r#"let too_often = !crate::planted("endless-handovers") && "#,
        }],
    ),
    bug(
        "renewal-skipped",
        "the watchdog does not renew",
        40,
        &[Edit {
            file: WATCHDOG,
            find: "let ToWatch { handle, times, ttl, renews } = to_watch;",
            replace: r#"let ToWatch { handle, times, ttl, renews } = to_watch;
        let renews = renews && !leasehold_core::planted("renewal-skipped");"#,
        }],
    ),
    bug(
        "guard-disarmed",
        "a cancelled acquire leaves its grant behind",
        40,
        &[Edit {
            file: PENDING_CLAIM,
            find: r#"let owner = self.claim.owner;
        if self.in_flight.load(Ordering::Acquire) || self.unanswered {"#,
            replace: r#"if leasehold_core::planted("guard-disarmed") {
            return None;
        }
        let owner = self.claim.owner;
        if self.in_flight.load(Ordering::Acquire) || self.unanswered {"#,
        }],
    ),
    bug(
        "no-threshold",
        "a lease counts as held up to its deadline, without the last sixth to stop in",
        40,
        &[Edit {
            file: TIMES,
            find: "deadline.before(LeaseTimes::stop_before_deadline(ttl))",
            replace: r#"deadline.before(if leasehold_core::planted("no-threshold") { Duration::ZERO } else { LeaseTimes::stop_before_deadline(ttl) })"#,
        }],
    ),
    bug(
        "renew-revives",
        "a renewal revives what has expired at the backend",
        120,
        &[Edit {
            file: MODEL,
            find: "request: &RenewRequest) -> Renewal {\n        self.remove_expired(now);",
            replace: r#"request: &RenewRequest) -> Renewal {
        if !crate::planted("renew-revives") {
            self.remove_expired(now);
        }"#,
        }],
    ),
    bug(
        "token-repeats",
        "a token may repeat",
        40,
        &[
            Edit {
                file: MODEL,
                find: "let token = FencingToken::mint(self.last_token, clock, claim.floor)?;",
                replace: r#"let token = FencingToken::mint(self.last_token, clock, claim.floor)?;
        let token = self.last_token.filter(|_| crate::planted("token-repeats")).unwrap_or(token);"#,
            },
            Edit {
                file: MODEL,
                find: "debug_assert!(self.last_token.is_none_or(|last| last < token), \"tokens grow\");",
                replace: "",
            },
        ],
    ),
    bug(
        "leave-overtakes",
        "a claim that does not wait overtakes the queue",
        40,
        &[Edit {
            file: MODEL,
            find: "if self.paused_until.is_none() && self.fits(claim) {",
            replace: r#"let overtakes = crate::planted("leave-overtakes") && claim.when_blocked == WhenBlocked::Leave;
        let overtakes = overtakes && self.held + u64::from(claim.share.weight()) <= u64::from(self.capacity);
        if self.paused_until.is_none() && (self.fits(claim) || overtakes) {"#,
        }],
    ),
    bug(
        "passes-over-at-once",
        "a waiter that was called has no time to answer",
        40,
        &[Edit {
            file: QUEUE,
            find: "let is_over = |since: Timestamp| since.after(ANSWER_WITHIN) <= now;",
            replace: r#"let within = if crate::planted("passes-over-at-once") { ANSWER_WITHIN / 10 } else { ANSWER_WITHIN };
        let is_over = |since: Timestamp| since.after(within) <= now;"#,
        }],
    ),
    bug(
        "never-passes-over",
        "a waiter that does not answer blocks the queue until its place expires",
        40,
        &[Edit {
            file: MODEL,
            find: "if self.passes_over && self.queue.pass_over_silent(now) {",
            replace: r#"if self.passes_over && !crate::planted("never-passes-over") && self.queue.pass_over_silent(now) {"#,
        }],
    ),
    bug(
        "vouches-during-release",
        "a view says that the lease is held while it is being released",
        40,
        &[Edit {
            file: RELEASE,
            find: "if lease.end(EndReason::Released) {",
            replace: r#"if !leasehold_core::planted("vouches-during-release") && lease.end(EndReason::Released) {"#,
        }],
    ),
    bug(
        "calendar-at-reply",
        "the wall clock is read when the reply arrives",
        1000,
        &[Edit {
            file: HELD_LEASE,
            find: "self.times.publish(times, sent);",
            replace: r#"let sent = if leasehold_core::planted("calendar-at-reply") { self.engine.send_time() } else { sent };
        self.times.publish(times, sent);"#,
        }],
    ),
    bug(
        "queued-claim-forgotten",
        "a claim whose caller leaves is taken for one that was never sent, though it is in a call",
        600,
        &[Edit {
            file: GATHER,
            find: "if !self.is_done && !self.gatherer.leave(self.limits.domain, self.number) {",
            replace: r#"let left = self.is_done || self.gatherer.leave(self.limits.domain, self.number);
        if !left && !leasehold_core::planted("queued-claim-forgotten") {"#,
        }],
    ),
    bug(
        "results-shifted",
        "each claim of a gathered call gets the result of the claim before it",
        40,
        &[Edit {
            file: GATHER,
            find: "    in_flight.answered(sent.at);\n    // Before",
            replace: r#"    let mut results = results;
    if leasehold_core::planted("results-shifted") {
        results.rotate_right(1);
    }
    in_flight.answered(sent.at);
    // Before"#,
        }],
    ),
    bug(
        "gathered-sent-at-reply",
        "the deadline of a gathered claim counts from the reply",
        200,
        &[Edit {
            file: GATHER,
            find: "    in_flight.answered(sent.at);\n    // Before",
            replace: r#"    let sent =
        if leasehold_core::planted("gathered-sent-at-reply") { SendTime::now(&*gatherer.environment) } else { sent };
    in_flight.answered(sent.at);
    // Before"#,
        }],
    ),
    bug(
        "cancels-its-own",
        "a claim that was granted after an unanswered attempt is cancelled",
        40,
        &[Edit {
            file: ACQUISITION,
            find: r#"(self.pending.known_to_backend, self.pending.unanswered) = (false, false);
        let ticket"#,
            replace: r#"(self.pending.known_to_backend, self.pending.unanswered) =
            (false, needs_tombstone && leasehold_core::planted("cancels-its-own"));
        let ticket"#,
        }],
    ),
    bug(
        "outage-fails-all",
        "an outage fails all waiters of a client, however long each of them is willing to wait",
        40,
        &[Edit {
            file: LOCAL_QUEUE,
            find: "outage.seen_since(waiter.since, now) >= OUTAGE_MAX;",
            replace: r#"outage.seen_since(waiter.since, now) >= OUTAGE_MAX || leasehold_core::planted("outage-fails-all");"#,
        }],
    ),
    bug(
        "sleeps-through-grant",
        "the pause after an unanswered request is longer than the grant that the request may have brought",
        40,
        &[Edit {
            file: ACQUISITION,
            find: "    Backoff::at_most(ttl / 6)",
            replace: r#"    if leasehold_core::planted("sleeps-through-grant") { Backoff::new() } else { Backoff::at_most(ttl / 6) }"#,
        }],
    ),
    bug(
        "late-grant-given-back",
        "a grant that comes too late to be used is released, and not renewed first",
        40,
        &[Edit {
            file: ACQUISITION,
            find: "async fn renew_late_grant(&mut self, grant: Grant) -> Option<LeaseHandle> {",
            replace: r#"async fn renew_late_grant(&mut self, grant: Grant) -> Option<LeaseHandle> {
        if leasehold_core::planted("late-grant-given-back") {
            return None;
        }"#,
        }],
    ),
    quorum_bug(
        "number-for-two",
        "a node accepts a number that it has accepted for another owner",
        (1, 60),
        &[
            Edit {
                file: NODE,
                find: "let Some(number) = self.above_last(request) else { return VoteOutcome::Far };",
                replace: r#"let unchecked = crate::planted("number-for-two");
        let number = if unchecked { self.at_least_last(request) } else { self.above_last(request) };
        let Some(number) = number else { return VoteOutcome::Far };"#,
            },
            Edit {
                file: NODE,
                find: "let ours = owner == Some(Some(request.owner));",
                replace: r#"let ours = owner == Some(Some(request.owner)) || crate::planted("number-for-two");"#,
            },
        ],
    ),
    quorum_bug(
        "votes-after-loss",
        "a node that lost its data votes on",
        (1, 60),
        &[Edit {
            file: NODE,
            find: "let valid = |mark: &&BirthMark| mark.standing",
            replace: r#"if crate::planted("votes-after-loss") {
            return cancelled;
        }
        let valid = |mark: &&BirthMark| mark.standing"#,
        }],
    ),
    quorum_bug(
        "registers-not-copied",
        "a node that lost its data is not told what the others accepted",
        (90, 400),
        &[Edit {
            file: QUORUM_MEMBERSHIP,
            find: "self.copy_registers(*node, from, healths).await?;",
            replace: r#"if !leasehold_core::planted("registers-not-copied") {
                    self.copy_registers(*node, from, healths).await?;
                }"#,
        }],
    ),
    quorum_bug(
        "majority-short",
        "one node less than a majority is enough",
        (1, 60),
        &[Edit {
            file: TALLY,
            find: "    size / 2 + 1",
            replace: r#"    size / 2 + usize::from(!crate::planted("majority-short"))"#,
        }],
    ),
    quorum_bug(
        "votes-kept",
        "the votes of a failed attempt are not given back",
        (1, 60),
        &[Edit {
            file: QUORUM_UNDO,
            find: "pub(super) async fn undo_votes(&mut self) -> bool {",
            replace: r#"pub(super) async fn undo_votes(&mut self) -> bool {
        if leasehold_core::planted("votes-kept") {
            return true;
        }"#,
        }],
    ),
    quorum_bug(
        "release-to-one",
        "a release reaches one node of the quorum",
        (1, 60),
        &[Edit {
            file: QUORUM_UNDO,
            find: "requests.send(number, async move { node.undo(&undo).await });",
            replace: r#"let skipped = number > 0 && leasehold_core::planted("release-to-one");
            requests.send(number, async move { if skipped { Ok(true) } else { node.undo(&undo).await } });"#,
        }],
    ),
    quorum_bug(
        "late-attempt-undoes",
        "undoing a delayed attempt removes the lock of a later one",
        (1, 120),
        &[Edit {
            file: NODE,
            find: "lock.attempt = lock.attempt.max(request.attempt);\n            return",
            replace: r#"lock.attempt = lock.attempt.max(request.attempt);
            if crate::planted("late-attempt-undoes") {
                lock.attempt = request.attempt;
            }
            return"#,
        }],
    ),
    quorum_bug(
        "late-vote-stays",
        "a vote that arrives after its grant was released stays",
        (1, 60),
        &[Edit {
            file: QUORUM_RENEW,
            find: "if !state.grants.is_known(&granted) {",
            replace: r#"if leasehold_core::planted("late-vote-stays") {
                    continue;
                }
                if !state.grants.is_known(&granted) {"#,
        }],
    ),
];
