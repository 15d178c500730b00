//! Names, listings and limits.

use std::collections::BTreeSet;

use leasehold_core::{
    Claim, Effect, ErrorKind, Holder, Listing, Page, Query, RenewRequest, Resource, Snapshot,
    resource::{ID_MAX, NAME_MAX},
};

use super::{
    Test,
    desk::{Desk, LONG, blocked, granted, kept},
    test,
};

pub(super) const TESTS: &[Test] = &[
    test!(hostile_names_are_just_names),
    test!(near_names_are_different_resources),
    test!(the_longest_name_will_do),
    test!(hostile_holders_are_just_text),
    test!(what_nobody_uses_is_empty),
    test!(a_resource_is_seen_whole),
    test!(looking_changes_nothing),
    test!(a_listing_comes_in_pages_in_key_order),
    test!(a_listing_leaves_out_what_is_over),
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

fn claim(desk: &Desk, resource: Resource) -> Claim {
    let mut claim = desk.claim("ann");
    claim.resource = resource;
    claim
}

async fn hostile_names_are_just_names(desk: &Desk) {
    let mut keys = BTreeSet::new();
    for name in HOSTILE {
        let mut claim = desk.claim(name);
        claim.resource = desk.resource(name);
        granted(desk.ask(&claim).await);
        keys.insert(claim.resource.key().to_owned());
    }
    assert_eq!(keys.len(), HOSTILE.len(), "each is a resource of its own");
    for name in HOSTILE {
        let mut rival = desk.claim("bob");
        rival.resource = desk.resource(name);
        blocked(desk.ask(&rival).await);
    }
    let seen = desk.list(desk.prefix(), 0).await;
    let listed: BTreeSet<_> = seen.iter().map(|seen| seen.resource.key().to_owned()).collect();
    assert_eq!(listed, keys, "and is listed by its own name");
}

async fn near_names_are_different_resources(desk: &Desk) {
    let id = desk.resource.id().into_owned();
    let plain = desk.resource.clone();
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
        granted(desk.ask(&claim(desk, resource.clone())).await);
    }
    for resource in &near {
        let page = desk.page(&Query::One(resource.clone())).await.into_snapshots();
        assert_eq!((&page[0].resource, page[0].holder_count), (resource, 1));
        let request = leasehold_core::ReleaseRequest::new(claim(desk, resource.clone()).reference());
        assert_eq!(desk.bid(&request).await, leasehold_core::Released::Now);
    }
}

async fn the_longest_name_will_do(desk: &Desk) {
    let id = format!("{}{}", desk.resource.id(), "🦀".repeat(ID_MAX));
    let cut = (0..=ID_MAX).rev().find(|at| id.is_char_boundary(*at)).expect("zero is a boundary");
    let longest = Resource::new(&"k".repeat(NAME_MAX), &id[..cut]).expect("as long as a name may be");
    let longest = longest.in_namespace(&"n".repeat(NAME_MAX)).expect("as long as a namespace may be");
    granted(desk.ask(&claim(desk, longest.clone())).await);
    let seen = desk.page(&Query::One(longest.clone())).await.into_snapshots();
    assert_eq!((&seen[0].resource, seen[0].holder_count), (&longest, 1));
    let mut rival = desk.claim("bob");
    rival.resource = longest;
    blocked(desk.ask(&rival).await);
}

async fn hostile_holders_are_just_text(desk: &Desk) {
    for (number, label) in HOSTILE.iter().enumerate() {
        let resource = desk.resource(&format!("held {number}"));
        let mut claim = claim(desk, resource.clone());
        claim.holder = std::sync::Arc::new(Holder::new("hôst'\"|{}", u32::MAX, label));
        granted(desk.ask(&claim).await);
        let seen = desk.page(&Query::One(resource)).await.into_snapshots().remove(0);
        assert_eq!(seen.holders[0].holder, claim.holder);
    }
}

async fn what_nobody_uses_is_empty(desk: &Desk) {
    let seen = desk.look().await;
    assert_eq!(seen.resource, desk.resource);
    assert!(seen.holders.is_empty() && seen.queue.is_empty());
    assert_eq!((seen.holder_count, seen.queue_length, seen.paused_for), (0, 0, None));
}

async fn a_resource_is_seen_whole(desk: &Desk) {
    let held = desk.claim("ann").with_note(*b"note");
    let token = granted(desk.ask(&held).await).token;
    let has_line = desk.backend().info().capabilities.queue;
    let waiting = desk.claim("bob").queued();
    if has_line {
        blocked(desk.ask(&waiting).await);
    }
    desk.target.pass(desk.short() / 4).await;
    let seen = desk.look().await;
    assert_eq!((seen.capacity, seen.holder_count, seen.queue_length), (1, 1, u32::from(has_line)));
    let by = &seen.holders[0];
    assert_eq!((&by.holder, by.token, by.weight), (&held.holder, token, 1));
    assert_eq!(by.note.as_deref(), Some(b"note".as_slice()));
    assert!(by.held_for >= desk.short() / 5 && by.held_for < LONG, "held for {:?}", by.held_for);
    desk.lasts(by.remaining);
    assert!(seen.last_token.is_none_or(|last| last == token));
    if has_line {
        let place = &seen.queue[0];
        assert_eq!((&place.holder, place.weight), (&waiting.holder, 1));
        assert!(place.waited >= desk.short() / 5 && place.waited < LONG, "waited {:?}", place.waited);
        desk.lasts(place.remaining);
    }
}

async fn looking_changes_nothing(desk: &Desk) {
    let before = granted(desk.ask(&desk.claim("ann")).await);
    for _ in 0..3 {
        desk.look().await;
        desk.list(desk.prefix(), 1).await;
    }
    assert_eq!(kept(desk.renew("ann", LONG).await).token, before.token);
    assert_eq!(desk.look().await.holder_count, 1);
}

async fn a_listing_comes_in_pages_in_key_order(desk: &Desk) {
    let mut keys = BTreeSet::new();
    for name in ["b", "a", "e/f", "d {x}", "c", "f", "g"] {
        let resource = desk.resource(name);
        granted(desk.ask(&claim(desk, resource.clone())).await);
        keys.insert(resource.key().to_owned());
    }
    // Of someone else, and not to be seen.
    let stranger = Resource::new("other", &desk.resource.id()).expect("a name");
    granted(desk.ask(&claim(desk, stranger)).await);
    for limit in [1, 3, 7, 8, 0] {
        let listed: Vec<_> = desk.list(desk.prefix(), limit).await;
        let listed: Vec<_> = listed.iter().map(|seen| seen.resource.key().to_owned()).collect();
        assert_eq!(listed, keys.iter().cloned().collect::<Vec<_>>(), "in pages of {limit}");
    }
    let some: Vec<Snapshot> = desk.list(desk.resource("d {x}").key(), 0).await;
    assert_eq!(some.len(), 1, "a prefix is matched as it is, not as a pattern");
    assert_eq!((some[0].holder_count, some[0].holders[0].holder.label.as_str()), (1, "ann"));
}

async fn a_listing_leaves_out_what_is_over(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.leave("ann").await;
    assert!(desk.list(desk.prefix(), 0).await.is_empty());
    if desk.backend().info().capabilities.own_ttl {
        granted(desk.ask(&desk.brief("ann")).await);
        assert_eq!(desk.list(desk.prefix(), 0).await.len(), 1);
        desk.target.outlast(desk.short()).await;
        assert!(desk.list(desk.prefix(), 0).await.is_empty());
    }
}

async fn b9_a_note_has_a_limit(desk: &Desk) {
    let limit = desk.backend().info().limits.note;
    granted(desk.ask(&desk.claim("ann").with_note(vec![7; limit])).await);
    assert_eq!(desk.look().await.holders[0].note.as_ref().map(|note| note.len()), Some(limit));
    let renewal = RenewRequest::new(desk.reference("ann"), LONG).with_note(vec![8; limit + 1]);
    let error = desk.backend().renew(&[renewal]).await.remove(0).expect_err("the note is too long");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None));
    assert_eq!(desk.look().await.holders[0].note.as_deref(), Some(vec![7; limit].as_slice()));
    desk.leave("ann").await;
    let error = desk.try_ask(&desk.claim("bob").with_note(vec![8; limit + 1])).await;
    let error = error.expect_err("the note is too long");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None));
    assert_eq!(desk.look().await.holder_count, 0);
}

async fn b9_a_page_has_a_limit(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let most = desk.backend().info().limits.page;
    for limit in [0, most, u32::MAX] {
        let query = Query::Resources(Listing::of("").limit(limit));
        let Page::Resources { snapshots, .. } = desk.page(&query).await else {
            panic!("resources were asked for")
        };
        assert!(!snapshots.is_empty() && snapshots.len() <= most as usize);
    }
}

async fn b9_a_batch_has_a_limit(desk: &Desk) {
    let limit = desk.backend().info().limits.batch;
    granted(desk.ask(&desk.claim("ann")).await);
    let held = RenewRequest::new(desk.reference("ann"), LONG);
    if limit <= 10_000 {
        let answers = desk.backend().renew(&vec![held.clone(); limit]).await;
        assert_eq!(answers.len(), limit);
        answers.into_iter().for_each(|answer| drop(kept(answer.expect("a full batch is answered"))));
        // More than that is a mistake of the caller: refused whole, or served.
        let answers = desk.backend().renew(&vec![held; limit + 1]).await;
        assert_eq!(answers.len(), limit + 1);
        for answer in answers {
            match answer {
                Ok(answer) => drop(kept(answer)),
                Err(error) => assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None)),
            }
        }
    }
}
