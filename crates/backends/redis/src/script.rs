//! The scripts, by name: their source, their digest, and how they are called.

use std::sync::LazyLock;

use redis::Cmd;

/// A script of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    source: String,
    digest: String,
}

macro_rules! end_of_script {
    () => {
        "../scripts/request_id.lua"
    };
    ($end:literal) => {
        $end
    };
}

macro_rules! scripts {
    ($($name:ident: $flags:literal, [$($outside:literal)?], $($file:literal),* $(=> $end:literal)?;)+) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(
                "#!lua", $flags, "\n", $(include_str!($outside),)?
                "local function reply()\n", $(include_str!($file),)* "end\n",
                include_str!(end_of_script!($($end)?)),
            )));)+
        /// Every script.
        #[cfg(test)]
        pub(crate) fn all() -> Vec<(&'static str, &'static Script)> {
            vec![$((stringify!($name), &*$name)),+]
        }
    };
}

// Every script returns the id of the request, its last argument, after the fields of its reply
// (`request_id.rs`). The files of a script are the body of a function, and `request_id.lua` adds the id to
// the result of that function, so that no `return` can forget it. The file in brackets is outside of that function; the
// file after `=>` takes the place of `request_id.lua`.
//
// `allow-oom`: when the memory of the server is full, holders can still renew and release. `acquire` is
// refused then, before it has done anything.
scripts! {
    ACQUIRE_PLAIN: "", ["../scripts/plain_reads.lua"], "../scripts/acquire_plain.lua";
    ACQUIRE_PLAIN_MANY: "", ["../scripts/plain_reads.lua"], "../scripts/acquire_plain.lua" => "../scripts/each_claim.lua";
    HANDOVER_PLAIN: "", [], "../scripts/handover_plain.lua";
    ACQUIRE: "", ["../scripts/resource_variables.lua"], "../scripts/resource.lua", "../scripts/acquire.lua";
    RENEW: " flags=allow-oom", [], "../scripts/renew.lua";
    RENEW_ONE: " flags=allow-oom", ["../scripts/resource_variables.lua"], "../scripts/resource.lua", "../scripts/renew_one.lua";
    RELEASE_PLAIN: " flags=allow-oom", [], "../scripts/release_plain.lua";
    RELEASE_PLAIN_MANY: " flags=allow-oom", [], "../scripts/release_plain_many.lua";
    RELEASE: " flags=allow-oom", ["../scripts/resource_variables.lua"], "../scripts/resource.lua", "../scripts/release.lua";
    WATCH: " flags=allow-oom", ["../scripts/resource_variables.lua"], "../scripts/resource.lua", "../scripts/watch.lua";
    ORDER: " flags=allow-oom", ["../scripts/resource_variables.lua"], "../scripts/resource.lua", "../scripts/order.lua";
    SLOT_MIGRATION_ACQUIRE: "", [], "../scripts/slot_migration_acquire.lua";
    SLOT_MIGRATION_FENCE: " flags=allow-oom", [], "../scripts/slot_migration_fence.lua";
    SLOT_MIGRATION_RENEW: " flags=allow-oom", [], "../scripts/slot_migration_renew.lua";
    SLOT_MIGRATION_RELEASE: " flags=allow-oom", [], "../scripts/slot_migration_release.lua";
    INSPECT: " flags=no-writes", ["../scripts/resource_variables.lua"], "../scripts/resource.lua", "../scripts/inspect.lua";
    INSPECT_PLAIN: " flags=no-writes", [], "../scripts/inspect_plain.lua";
    NODE_VOTE: "", [], "../scripts/node_vote.lua";
    NODE_UNDO: " flags=allow-oom", [], "../scripts/node_undo.lua";
    NODE_RENEW: " flags=allow-oom", [], "../scripts/node.lua", "../scripts/node_renew.lua";
    NODE_LOOK: " flags=no-writes", [], "../scripts/node.lua", "../scripts/node_look.lua";
    NODE_MARK: " flags=allow-oom", [], "../scripts/node_mark.lua";
    NODE_RAISE: " flags=allow-oom", [], "../scripts/node_raise.lua";
}

impl Script {
    fn new(source: &str) -> Script {
        Script { source: source.to_owned(), digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// A call by digest. The keys and the arguments follow.
    pub(crate) fn call(&self, key_count: usize) -> Cmd {
        // Room for 20 arguments and for keys of 72 bytes: enough for most calls, and still a small
        // allocation.
        let mut command = Cmd::with_capacity(20 + key_count, 72 * (3 + key_count));
        command.arg("EVALSHA").arg(&self.digest).arg(key_count);
        command
    }

    /// The Redis commands that a line of the script calls. Lines count from 1.
    pub(crate) fn commands_in(&self, line: usize) -> Option<String> {
        let line = self.source.lines().nth(line.checked_sub(1)?)?;
        let calls = line.split("call('").skip(1).filter_map(|rest| Some(rest.split_once('\'')?.0));
        let names: Vec<&str> = calls.collect();
        (!names.is_empty()).then(|| names.join(" or "))
    }

    /// The same call with the source of the script instead of its digest. After it the server knows the
    /// digest.
    pub(crate) fn with_source(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.source);
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
    fn a_call_can_be_made_with_the_source() {
        let mut call = RENEW.call(1);
        call.arg("key").arg("owner").arg(7);
        let with_source = RENEW.with_source(&call);
        let arguments: Vec<_> = with_source.args_iter().collect();
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

    /// The documented permissions let a user run every script, and no script needs fewer.
    #[test]
    fn the_documented_permissions_are_those_that_scripts_need() {
        let document = include_str!("../../../../docs/backends/redis.md");
        let acl = document.split("ACL SETUSER app").nth(1).unwrap().split("```").next().unwrap();
        let mut documented: Vec<&str> =
            acl.split_whitespace().filter_map(|word| word.strip_prefix('+')).collect();
        let outside_scripts =
            ["evalsha", "eval", "subscribe", "ping", "scan", "object|idletime", "xrevrange", "role", "info"];
        documented.retain(|command| !outside_scripts.contains(command));
        documented.sort_unstable();
        let mut used: Vec<String> = all()
            .iter()
            .flat_map(|(_, script)| script.source.split("call('").skip(1))
            .map(|rest| rest.split('\'').next().unwrap().to_lowercase())
            .collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(documented, used);
    }

    #[test]
    fn the_constants_of_votes_are_those_of_core() {
        use leasehold_core::quorum_node::{RETENTION, SKEW_MAX};
        let constants =
            format!("SKEW_MAX_US, RETENTION_MS = {}, {}", SKEW_MAX.as_micros(), RETENTION.as_millis());
        assert!(NODE_VOTE.source.contains(&constants), "{constants}");
    }

    #[test]
    fn the_constants_of_the_queue_are_those_of_core() {
        use leasehold_core::admission::{ANSWER_WITHIN, HANDOVERS_MAX, SAME_CLIENT_WINDOW, WINDOW};
        let silenced = format!("{SAME_CLIENT_WINDOW}, {}", ANSWER_WITHIN.as_micros());
        for constants in [
            format!("local WINDOW, SWEEP, SLACK, TEN_YEARS = {WINDOW}, "),
            format!("local SILENT, SILENCED_MAX, ANSWER_WITHIN = 4503599627370496, {silenced}\n"),
            format!("local HANDOVERS_MAX = {HANDOVERS_MAX}\n"),
        ] {
            assert!(ACQUIRE.source.contains(&constants), "{constants}");
        }
    }

    #[test]
    fn every_script_documents_its_keys_arguments_and_reply() {
        for (name, script) in all() {
            for word in ["-- KEYS", "-- ARGV", "-- Reply"] {
                assert!(script.source.contains(word), "{name} has no {word}");
            }
        }
    }
}
