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
    ($($name:ident: $flags:literal, $file:literal;)+) => {
        $(pub(super) static $name: Script = Script(LazyLock::new(|| load($flags, include_str!($file))));)+
    };
}

// Whoever gives up room, or only shows a pass, must be able to when memory is full.
scripts! {
    SET: "", "../../scripts/set.lua";
    HASH_SET: "", "../../scripts/hash_set.lua";
    DELETE: " flags=allow-oom", "../../scripts/delete.lua";
    ENTER: " flags=allow-oom", "../../scripts/enter.lua";
}

fn load(flags: &str, effect: &str) -> Loaded {
    let text = format!("#!lua{flags}\n{}{effect}", include_str!("../../scripts/admit.lua"));
    let digest = ::redis::Script::new(&text).get_hash().to_owned();
    Loaded { text, digest }
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
