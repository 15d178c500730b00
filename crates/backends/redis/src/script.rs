//! The scripts, by name: their text, their digest, and how they are called.

use std::sync::LazyLock;

use redis::Cmd;

/// A script of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    digest: String,
}

macro_rules! scripts {
    ($($name:ident: $flags:literal, [$($plain:literal)?], $($file:literal),*;)+) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(
                "#!lua", $flags, "\n", $(include_str!($plain),)?
                "local function reply()\n", $(include_str!($file),)* "end\n",
                include_str!("../scripts/named.lua"),
            )));)+
        /// Every script.
        #[cfg(test)]
        pub(crate) fn all() -> Vec<(&'static str, &'static Script)> {
            vec![$((stringify!($name), &*$name)),+]
        }
    };
}

// Every script returns the id of the request, its last argument, after the fields of its reply: see `proof`. The files of a
// script are the body of a function, and `named.lua` adds the id to what it returns, so that no way out is forgotten. The
// file in brackets comes before that and adds the id itself: making the function costs a plain call a tenth of its time.
//
// Whoever has something must be able to keep it and to give it back when memory is full: `allow-oom`. An acquire is
// refused then, before it has done anything.
scripts! {
    ACQUIRE: "", ["../scripts/acquire_plain.lua"], "../scripts/resource.lua", "../scripts/acquire.lua";
    RENEW: " flags=allow-oom", [], "../scripts/renew.lua";
    RENEW_ONE: " flags=allow-oom", [], "../scripts/resource.lua", "../scripts/renew_one.lua";
    RELEASE: " flags=allow-oom", ["../scripts/release_plain.lua"], "../scripts/resource.lua", "../scripts/release.lua";
    WATCH: " flags=allow-oom", [], "../scripts/resource.lua", "../scripts/watch.lua";
    ORDER: " flags=allow-oom", [], "../scripts/resource.lua", "../scripts/order.lua";
    MOVING_ACQUIRE: "", [], "../scripts/moving_acquire.lua";
    MOVING_FENCE: " flags=allow-oom", [], "../scripts/moving_fence.lua";
    MOVING_RENEW: " flags=allow-oom", [], "../scripts/moving_renew.lua";
    MOVING_RELEASE: " flags=allow-oom", [], "../scripts/moving_release.lua";
    INSPECT: " flags=no-writes", [], "../scripts/resource.lua", "../scripts/inspect.lua";
    NODE_VOTE: "", [], "../scripts/node.lua", "../scripts/node_vote.lua";
    NODE_UNDO: " flags=allow-oom", [], "../scripts/node.lua", "../scripts/node_undo.lua";
    NODE_RENEW: " flags=allow-oom", [], "../scripts/node.lua", "../scripts/node_renew.lua";
    NODE_LOOK: " flags=no-writes", [], "../scripts/node.lua", "../scripts/node_look.lua";
    NODE_MARK: " flags=allow-oom", [], "../scripts/node_mark.lua";
    NODE_RAISE: " flags=allow-oom", [], "../scripts/node_raise.lua";
}

impl Script {
    fn new(text: &str) -> Script {
        Script { text: text.to_owned(), digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// A call by digest; the keys and the arguments follow.
    pub(crate) fn call(&self, keys: usize) -> Cmd {
        // Enough for most names, and small enough that the allocator has such a piece at hand.
        let mut command = Cmd::with_capacity(20 + keys, 72 * (3 + keys));
        command.arg("EVALSHA").arg(&self.digest).arg(keys);
        command
    }

    /// The commands that a line of the script calls, counted from 1.
    pub(crate) fn commands_in(&self, line: usize) -> Option<String> {
        let line = self.text.lines().nth(line.checked_sub(1)?)?;
        let calls = line.split("call('").skip(1).filter_map(|rest| Some(rest.split_once('\'')?.0));
        let names: Vec<&str> = calls.collect();
        (!names.is_empty()).then(|| names.join(" or "))
    }

    /// The same call with the script itself, which the server then knows. For when it has forgotten.
    pub(crate) fn spelled_out(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.text);
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_can_be_spelled_out() {
        let mut call = RENEW.call(1);
        call.arg("key").arg("owner").arg(7);
        let spelled = RENEW.spelled_out(&call);
        let arguments: Vec<_> = spelled.args_iter().collect();
        let simple = |index: usize| match arguments[index] {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("no cursor here"),
        };
        assert_eq!(simple(0), b"EVAL");
        assert!(simple(1).starts_with(b"#!lua flags=allow-oom\n"));
        assert_eq!([simple(2), simple(3), simple(4), simple(5)].concat(), b"1keyowner7");
    }

    #[test]
    fn the_commands_of_a_line_are_found() {
        let script =
            Script::new("#!lua\nlocal now = 1\nif redis.call('EXISTS', a) then redis.pcall('DEL', a) end");
        assert_eq!(script.commands_in(3).as_deref(), Some("EXISTS or DEL"));
        assert_eq!([0, 2, 4].map(|line| script.commands_in(line)), [None, None, None]);
    }

    /// A user who may run these may run every script; and no script needs more.
    #[test]
    fn the_documented_permissions_are_those_that_scripts_need() {
        let document = include_str!("../../../../docs/backends/redis.md");
        let acl = document.split("ACL SETUSER app").nth(1).unwrap().split("```").next().unwrap();
        let mut documented: Vec<&str> =
            acl.split_whitespace().filter_map(|word| word.strip_prefix('+')).collect();
        let around = [
            "evalsha",
            "eval",
            "subscribe",
            "ping",
            "scan",
            "type",
            "object|idletime",
            "xrevrange",
            "role",
            "info",
        ];
        documented.retain(|command| !around.contains(command));
        documented.sort_unstable();
        let mut used: Vec<String> = all()
            .iter()
            .flat_map(|(_, script)| script.text.split("call('").skip(1))
            .map(|rest| rest.split('\'').next().unwrap().to_lowercase())
            .collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(documented, used);
    }

    #[test]
    fn every_script_says_what_it_takes_and_answers() {
        for (name, script) in all() {
            for word in ["-- KEYS", "-- ARGV", "-- Reply"] {
                assert!(script.text.contains(word), "{name} has no {word}");
            }
        }
    }
}
