//! The Lua scripts in `scripts/`, and how they are called.

use std::sync::LazyLock;

use ::redis::{Arg, Cmd};

/// A script, made when it is first used.
#[derive(Debug)]
pub(super) struct Script(LazyLock<ScriptText>);

#[derive(Debug)]
struct ScriptText {
    text: String,
    digest: String,
}

macro_rules! scripts {
    ($($name:ident: $flags:literal, $($file:literal),+;)+) => {
        $(pub(super) static $name: Script =
            Script(LazyLock::new(|| load(concat!("#!lua", $flags, "\n", $(include_str!(concat!("../../scripts/", $file))),+))));)+
    };
}

// `allow-oom`: a script that frees memory or only raises a mark must also run when the memory is full.
scripts! {
    SET: "", "admit.lua", "set.lua";
    HASH_SET: "", "admit.lua", "hash_set.lua";
    DELETE: " flags=allow-oom", "admit.lua", "delete.lua";
    ENTER: " flags=allow-oom", "admit.lua", "enter.lua";
    REBASE: "", "rebase.lua";
}

fn load(text: &str) -> ScriptText {
    ScriptText { text: text.to_owned(), digest: ::redis::Script::new(text).get_hash().to_owned() }
}

impl Script {
    /// The SHA-1 of the script, for `EVALSHA`.
    pub(super) fn digest(&self) -> &str {
        &self.0.digest
    }

    /// The same call as `EVAL`, with the text of the script. The server knows the script afterwards.
    pub(super) fn eval_instead(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.0.text);
        // Without `EVALSHA` and the digest.
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}
