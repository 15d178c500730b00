//! The stories. Each shows one thing that every client must do.

mod access;
mod faults;
mod holding;
mod loss;
mod process;
mod sharing;
mod waiting;

use std::{future::Future, pin::Pin, time::Duration};

use crate::world::{Needs, World};

/// A ttl that no story outlives.
const LONG: Duration = Duration::from_secs(30);
/// A ttl that a story waits for. A sixth of it, the time between being told to stop and the end, is more than a second: a
/// loaded machine may stop a process for so long.
const SHORT: Duration = Duration::from_secs(8);

type Told = Pin<Box<dyn Future<Output = ()>>>;

/// A story.
#[derive(Clone, Copy)]
pub(crate) struct Story {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    /// What the driver must be able to do.
    pub(crate) ability: Option<&'static str>,
    pub(crate) tell: fn(World) -> Told,
}

/// `story(module::function)`, with what it needs.
macro_rules! story {
    ($module:ident :: $name:ident $(, $need:ident)* $(; $ability:literal)?) => {
        Story {
            name: stringify!($name),
            needs: Needs { $($need: true,)* ..Needs { proxy: false, redis: false, tokens: false, clock: false } },
            ability: [$($ability,)?].first().copied(),
            tell: |world| Box::pin($module::$name(world)),
        }
    };
}

macro_rules! stories {
    ($($story:expr),* $(,)?) => { &[$($story),*] };
}

pub(crate) const STORIES: &[Story] = stories![
    story!(holding::granted),
    story!(holding::busy),
    story!(holding::renewed_past_its_ttl),
    story!(holding::many_are_renewed_together),
    story!(holding::several_at_once),
    story!(holding::several_or_none),
    story!(holding::an_error_of_the_body_comes_out),
    story!(waiting::waits_its_turn),
    story!(waiting::waits_longer_than_one_request),
    story!(waiting::time_to_wait_is_over),
    story!(waiting::cancelled_while_waiting),
    story!(loss::told_when_cut_off, proxy),
    story!(loss::told_once_of_several, proxy),
    story!(loss::told_when_evicted, tokens),
    story!(loss::told_when_answers_are_lost, proxy),
    story!(loss::the_body_is_stopped, proxy),
    story!(loss::leaving_is_quick_when_cut_off, proxy),
    story!(process::stopped_past_its_ttl),
    story!(process::a_forked_child_holds_nothing; "fork"),
    story!(process::the_event_loop_is_blocked; "block"),
    story!(process::the_wall_clock_jumps, clock, proxy; "wall_clock"),
    story!(faults::the_server_is_replaced, redis),
    story!(faults::the_server_is_away_for_a_while, redis),
    story!(faults::a_waiter_outlives_its_server, redis),
    story!(faults::the_server_drains, redis),
    story!(faults::connections_are_cut, proxy),
    story!(faults::the_answer_to_a_claim_is_lost, proxy),
    story!(faults::the_server_is_gone_after_the_claim, proxy),
    story!(faults::the_answer_is_of_another_claim, proxy),
    story!(faults::another_store_answers),
    story!(access::a_wrong_token_is_denied, tokens),
    story!(access::a_wrong_name_is_invalid),
    story!(access::operators_list_and_order, tokens),
    story!(sharing::semaphore),
    story!(sharing::another_capacity_is_invalid),
    story!(sharing::readers_and_a_writer),
    story!(sharing::election_with_an_observer),
];
