//! Power cuts: commits that were not on the disk are lost, and no token is given out twice.
//!
//! The database is on a file system in an image file; a copy of that image, taken while it is mounted, holds
//! what a power cut at that moment would have left.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::path::Path;

use common::{Mounted, check_file, claim, granted, is_privileged, open, resource, shell};
use leasehold_core::{Backend, BackendExt as _, FencingToken, Query, ReleaseRequest, Verdict};
use leasehold_sqlite::{Config, Durability, Sqlite};

struct PowerCut {
    /// The last token that a caller got before the power cut.
    last_granted: FencingToken,
    /// The last token that is in the file afterwards.
    last_stored: Option<FencingToken>,
    /// The first token that is given out after the power cut.
    next: FencingToken,
}

/// Takes some leases, syncs the disk, takes some more, and cuts the power.
async fn cut_power(directory: &Path, durability: Durability) -> PowerCut {
    let at = |name: &str| directory.join(name).display().to_string();
    shell(&format!("truncate -s 64M '{0}' && mkfs.ext4 -qF '{0}'", at("disk.img")));
    let disk = Mounted::new(&directory.join("disk"), &format!("-o loop '{}'", at("disk.img")));
    let file = disk.0.join("leases.db");
    let backend = open(Config::new(&file).durability(durability).pretend_boot("before"));
    acquire_and_release(&backend, 3).await;
    shell(&format!("sync -f '{}'", disk.0.display()));
    acquire_and_release(&backend, 5).await;
    let last_granted = granted(&backend, &claim("x")).await.token;
    shell(&format!("cp --sparse=always '{}' '{}'", at("disk.img"), at("after.img")));
    drop(backend);

    let after = Mounted::new(&directory.join("after"), &format!("-o loop '{}'", at("after.img")));
    let file = after.0.join("leases.db");
    let backend = open(Config::new(&file).durability(durability).pretend_boot("after"));
    check_file(&file);
    let seen = backend.inspect(&Query::One(resource("x"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 0, "a reboot ends every lease");
    let next = granted(&backend, &claim("x")).await.token;
    assert!(matches!(backend.acquire_one(&claim("x")).await.unwrap(), Verdict::Blocked(_)));
    drop(backend);
    PowerCut { last_granted, last_stored: seen.last_token, next }
}

/// Acquires and releases so many times.
async fn acquire_and_release(backend: &Sqlite, count: usize) -> FencingToken {
    let mut tokens = Vec::new();
    for _ in 0..count {
        let claim = claim("x");
        tokens.push(granted(backend, &claim).await.token);
        backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
    }
    assert!(tokens.is_sorted());
    tokens.pop().unwrap()
}

#[tokio::test]
async fn a_power_cut_takes_commits_but_no_token_is_given_out_twice() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cut = cut_power(directory.path(), Durability::Normal).await;
    assert!(cut.last_stored < Some(cut.last_granted), "nothing was lost, so this test proves nothing");
    assert!(cut.next > cut.last_granted, "{:?} after {:?}", cut.next, cut.last_granted);
}

#[tokio::test]
async fn with_full_durability_a_power_cut_takes_nothing() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let cut = cut_power(directory.path(), Durability::Full).await;
    assert_eq!(cut.last_stored, Some(cut.last_granted));
    assert!(cut.next > cut.last_granted);
}
