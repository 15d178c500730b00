//! Tokens: their bounds, their one spelling, how they are minted, and what is never shown.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use leasehold_core::{
    Clock, Environment, ErrorKind, FencingToken, OwnerToken, ShareNumber, Timestamp, WallTime, clock::Task,
};
use proptest::prelude::*;

fn token() -> impl Strategy<Value = FencingToken> {
    let number =
        prop_oneof![1..FencingToken::LIMIT, 1u64..100, FencingToken::LIMIT - 100..FencingToken::LIMIT];
    number.prop_map(|number| FencingToken::new(number).unwrap())
}

proptest! {
    #[test]
    fn a_fencing_token_reads_back(token in token()) {
        prop_assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
        prop_assert_eq!(FencingToken::try_from(token.as_i64()).unwrap(), token);
        prop_assert_eq!(i64::from(token), token.as_i64());
        prop_assert_eq!(u64::try_from(token.as_i64()).unwrap(), token.get());
    }

    #[test]
    fn fencing_tokens_order_as_numbers(one in token(), other in token()) {
        prop_assert_eq!(one.cmp(&other), one.get().cmp(&other.get()));
    }

    #[test]
    fn a_number_is_a_token_iff_it_is_within_bounds(number: u64, signed: i64) {
        prop_assert_eq!(FencingToken::new(number).is_ok(), 0 < number && number < FencingToken::LIMIT);
        prop_assert_eq!(FencingToken::try_from(signed).is_ok(), 0 < signed && signed < 1 << 53);
    }

    #[test]
    fn a_text_is_a_token_iff_it_is_its_spelling(text in "[0-9+ -]{0,18}|[0-9]{1,20}|.{0,6}") {
        if let Ok(token) = text.parse::<FencingToken>() {
            prop_assert_eq!(token.to_string(), text);
        }
    }

    #[test]
    fn a_minted_token_is_above_all_and_no_higher_than_needed(
        last in prop::option::of(token()),
        floor in prop::option::of(token()),
        clock in 0..FencingToken::LIMIT,
    ) {
        let needed = [last, floor].into_iter().flatten().map(|token| token.get() + 1).max().unwrap_or(1).max(clock);
        let absurd = floor.is_some_and(|floor| {
            Some(floor) > last && floor.get() > clock + FencingToken::FLOOR_LEAD_MAX
        });
        match FencingToken::mint(last, clock, floor) {
            Ok(minted) => prop_assert!(!absurd && minted.get() == needed),
            Err(error) if absurd => prop_assert_eq!(error.kind(), ErrorKind::Invalid),
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
                prop_assert!(needed >= FencingToken::LIMIT);
            }
        }
    }

    #[test]
    fn an_owner_token_reads_back(bytes: [u8; 16]) {
        let owner = OwnerToken::from_bytes(bytes);
        prop_assert_eq!(owner.to_bytes(), bytes);
        prop_assert_eq!(owner.reveal().len(), 32);
        prop_assert_eq!(owner.reveal().parse::<OwnerToken>().unwrap(), owner);
    }

    #[test]
    fn debug_never_shows_a_whole_owner_token(bytes: [u8; 16]) {
        let owner = OwnerToken::from_bytes(bytes);
        let (whole, shown) = (owner.reveal(), format!("{owner:?} {owner:#?}"));
        prop_assert!(!shown.contains(&whole));
        prop_assert!(shown.starts_with(&owner.prefix()) && owner.prefix() == whole[..8]);
        // Not even one digit more than the prefix.
        prop_assert_eq!(format!("{owner:?}"), format!("{}…", &whole[..8]));
    }

    #[test]
    fn a_text_is_an_owner_token_iff_it_is_its_spelling(text in "[0-9a-fA-F+]{31,33}|.{0,40}") {
        match text.parse::<OwnerToken>() {
            Ok(owner) => prop_assert_eq!(owner.reveal(), text),
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Invalid);
                prop_assert!(text.len() < 4 || !error.to_string().contains(&text), "it may be most of a secret");
            }
        }
    }
}

#[test]
fn the_bounds_are_exact() {
    for (number, is_token) in
        [(0, false), (1, true), ((1 << 53) - 1, true), (1 << 53, false), (u64::MAX, false)]
    {
        assert_eq!(FencingToken::new(number).is_ok(), is_token, "{number}");
    }
    for signed in [0, -1, i64::MIN, i64::MAX, 1 << 53] {
        assert_eq!(FencingToken::try_from(signed).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_token_has_one_spelling() {
    for text in [
        "",
        "0",
        "01",
        "+1",
        "-1",
        " 1",
        "1 ",
        "1.0",
        "0x1",
        "１",
        "9007199254740992",
        "99999999999999999999",
    ] {
        let error = text.parse::<FencingToken>().expect_err(text);
        assert!(error.to_string().contains("is not a fencing token: 1 to 2^53 - 1"), "{error}");
    }
    assert_eq!("9007199254740991".parse::<FencingToken>().unwrap().get(), (1 << 53) - 1);
    let error = "7x".repeat(50_000).parse::<FencingToken>().unwrap_err();
    assert!(error.to_string().len() < 120, "an error fits a line");
}

#[test]
fn the_last_token_has_no_successor() {
    let greatest = FencingToken::new(FencingToken::LIMIT - 1).unwrap();
    for (last, clock, floor) in [
        (Some(greatest), 0, None),
        (None, FencingToken::LIMIT - 1, Some(greatest)),
        (None, FencingToken::LIMIT, None),
        (None, u64::MAX, None),
    ] {
        let error = FencingToken::mint(last, clock, floor).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Corrupt, "no fencing token is left: they end below 2^53")
        );
    }
    assert_eq!(FencingToken::mint(None, 0, None).unwrap().get(), 1);
    assert_eq!(FencingToken::mint(None, FencingToken::LIMIT - 1, None).unwrap(), greatest);
}

#[test]
fn a_floor_a_year_ahead_of_the_clock_is_refused_unless_the_resource_was_there_before() {
    let clock = 1_800_000_000_000_000;
    let token = |ahead: u64| FencingToken::new(clock + FencingToken::FLOOR_LEAD_MAX + ahead).unwrap();
    assert_eq!(FencingToken::mint(None, clock, Some(token(0))).unwrap(), token(1));
    let error = FencingToken::mint(None, clock, Some(token(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(&token(1).to_string()), "{error}");
    // The server's own clock was set back: its clients have seen what it gave out before, and are served.
    assert_eq!(FencingToken::mint(Some(token(1)), clock, Some(token(1))).unwrap(), token(2));
}

#[test]
fn a_share_number_shows_itself_as_such() {
    let token = FencingToken::new(34).unwrap();
    let number = ShareNumber::from(token);
    assert_eq!(
        (number.get(), number.to_string(), format!("{number:?}")),
        (34, "34".to_owned(), "share 34".to_owned())
    );
    assert_eq!(format!("{token:?} {token}"), "token 34 34");
}

/// Counts up: each draw differs.
#[derive(Debug, Default)]
struct Counting(std::sync::atomic::AtomicU8);

impl Clock for Counting {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }
    fn wall(&self) -> WallTime {
        WallTime::default()
    }
}

impl Environment for Counting {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    }
    fn sleep(&self, _: std::time::Duration) -> Task {
        Box::pin(std::future::ready(()))
    }
    fn spawn(&self, _: Task) {}
}

#[test]
fn a_fresh_owner_token_is_drawn_whole_from_the_environment() {
    let environment = Counting::default();
    assert_eq!(OwnerToken::fresh(&environment).to_bytes(), [0; 16]);
    assert_eq!(OwnerToken::fresh(&environment).to_bytes(), [1; 16]);
}
