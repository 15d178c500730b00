//! Measures leasehold beside the lock libraries that people would choose instead: `cargo xtask bench peers`; and its clients of other
//! languages beside such libraries: `cargo xtask bench clients`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`works`] | what is measured: the works, on which store, with which locks |
//! | [`peers`] | the locks, and how each is built and started |
//! | [`worker`] | a process of a peer, driven by the protocol of `bench/peers/README.md` |
//! | [`stores`] | the servers, and what they spend |
//! | [`serving`] | `leasehold serve`, for the clients |
//! | [`run`] | interleaved repetitions of one work |
//! | [`clients`] | the clients of other languages, and their table |
//! | [`shell`] | commands under a lock, from a shell |
//! | [`grants`] | changes of holder and the spread, from the grants of all processes |
//! | [`results`] | `bench/results/latest.json` |
//! | [`targets`] | what leasehold wants to reach |
//! | [`figures`] | medians, ratios, and numbers as text |
//! | [`page`] | `docs/benchmarks.md` |
//! | [`chart`] | the charts of that page |
//! | [`machine`] | the facts of this machine |

pub mod chart;
pub mod clients;
pub mod figures;
pub mod grants;
pub mod machine;
pub mod page;
pub mod peers;
pub mod results;
pub mod run;
pub mod serving;
pub mod shell;
pub mod stores;
pub mod targets;
pub mod worker;
pub mod works;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("bench is a folder of the repository").to_owned()
}

/// The folder for everything that is built and downloaded.
pub fn build_folder() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    named.map_or_else(|| root().join("target"), |folder| root().join(folder)).join("peers")
}
