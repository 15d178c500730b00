//! Names of resources, listings and limits.

use std::collections::BTreeSet;

use leasehold_core::{
    Claim, Effect, ErrorKind, Holder, Listing, Page, Query, RenewRequest, Resource, Snapshot,
    resource::{ID_MAX, NAME_MAX},
};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, granted, renewed},
    test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(hostile_names_are_ordinary_names),
    test!(similar_names_are_different_resources),
    test!(the_longest_name_is_accepted),
    test!(hostile_holder_texts_are_stored_unchanged),
    test!(an_unused_resource_is_empty),
    test!(a_snapshot_shows_holders_and_waiters),
    test!(inspecting_changes_nothing),
    test!(a_listing_comes_in_pages_in_key_order),
    test!(a_listing_omits_released_and_expired_resources),
    test!(b9_a_note_has_a_limit),
    test!(b9_a_page_has_a_limit),
    test!(b9_a_batch_has_a_limit),
];

const HOSTILE: &[&str] = &[
    "'; DROP TABLE leases; --",
    "\"quoted\"",
    "{tag}",
    "}{",
    "a|b|c",
    "a/b/c",
    "../../etc/passwd",
    "%2F",
    "%",
    "%00",
    "*",
    "?[a-z]",
    "_",
    "\\",
    "~0123456789abcdef0123456789abcdef",
    "naïve",
    "nai\u{308}ve",
    "🦀🦀🦀",
    "مرحبا",
    "\u{202e}reversed",
    " leading and trailing ",
    "UPPER",
    "upper",
    "a:b",
    "$(reboot)",
    "\u{feff}",
    "null",
    "0",
    "-1",
];

fn claim(ctx: &TestContext, resource: Resource) -> Claim {
    let mut claim = ctx.claim("ann");
    claim.resource = resource;
    claim
}

async fn hostile_names_are_ordinary_names(ctx: &TestContext) {
    let mut keys = BTreeSet::new();
    for name in HOSTILE {
        let mut claim = ctx.claim(name);
        claim.resource = ctx.resource(name);
        granted(ctx.acquire(&claim).await);
        keys.insert(claim.resource.key().to_owned());
    }
    assert_eq!(keys.len(), HOSTILE.len(), "each name is a resource of its own");
    for name in HOSTILE {
        let mut other = ctx.claim("bob");
        other.resource = ctx.resource(name);
        blocked(ctx.acquire(&other).await);
    }
    let seen = ctx.list(ctx.prefix(), 0).await;
    let listed: BTreeSet<_> = seen.iter().map(|seen| seen.resource.key().to_owned()).collect();
    assert_eq!(listed, keys, "each is listed by its own name");
}

async fn similar_names_are_different_resources(ctx: &TestContext) {
    let id = ctx.resource.id().into_owned();
    let plain = ctx.resource.clone();
    let near = [
        plain.clone(),
        plain.in_namespace("acme").expect("a namespace"),
        plain.in_namespace("acme2").expect("a namespace"),
        Resource::new("conformance2", &id).expect("a name"),
        Resource::new("conformanc", &id).expect("a name"),
        Resource::new("conformance", &format!("{id}x")).expect("a name"),
        Resource::new("conformance", &id[1..]).expect("a name"),
        Resource::new("conformance", &id.to_uppercase()).expect("a name"),
        Resource::new("conformance", &format!("acme:conformance/{id}")).expect("a name"),
        plain.hashed(b"secret"),
        plain.hashed(b"other secret"),
    ];
    for resource in &near {
        granted(ctx.acquire(&claim(ctx, resource.clone())).await);
    }
    for resource in &near {
        let page = ctx.inspect(&Query::One(resource.clone())).await.into_snapshots();
        assert_eq!((&page[0].resource, page[0].holder_count), (resource, 1));
        let request = leasehold_core::ReleaseRequest::new(claim(ctx, resource.clone()).reference());
        assert_eq!(ctx.send_release(&request).await, leasehold_core::Released::Now);
    }
}

async fn the_longest_name_is_accepted(ctx: &TestContext) {
    let id = format!("{}{}", ctx.resource.id(), "🦀".repeat(ID_MAX));
    let cut = (0..=ID_MAX).rev().find(|at| id.is_char_boundary(*at)).expect("zero is a boundary");
    let longest = Resource::new(&"k".repeat(NAME_MAX), &id[..cut]).expect("a name of the greatest length");
    let longest = longest.in_namespace(&"n".repeat(NAME_MAX)).expect("a namespace of the greatest length");
    granted(ctx.acquire(&claim(ctx, longest.clone())).await);
    let seen = ctx.inspect(&Query::One(longest.clone())).await.into_snapshots();
    assert_eq!((&seen[0].resource, seen[0].holder_count), (&longest, 1));
    let mut other = ctx.claim("bob");
    other.resource = longest;
    blocked(ctx.acquire(&other).await);
}

async fn hostile_holder_texts_are_stored_unchanged(ctx: &TestContext) {
    for (number, label) in HOSTILE.iter().enumerate() {
        let resource = ctx.resource(&format!("held {number}"));
        let mut claim = claim(ctx, resource.clone());
        claim.holder = std::sync::Arc::new(Holder::new("hôst'\"|{}", u32::MAX, label));
        granted(ctx.acquire(&claim).await);
        let seen = ctx.inspect(&Query::One(resource)).await.into_snapshots().remove(0);
        assert_eq!(seen.holders[0].holder, claim.holder);
    }
}

async fn an_unused_resource_is_empty(ctx: &TestContext) {
    let seen = ctx.snapshot().await;
    assert_eq!(seen.resource, ctx.resource);
    assert!(seen.holders.is_empty() && seen.queue.is_empty());
    assert_eq!((seen.holder_count, seen.queue_length, seen.paused_for), (0, 0, None));
}

async fn a_snapshot_shows_holders_and_waiters(ctx: &TestContext) {
    let held = ctx.claim("ann").with_note(*b"note");
    let token = granted(ctx.acquire(&held).await).token;
    let has_queue = ctx.backend().info().capabilities.queue;
    let waiting = ctx.claim("bob").queued();
    if has_queue {
        blocked(ctx.acquire(&waiting).await);
    }
    ctx.target.pass(ctx.short_ttl() / 4).await;
    let seen = ctx.snapshot().await;
    assert_eq!((seen.capacity, seen.holder_count, seen.queue_length), (1, 1, u32::from(has_queue)));
    let by = &seen.holders[0];
    assert_eq!((&by.holder, by.token, by.weight), (&held.holder, token, 1));
    assert_eq!(by.note.as_deref(), Some(b"note".as_slice()));
    assert!(by.held_for >= ctx.short_ttl() / 5 && by.held_for < LONG, "held for {:?}", by.held_for);
    ctx.assert_most_remains(by.remaining);
    assert!(seen.last_token.is_none_or(|last| last == token));
    if has_queue {
        let waiter = &seen.queue[0];
        assert_eq!((&waiter.holder, waiter.weight), (&waiting.holder, 1));
        assert!(waiter.waited >= ctx.short_ttl() / 5 && waiter.waited < LONG, "waited {:?}", waiter.waited);
        ctx.assert_most_remains(waiter.remaining);
    }
}

async fn inspecting_changes_nothing(ctx: &TestContext) {
    let before = granted(ctx.acquire(&ctx.claim("ann")).await);
    for _ in 0..3 {
        ctx.snapshot().await;
        ctx.list(ctx.prefix(), 1).await;
    }
    assert_eq!(renewed(ctx.renew("ann", LONG).await).token, before.token);
    assert_eq!(ctx.snapshot().await.holder_count, 1);
}

async fn a_listing_comes_in_pages_in_key_order(ctx: &TestContext) {
    let mut keys = BTreeSet::new();
    for name in ["b", "a", "e/f", "d {x}", "c", "f", "g"] {
        let resource = ctx.resource(name);
        granted(ctx.acquire(&claim(ctx, resource.clone())).await);
        keys.insert(resource.key().to_owned());
    }
    // A resource outside of the prefix, which must not be listed.
    let outside = Resource::new("other", &ctx.resource.id()).expect("a name");
    granted(ctx.acquire(&claim(ctx, outside)).await);
    for limit in [1, 3, 7, 8, 0] {
        let listed: Vec<_> = ctx.list(ctx.prefix(), limit).await;
        let listed: Vec<_> = listed.iter().map(|seen| seen.resource.key().to_owned()).collect();
        assert_eq!(listed, keys.iter().cloned().collect::<Vec<_>>(), "in pages of {limit}");
    }
    let some: Vec<Snapshot> = ctx.list(ctx.resource("d {x}").key(), 0).await;
    assert_eq!(some.len(), 1, "a prefix is compared literally, not as a pattern");
    assert_eq!((some[0].holder_count, some[0].holders[0].holder.label.as_str()), (1, "ann"));
}

async fn a_listing_omits_released_and_expired_resources(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.release("ann").await;
    assert!(ctx.list(ctx.prefix(), 0).await.is_empty());
    if ctx.backend().info().capabilities.own_ttl {
        granted(ctx.acquire(&ctx.short_claim("ann")).await);
        assert_eq!(ctx.list(ctx.prefix(), 0).await.len(), 1);
        ctx.target.let_expire(ctx.short_ttl()).await;
        assert!(ctx.list(ctx.prefix(), 0).await.is_empty());
    }
}

async fn b9_a_note_has_a_limit(ctx: &TestContext) {
    let limit = ctx.backend().info().limits.note;
    granted(ctx.acquire(&ctx.claim("ann").with_note(vec![7; limit])).await);
    assert_eq!(ctx.snapshot().await.holders[0].note.as_ref().map(|note| note.len()), Some(limit));
    let renewal = RenewRequest::new(ctx.reference("ann"), LONG).with_note(vec![8; limit + 1]);
    let error = ctx.backend().renew(&[renewal]).await.remove(0).expect_err("the note is too long");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None));
    assert_eq!(ctx.snapshot().await.holders[0].note.as_deref(), Some(vec![7; limit].as_slice()));
    ctx.release("ann").await;
    let error = ctx.try_acquire(&ctx.claim("bob").with_note(vec![8; limit + 1])).await;
    let error = error.expect_err("the note is too long");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None));
    assert_eq!(ctx.snapshot().await.holder_count, 0);
}

async fn b9_a_page_has_a_limit(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let most = ctx.backend().info().limits.page;
    for limit in [0, most, u32::MAX] {
        let query = Query::Resources(Listing::of("").limit(limit));
        let Page::Resources { snapshots, .. } = ctx.inspect(&query).await else {
            panic!("the query is for resources")
        };
        assert!(!snapshots.is_empty() && snapshots.len() <= most as usize);
    }
}

async fn b9_a_batch_has_a_limit(ctx: &TestContext) {
    let limit = ctx.backend().info().limits.batch;
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let held = RenewRequest::new(ctx.reference("ann"), LONG);
    if limit <= 10_000 {
        let answers = ctx.backend().renew(&vec![held.clone(); limit]).await;
        assert_eq!(answers.len(), limit);
        answers.into_iter().for_each(|answer| drop(renewed(answer.expect("a full batch is answered"))));
        // A batch above the limit is a mistake of the caller: the backend refuses all of it, or executes it.
        let answers = ctx.backend().renew(&vec![held; limit + 1]).await;
        assert_eq!(answers.len(), limit + 1);
        for answer in answers {
            match answer {
                Ok(answer) => drop(renewed(answer)),
                Err(error) => assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None)),
            }
        }
    }
}
