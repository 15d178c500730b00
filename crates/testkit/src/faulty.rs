//! A backend wrapper that loses, delays, repeats and reorders calls, as a bad network does.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Backend, Effect, Environment, Error, ErrorKind, Verb};

use crate::{
    random::SplitMix64,
    verbs::{VerbReply, VerbRequest, relay},
};

/// A fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost. The caller gets `Unavailable` with effect `Unknown`.
    LoseRequest,
    /// The connection is refused. The caller gets `Unavailable` with effect `None`.
    Refuse,
    /// The request is executed, and its reply is lost. The caller gets `Unavailable` with effect `Unknown`.
    LoseReply,
    /// The request is executed twice in a row. The caller gets the second reply.
    Duplicate,
    /// The caller gets `Unavailable` with effect `Unknown` at once. The request is executed this much later.
    Late(Duration),
    /// The request is executed after this time, unless the caller has dropped the call by then.
    DelayRequest(Duration),
    /// The request is executed at once. The reply comes after this time.
    DelayReply(Duration),
    /// The request is executed, and the call never returns.
    Hang,
}

/// How often each fault is injected, per thousand calls, and how long the delays are.
///
/// The delays of different calls differ, so concurrent calls are reordered. `wait` and `inspect` change
/// nothing in the store, so they are lost, refused or delayed like the other verbs, but never late or
/// doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FaultPlan {
    /// How often [`Fault::LoseRequest`] is injected.
    pub lose_request: u32,
    /// How often [`Fault::Refuse`] is injected.
    pub refuse: u32,
    /// How often [`Fault::LoseReply`] is injected.
    pub lose_reply: u32,
    /// How often [`Fault::Duplicate`] is injected.
    pub duplicate: u32,
    /// How often [`Fault::Late`] is injected.
    pub late: u32,
    /// How often [`Fault::DelayRequest`] is injected.
    pub delay_request: u32,
    /// How often [`Fault::DelayReply`] is injected.
    pub delay_reply: u32,
    /// The longest delay. Each delay is drawn between zero and this.
    pub delay_max: Duration,
    /// The longest time until a late request is executed.
    pub late_max: Duration,
}

impl FaultPlan {
    /// No faults.
    pub const NONE: FaultPlan = FaultPlan {
        lose_request: 0,
        refuse: 0,
        lose_reply: 0,
        duplicate: 0,
        late: 0,
        delay_request: 0,
        delay_reply: 0,
        delay_max: Duration::ZERO,
        late_max: Duration::ZERO,
    };

    /// Every fault, so often that about a third of the calls have one.
    pub const HEAVY: FaultPlan = FaultPlan {
        lose_request: 40,
        refuse: 20,
        lose_reply: 60,
        duplicate: 40,
        late: 40,
        delay_request: 80,
        delay_reply: 60,
        delay_max: Duration::from_millis(500),
        late_max: Duration::from_secs(5),
    };
}

/// A backend with injected faults.
///
/// A fault is either drawn from a seed, by a [`FaultPlan`] that can be changed at any time, or scripted for
/// the next call of a verb ([`Faulty::next`]). A scripted fault has precedence.
pub struct Faulty {
    inner: Arc<dyn Backend>,
    environment: Arc<dyn Environment>,
    state: Mutex<FaultState>,
}

struct FaultState {
    plan: FaultPlan,
    random: SplitMix64,
    /// The next calls of each verb: a fault, or `None` for a call without one.
    script: HashMap<Verb, VecDeque<Option<Fault>>>,
    injected: Vec<(Verb, Fault)>,
}

impl Faulty {
    /// Wraps `inner`, with no faults yet. Delays and late requests use the clock and the tasks of
    /// `environment`. The faults depend on the seed alone.
    pub fn new(inner: Arc<dyn Backend>, environment: Arc<dyn Environment>, seed: u64) -> Faulty {
        let state = FaultState {
            plan: FaultPlan::NONE,
            random: SplitMix64::new(seed),
            script: HashMap::new(),
            injected: Vec::new(),
        };
        Faulty { inner, environment, state: Mutex::new(state) }
    }

    /// Sets the first plan.
    #[must_use]
    pub fn with_plan(self, plan: FaultPlan) -> Faulty {
        self.plan(plan);
        self
    }

    /// Replaces the plan. Late requests of the old plan are still executed.
    pub fn plan(&self, plan: FaultPlan) {
        self.state().plan = plan;
    }

    /// Scripts a fault for the next call of this verb that has no script yet.
    pub fn next(&self, verb: Verb, fault: Fault) {
        self.state().script.entry(verb).or_default().push_back(Some(fault));
    }

    /// Scripts that the next call of this verb that has no script yet has no fault, whatever the plan.
    pub fn let_through(&self, verb: Verb) {
        self.state().script.entry(verb).or_default().push_back(None);
    }

    /// The faults so far, each with the verb of its call.
    pub fn injected(&self) -> Vec<(Verb, Fault)> {
        self.state().injected.clone()
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn relay(&self, request: VerbRequest) -> VerbReply {
        let fault = self.state().draw(&request);
        let Some(fault) = fault else { return request.send_to(&*self.inner).await };
        match fault {
            Fault::LoseRequest => request.failed_reply(self.error("the request was lost", Effect::Unknown)),
            Fault::Refuse => request.failed_reply(self.error("the connection was refused", Effect::None)),
            Fault::LoseReply => {
                request.send_to(&*self.inner).await;
                request.failed_reply(self.error("the reply was lost", Effect::Unknown))
            }
            Fault::Duplicate => {
                request.send_to(&*self.inner).await;
                request.send_to(&*self.inner).await
            }
            Fault::Late(by) => {
                let reply = request.failed_reply(self.error("no reply in time", Effect::Unknown));
                self.send_later(request, by);
                reply
            }
            Fault::DelayRequest(by) => {
                self.environment.sleep(by).await;
                request.send_to(&*self.inner).await
            }
            Fault::DelayReply(by) => {
                let reply = request.send_to(&*self.inner).await;
                self.environment.sleep(by).await;
                reply
            }
            Fault::Hang => {
                request.send_to(&*self.inner).await;
                std::future::pending().await
            }
        }
    }

    fn send_later(&self, request: VerbRequest, by: Duration) {
        // The sleep starts now, not when the task first runs.
        let (inner, sleep) = (Arc::clone(&self.inner), self.environment.sleep(by));
        self.environment.spawn(Box::pin(async move {
            sleep.await;
            request.send_to(&*inner).await;
        }));
    }

    fn error(&self, message: &'static str, effect: Effect) -> Error {
        Error::new(ErrorKind::Unavailable, message).with_effect(effect)
    }
}

/// How many of the faults in `draw_from_plan` read-only verbs have.
const FAULTS_OF_READS: usize = 4;

impl FaultState {
    /// The fault of this call, if it has one. It is added to the injected faults.
    fn draw(&mut self, request: &VerbRequest) -> Option<Fault> {
        let verb = request.verb();
        let scripted = self.script.get_mut(&verb).and_then(VecDeque::pop_front);
        let fault = scripted.unwrap_or_else(|| self.draw_from_plan(request))?;
        self.injected.push((verb, fault));
        Some(fault)
    }

    fn draw_from_plan(&mut self, request: &VerbRequest) -> Option<Fault> {
        let plan = self.plan;
        let (delay, late) =
            (self.random.duration_up_to(plan.delay_max), self.random.duration_up_to(plan.late_max));
        // The faults of read-only verbs come first: see `FAULTS_OF_READS`.
        let chances = [
            (plan.lose_request, Fault::LoseRequest),
            (plan.refuse, Fault::Refuse),
            (plan.delay_request, Fault::DelayRequest(delay)),
            (plan.delay_reply, Fault::DelayReply(delay)),
            (plan.lose_reply, Fault::LoseReply),
            (plan.duplicate, Fault::Duplicate),
            (plan.late, Fault::Late(late)),
        ];
        // A lost reply, a second execution and a late execution mean nothing for a verb that changes nothing.
        let count = if request.can_change_state() { chances.len() } else { FAULTS_OF_READS };
        let chances = &chances[..count];
        let mut left = self.random.number() % 1000;
        for &(chance, fault) in chances {
            if left < u64::from(chance) {
                return Some(fault);
            }
            left -= u64::from(chance);
        }
        None
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Faulty")
            .field("plan", &state.plan)
            .field("injected", &state.injected.len())
            .finish_non_exhaustive()
    }
}

relay!(Faulty);
