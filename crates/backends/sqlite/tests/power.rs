//! The plug is pulled: what was not yet on the disk is gone, and no token comes back.
//!
//! The database is on a file system in an image file; a copy of that image, taken while it is mounted, holds what a
//! power cut at that moment would have left.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::path::Path;

use common::{Mounted, check_file, claim, granted, is_privileged, open, resource, shell};
use leasehold_core::{Backend, FencingToken, Query, ReleaseRequest, Verdict};
use leasehold_sqlite::{Config, Durability, Sqlite};

struct Cut {
    /// The last token that was answered before the plug was pulled.
    answered: FencingToken,
    /// The last token that the file remembers afterwards.
    remembered: Option<FencingToken>,
    /// The first one after that.
    next: FencingToken,
}

/// Some leases that are surely on the disk, some more, and a power cut.
async fn pull_the_plug(directory: &Path, durability: Durability) -> Cut {
    let at = |name: &str| directory.join(name).display().to_string();
    shell(&format!("truncate -s 64M '{0}' && mkfs.ext4 -qF '{0}'", at("disk.img")));
    let disk = Mounted::new(&directory.join("disk"), &format!("-o loop '{}'", at("disk.img")));
    let file = disk.0.join("leases.db");
    let backend = open(Config::new(&file).durability(durability).pretend_boot("before"));
    turns(&backend, 3).await;
    shell(&format!("sync -f '{}'", disk.0.display()));
    turns(&backend, 5).await;
    let answered = granted(&backend, &claim("x")).await.token;
    shell(&format!("cp --sparse=always '{}' '{}'", at("disk.img"), at("after.img")));
    drop(backend);

    let after = Mounted::new(&directory.join("after"), &format!("-o loop '{}'", at("after.img")));
    let file = after.0.join("leases.db");
    let backend = open(Config::new(&file).durability(durability).pretend_boot("after"));
    check_file(&file);
    let seen = backend.inspect(&Query::One(resource("x"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 0, "every lease is over");
    let next = granted(&backend, &claim("x")).await.token;
    assert!(matches!(backend.acquire(&claim("x")).await.unwrap(), Verdict::Blocked(_)));
    drop(backend);
    Cut { answered, remembered: seen.last_token, next }
}

/// Takes and gives back so many times.
async fn turns(backend: &Sqlite, count: usize) -> FencingToken {
    let mut tokens = Vec::new();
    for _ in 0..count {
        let claim = claim("x");
        tokens.push(granted(backend, &claim).await.token);
        backend.release(&ReleaseRequest::new(claim.reference())).await.unwrap();
    }
    assert!(tokens.is_sorted());
    tokens.pop().unwrap()
}

#[tokio::test]
async fn a_power_cut_takes_commits_but_no_token_comes_back() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cut = pull_the_plug(directory.path(), Durability::Normal).await;
    assert!(cut.remembered < Some(cut.answered), "this test proves nothing if nothing was lost");
    assert!(cut.next > cut.answered, "{:?} after {:?}", cut.next, cut.answered);
}

#[tokio::test]
async fn with_full_durability_a_power_cut_takes_nothing() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cut = pull_the_plug(directory.path(), Durability::Full).await;
    assert_eq!(cut.remembered, Some(cut.answered));
    assert!(cut.next > cut.answered);
}
