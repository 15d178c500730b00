//! The Lua scripts in `scripts/`, and how they are called.

use std::sync::LazyLock;

use ::redis::{Arg, Cmd};

/// A script, whose digest is computed when it is first used.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($flags:literal, $($file:literal),+) => {
        concat!("#!lua", $flags, "\n", $(include_str!(concat!("../../scripts/", $file))),+)
    };
}

macro_rules! scripts {
    ($($name:ident: $text:expr;)+) => {
        $(pub(super) static $name: Script =
            Script { text: $text, digest: LazyLock::new(|| ::redis::Script::new($text).get_hash().to_owned()) };)+
    };
}

scripts! {
    SET: text::SET;
    HASH_SET: text::HASH_SET;
    DELETE: text::DELETE;
    ENTER: text::ENTER;
    REBASE: script!("", "rebase.lua");
}

/// The scripts as text, for programs in other languages. `leasehold fence script` prints them.
///
/// Each begins with a comment that lists its keys, its arguments and its replies.
pub mod text {
    // `allow-oom`: a script that frees memory or only raises a mark must also run when the memory is full.

    /// Sets a string.
    pub const SET: &str = script!("", "admit.lua", "set.lua");
    /// Sets fields of a hash: all of them or none.
    pub const HASH_SET: &str = script!("", "admit.lua", "hash_set.lua");
    /// Deletes a key.
    pub const DELETE: &str = script!(" flags=allow-oom", "admit.lua", "delete.lua");
    /// Only raises the mark, before the first read of a read-modify-write.
    pub const ENTER: &str = script!(" flags=allow-oom", "admit.lua", "enter.lua");
}

impl Script {
    /// The SHA-1 of the script, for `EVALSHA`.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// The same call as `EVAL`, with the text of the script. The server knows the script afterwards.
    pub(super) fn eval_instead(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.text);
        // Without `EVALSHA` and the digest.
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}
