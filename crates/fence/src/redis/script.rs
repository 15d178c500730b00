//! The scripts, by name.

use std::sync::LazyLock;

use ::redis::{Arg, Cmd};

/// A script of `scripts/`.
#[derive(Debug)]
pub(super) struct Script(LazyLock<Loaded>);

#[derive(Debug)]
struct Loaded {
    text: String,
    digest: String,
}

macro_rules! scripts {
    ($($name:ident: $flags:literal, $($file:literal),+;)+) => {
        $(pub(super) static $name: Script =
            Script(LazyLock::new(|| load(concat!("#!lua", $flags, "\n", $(include_str!(concat!("../../scripts/", $file))),+))));)+
    };
}

// Whoever gives up room, or only shows a pass, must be able to when memory is full.
scripts! {
    SET: "", "admit.lua", "set.lua";
    HASH_SET: "", "admit.lua", "hash_set.lua";
    DELETE: " flags=allow-oom", "admit.lua", "delete.lua";
    ENTER: " flags=allow-oom", "admit.lua", "enter.lua";
    REBASE: "", "rebase.lua";
}

fn load(text: &str) -> Loaded {
    Loaded { text: text.to_owned(), digest: ::redis::Script::new(text).get_hash().to_owned() }
}

impl Script {
    pub(super) fn digest(&self) -> &str {
        &self.0.digest
    }

    /// The same call with the script itself, which the server then knows.
    pub(super) fn spelled_out(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.0.text);
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}
