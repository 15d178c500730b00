//! Virtual time, and the one thread on which everything runs.
//!
//! A task belongs to a node. A node that is paused is not polled; one that crashed loses its tasks where they stand.
//! When nothing can run, time jumps to the next timer. The same seed makes the same run, poll by poll.

mod node;
mod sleep;

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use leasehold_core::clock::Task;
use slab::Slab;

use crate::{
    clock::{HostClock, Time},
    random::{Random, mix},
    report::Violation,
};
use node::SimulatedProcess;
pub(crate) use node::{DIRECTOR, Health, NodeId, SERVER};
use sleep::Sleeper;

struct TaskSlot {
    serial: u64,
    node: NodeId,
    future: Option<Task>,
    signal: Arc<Signal>,
}

struct Core {
    now: Time,
    nodes: Vec<SimulatedProcess>,
    tasks: Slab<TaskSlot>,
    sleepers: Slab<Sleeper>,
    timers: BTreeSet<(Time, u64, usize)>,
    serial: u64,
    polls: u64,
    polls_now: u32,
    hash: u64,
    shuffle: Option<Random>,
    violation: Option<Violation>,
}

/// The world. Shared by every environment in it.
pub(crate) struct World {
    core: Mutex<Core>,
    ready: Arc<Ready>,
    tracing: bool,
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<(usize, u64)>>);

impl Ready {
    fn queue(&self) -> MutexGuard<'_, VecDeque<(usize, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Signal {
    ready: Arc<Ready>,
    slot: usize,
    serial: u64,
    queued: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Signal>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Signal>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.queue().push_back((self.slot, self.serial));
        }
    }
}

/// More polls than this without time moving on is a busy loop.
const POLLS_AT_ONCE_MAX: u32 = 200_000;
/// More polls than this in one run is a livelock: time moves on, and no task makes progress. A run has about 12,000.
const POLLS_MAX: u64 = 4_000_000;

impl World {
    /// With a director and a server; `shuffle` makes tasks that are ready together run in a drawn order.
    pub(crate) fn new(server: HostClock, shuffle: Option<Random>, tracing: bool) -> Arc<World> {
        let core = Core {
            now: 0,
            nodes: Vec::new(),
            tasks: Slab::new(),
            sleepers: Slab::new(),
            timers: BTreeSet::new(),
            serial: 0,
            polls: 0,
            polls_now: 0,
            hash: 0,
            shuffle,
            violation: None,
        };
        let world = Arc::new(World { core: Mutex::new(core), ready: Arc::default(), tracing });
        world.add_node(HostClock::new(crate::clock::PAR, Duration::ZERO));
        world.add_node(server);
        world
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        self.core().now
    }

    /// A hash of all that happened so far.
    pub(crate) fn hash(&self) -> u64 {
        self.core().hash
    }

    pub(crate) fn polls(&self) -> u64 {
        self.core().polls
    }

    /// Something happened that a replay must repeat.
    pub(crate) fn stamp(&self, what: u64) {
        let mut core = self.core();
        core.hash = mix(core.hash ^ what);
    }

    /// Keeps the first violation; the run ends with it.
    pub(crate) fn fail(&self, checker: &'static str, message: String) {
        let mut core = self.core();
        let at = Duration::from_nanos(core.now);
        self.trace_at(core.now, || format!("VIOLATION {checker}: {message}"));
        core.violation.get_or_insert(Violation { checker, message, at });
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.core().violation.clone()
    }

    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            self.trace_at(self.now(), text);
        }
    }

    fn trace_at(&self, now: Time, text: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>12.6} {}", Duration::from_nanos(now).as_secs_f64(), text());
        }
    }

    /// Runs the task on this node; drops it if the node has crashed.
    pub(crate) fn spawn(&self, node: NodeId, task: Task) {
        let mut core = self.core();
        if core.nodes[node.0].health == Health::Crashed {
            drop(core);
            return drop(task);
        }
        core.serial += 1;
        let serial = core.serial;
        let entry = core.tasks.vacant_entry();
        let slot = entry.key();
        let signal = Signal { ready: Arc::clone(&self.ready), slot, serial, queued: AtomicBool::new(true) };
        entry.insert(TaskSlot { serial, node, future: Some(task), signal: Arc::new(signal) });
        self.ready.queue().push_back((slot, serial));
    }

    /// Runs until true time `until`, or until `done`, or until something is violated.
    pub(crate) fn run(&self, until: Time, done: impl Fn() -> bool) {
        loop {
            while let Some((slot, serial)) = self.next_ready() {
                self.poll(slot, serial);
                if self.core().violation.is_some() {
                    return;
                }
            }
            if done() || !self.advance(until) {
                return;
            }
        }
    }

    fn next_ready(&self) -> Option<(usize, u64)> {
        let mut core = self.core();
        let mut ready = self.ready.queue();
        let count = ready.len();
        match &mut core.shuffle {
            Some(random) if count > 1 => {
                let at = usize::try_from(random.below(count as u64)).expect("below a length");
                ready.swap_remove_front(at)
            }
            _ => ready.pop_front(),
        }
    }

    fn poll(&self, slot: usize, serial: u64) {
        let (mut future, signal) = {
            let mut core = self.core();
            let core = &mut *core;
            let Some(task) = core.tasks.get_mut(slot).filter(|task| task.serial == serial) else { return };
            let node = &mut core.nodes[task.node.0];
            if node.health != Health::Running {
                node.parked.push((slot, serial));
                return;
            }
            task.signal.queued.store(false, Ordering::Release);
            let Some(future) = task.future.take() else { return };
            core.hash = mix(core.hash ^ core.now.rotate_left(20) ^ serial);
            core.polls += 1;
            core.polls_now += 1;
            let signal = Arc::clone(&task.signal);
            core.check_polls();
            (future, signal)
        };
        let waker = Waker::from(signal);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            Future::poll(future.as_mut(), &mut Context::from_waker(&waker))
        }));
        match polled {
            Ok(Poll::Pending) => {
                let mut core = self.core();
                match core.tasks.get_mut(slot).filter(|task| task.serial == serial) {
                    Some(task) => task.future = Some(future),
                    None => {
                        drop(core); // it crashed its own node
                        drop(future);
                    }
                }
            }
            Ok(Poll::Ready(())) => {
                let gone = self.core().tasks.try_remove(slot);
                drop((gone, future));
            }
            Err(panic) => {
                self.core().tasks.try_remove(slot);
                self.fail("panic", panic_text(&*panic));
                std::mem::forget(future); // its destructor may panic again
            }
        }
    }

    /// To the next timer, if that is not past the goal.
    fn advance(&self, until: Time) -> bool {
        let mut core = self.core();
        core.polls_now = 0;
        let Some(&(due, serial, key)) = core.timers.first().filter(|(due, ..)| *due <= until) else {
            core.now = core.now.max(until);
            return false;
        };
        core.timers.remove(&(due, serial, key));
        core.now = core.now.max(due);
        let sleeper = &mut core.sleepers[key];
        sleeper.fired = true;
        let waker = sleeper.waker.take();
        drop(core);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Drops every task, so that the cycle from the world to its tasks is cut.
    pub(crate) fn clear(&self) {
        loop {
            let tasks = std::mem::take(&mut self.core().tasks);
            if tasks.is_empty() {
                return;
            }
            drop(tasks);
        }
    }
}

impl Core {
    fn check_polls(&mut self) {
        let (checker, message) = if self.polls_now > POLLS_AT_ONCE_MAX {
            ("busy loop", format!("{} polls, and time stands still", self.polls_now))
        } else if self.polls > POLLS_MAX {
            ("livelock", format!("{} polls, and no end", self.polls))
        } else {
            return;
        };
        let at = Duration::from_nanos(self.now);
        self.violation.get_or_insert(Violation { checker, message, at });
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}
