//! A network that loses, delays, repeats and reorders.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Backend, Effect, Environment, Error, ErrorKind, Verb};

use crate::verbs::{Answer, Ask, relay};

/// One thing that goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost; nobody can know: `Unavailable`, effect `Unknown`.
    LoseRequest,
    /// The request certainly did not go out: `Unavailable`, effect `None`.
    Refuse,
    /// The request is executed, its answer is lost: `Unavailable`, effect `Unknown`.
    LoseReply,
    /// The request is executed twice, back to back; the caller gets the second answer.
    Duplicate,
    /// The caller is told `Unavailable`, effect `Unknown`, at once; the request is executed this much later.
    Late(Duration),
    /// The request travels this long before it is executed. A caller who leaves meanwhile takes it along.
    DelayRequest(Duration),
    /// The request is executed at once, its answer travels this long.
    DelayReply(Duration),
    /// The request is executed, and the caller never hears of it, however long it waits.
    Hang,
}

/// How often each fault strikes, per thousand calls, and how long delays are.
///
/// Delays of different calls differ, so calls that run side by side are reordered. `wait` and `inspect` change
/// nothing: they are lost, refused or delayed like the others, but never late or doubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Plan {
    /// Of [`Fault::LoseRequest`].
    pub lose_request: u32,
    /// Of [`Fault::Refuse`].
    pub refuse: u32,
    /// Of [`Fault::LoseReply`].
    pub lose_reply: u32,
    /// Of [`Fault::Duplicate`].
    pub duplicate: u32,
    /// Of [`Fault::Late`].
    pub late: u32,
    /// Of [`Fault::DelayRequest`].
    pub delay_request: u32,
    /// Of [`Fault::DelayReply`].
    pub delay_reply: u32,
    /// The longest delay; each is drawn from zero to this.
    pub delay_max: Duration,
    /// The longest that a late request stays under way.
    pub late_max: Duration,
}

impl Plan {
    /// Nothing goes wrong.
    pub const QUIET: Plan = Plan {
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

    /// Everything goes wrong now and then: about a third of the calls suffer something.
    pub const STORMY: Plan = Plan {
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

/// A backend behind a network that fails as planned.
///
/// Two uses: chance, seeded, by a [`Plan`] that can be changed at run time; and a script, call by call
/// ([`Faulty::next`]: "the next acquire loses its reply"), which goes before chance.
pub struct Faulty {
    inner: Arc<dyn Backend>,
    environment: Arc<dyn Environment>,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    random: u64,
    script: HashMap<Verb, VecDeque<Option<Fault>>>,
    struck: Vec<(Verb, Fault)>,
}

impl Faulty {
    /// Nothing goes wrong until a plan or a script says so. Sleeps and late requests run in the environment;
    /// what goes wrong is drawn from the seed alone.
    pub fn new(inner: Arc<dyn Backend>, environment: Arc<dyn Environment>, seed: u64) -> Faulty {
        let state = State { plan: Plan::QUIET, random: seed, script: HashMap::new(), struck: Vec::new() };
        Faulty { inner, environment, state: Mutex::new(state) }
    }

    /// Starts with this plan.
    #[must_use]
    pub fn with_plan(self, plan: Plan) -> Faulty {
        self.plan(plan);
        self
    }

    /// From now on by this plan; [`Plan::QUIET`] switches chance off. Late requests under way still arrive.
    pub fn plan(&self, plan: Plan) {
        self.state().plan = plan;
    }

    /// The next call of this verb that is not spoken for suffers this.
    pub fn next(&self, verb: Verb, fault: Fault) {
        self.state().script.entry(verb).or_default().push_back(Some(fault));
    }

    /// The next call of this verb that is not spoken for goes through, whatever the plan.
    pub fn spare(&self, verb: Verb) {
        self.state().script.entry(verb).or_default().push_back(None);
    }

    /// What went wrong so far.
    pub fn struck(&self) -> Vec<(Verb, Fault)> {
        self.state().struck.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn relay(&self, ask: Ask) -> Answer {
        let fault = self.state().draw(&ask);
        let Some(fault) = fault else { return ask.of(&*self.inner).await };
        match fault {
            Fault::LoseRequest => ask.failing(self.error("the request was lost", Effect::Unknown)),
            Fault::Refuse => ask.failing(self.error("the connection was refused", Effect::None)),
            Fault::LoseReply => {
                ask.of(&*self.inner).await;
                ask.failing(self.error("the reply was lost", Effect::Unknown))
            }
            Fault::Duplicate => {
                ask.of(&*self.inner).await;
                ask.of(&*self.inner).await
            }
            Fault::Late(by) => {
                let answer = ask.failing(self.error("no reply in time", Effect::Unknown));
                self.send_later(ask, by);
                answer
            }
            Fault::DelayRequest(by) => {
                self.environment.sleep(by).await;
                ask.of(&*self.inner).await
            }
            Fault::DelayReply(by) => {
                let answer = ask.of(&*self.inner).await;
                self.environment.sleep(by).await;
                answer
            }
            Fault::Hang => {
                ask.of(&*self.inner).await;
                std::future::pending().await
            }
        }
    }

    fn send_later(&self, ask: Ask, by: Duration) {
        let (inner, sleep) = (Arc::clone(&self.inner), self.environment.sleep(by));
        self.environment.spawn(Box::pin(async move {
            sleep.await;
            ask.of(&*inner).await;
        }));
    }

    fn error(&self, message: &'static str, effect: Effect) -> Error {
        Error::new(ErrorKind::Unavailable, message).with_effect(effect)
    }
}

impl State {
    /// What goes wrong with this call, and a note of it.
    fn draw(&mut self, ask: &Ask) -> Option<Fault> {
        let verb = ask.verb();
        let scripted = self.script.get_mut(&verb).and_then(VecDeque::pop_front);
        let fault = scripted.unwrap_or_else(|| self.by_chance(ask))?;
        self.struck.push((verb, fault));
        Some(fault)
    }

    fn by_chance(&mut self, ask: &Ask) -> Option<Fault> {
        let plan = self.plan;
        let (delay, late) = (self.up_to(plan.delay_max), self.up_to(plan.late_max));
        let chances = [
            (plan.lose_request, Fault::LoseRequest),
            (plan.refuse, Fault::Refuse),
            (plan.delay_request, Fault::DelayRequest(delay)),
            (plan.delay_reply, Fault::DelayReply(delay)),
            (plan.lose_reply, Fault::LoseReply),
            (plan.duplicate, Fault::Duplicate),
            (plan.late, Fault::Late(late)),
        ];
        let chances = if ask.has_effect() { &chances[..] } else { &chances[..4] };
        let mut left = self.number() % 1000;
        for &(chance, fault) in chances {
            if left < u64::from(chance) {
                return Some(fault);
            }
            left -= u64::from(chance);
        }
        None
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos(self.number() % (nanos + 1))
    }

    /// splitmix64: small, and the same on every machine.
    fn number(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Faulty")
            .field("plan", &state.plan)
            .field("struck", &state.struck.len())
            .finish_non_exhaustive()
    }
}

relay!(Faulty);
