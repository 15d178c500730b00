//! Names: their grammar, their encoding, and that no two are ever confused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashSet};

use leasehold_core::{
    Error, ErrorKind, Resource,
    resource::{ID_MAX, NAME_MAX},
};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9._-]{1,64}"
}

/// Any text of up to 256 bytes without control characters, with the awkward ones made likely.
fn id() -> impl Strategy<Value = String> {
    let awkward =
        prop::sample::select(vec!['/', '%', ':', '{', '}', '|', '~', ' ', '*', '\\', '\'', '"', 'é', '🦀']);
    let character = prop_oneof![3 => prop::char::range('a', 'z'), 3 => awkward, 2 => any::<char>()];
    prop::collection::vec(character, 1..64)
        .prop_map(|characters| characters.into_iter().filter(|c| !c.is_control()).collect::<String>())
        .prop_filter("an id has a character", |id| !id.is_empty() && id.len() <= ID_MAX)
}

fn resource() -> impl Strategy<Value = Resource> {
    (prop::option::of(name()), name(), id()).prop_map(|(namespace, kind, id)| {
        let plain = Resource::new(&kind, &id).unwrap();
        namespace.map_or(plain.clone(), |namespace| plain.in_namespace(&namespace).unwrap())
    })
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(answer: Result<T, Error>, says: &str) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains(says), "{text:?} does not say {says:?}");
    assert!(text.len() < 200, "an error fits a line, this one has {} bytes", text.len());
    assert!(!text.contains(|c: char| c.is_control()), "an error is safe to print: {text:?}");
}

proptest! {
    #[test]
    fn a_key_reads_back(resource in resource()) {
        let again = Resource::from_key(resource.key()).unwrap();
        prop_assert_eq!(&again, &resource);
        prop_assert_eq!(again.namespace(), resource.namespace());
        prop_assert_eq!(again.kind(), resource.kind());
        prop_assert_eq!(again.id(), resource.id());
    }

    #[test]
    fn what_is_shown_reads_back(resource in resource()) {
        prop_assert_eq!(resource.to_string().parse::<Resource>().unwrap(), resource);
    }

    #[test]
    fn the_parts_are_as_given(namespace in name(), kind in name(), id in id()) {
        let plain = Resource::new(&kind, &id).unwrap();
        prop_assert_eq!((plain.namespace(), plain.kind(), &*plain.id()), (None, kind.as_str(), id.as_str()));
        let tenant = plain.in_namespace(&namespace).unwrap();
        prop_assert_eq!((tenant.namespace(), tenant.kind(), &*tenant.id()), (Some(&*namespace), &*kind, &*id));
        let moved = tenant.in_namespace("other").unwrap();
        prop_assert_eq!(moved.namespace(), Some("other"));
        prop_assert_eq!(tenant.encoded_id(), plain.encoded_id());
    }

    #[test]
    fn a_key_is_harmless_ascii(resource in resource()) {
        let harmless = |b: u8| b.is_ascii_alphanumeric() || b"-._:@+=,%/".contains(&b);
        prop_assert!(resource.key().bytes().all(harmless), "{}", resource.key());
        prop_assert_eq!(resource.key().matches('/').count(), 1, "the id has no slash");
    }

    #[test]
    fn different_resources_have_different_keys(one in resource(), other in resource()) {
        let parts = |r: &Resource| (r.namespace().map(str::to_owned), r.kind().to_owned(), r.id().into_owned());
        prop_assert_eq!(one.key() == other.key(), parts(&one) == parts(&other));
        prop_assert_eq!(one == other, one.key() == other.key());
        prop_assert_eq!(one.cmp(&other), one.key().cmp(other.key()));
    }

    #[test]
    fn no_key_with_something_appended_after_a_delimiter_is_another_key(one in resource(), other in resource()) {
        // How backends build their own names: a delimiter that no key contains, then a suffix.
        for delimiter in ['{', '}', '|', ' ', '\'', '*'] {
            let (tagged, clashing) = (format!("{}{delimiter}", one.key()), format!("{}{delimiter}", other.key()));
            prop_assert!(one == other || !clashing.starts_with(&tagged));
        }
    }

    #[test]
    fn only_the_one_spelling_is_a_key(text in "[a-z]{1,3}(:[a-z]{1,3})?/[a-zA-Z0-9%/ ~{}é]{1,12}") {
        // Whatever is taken is spelled as it would be written.
        if let Ok(resource) = Resource::from_key(&text) {
            prop_assert_eq!(resource.key(), text.as_str());
        }
    }

    #[test]
    fn nothing_that_is_typed_makes_it_panic(text in any::<String>()) {
        let _ = text.parse::<Resource>();
        let _ = Resource::from_key(&text);
        let _ = Resource::new(&text, &text);
        let _ = Resource::new("kind", "id").unwrap().in_namespace(&text);
    }

    #[test]
    fn a_hash_hides_the_id_and_reads_back(resource in resource(), secret: Vec<u8>) {
        let hashed = resource.hashed(&secret);
        prop_assert!(hashed.is_hashed() && !resource.is_hashed());
        prop_assert_eq!((hashed.namespace(), hashed.kind()), (resource.namespace(), resource.kind()));
        prop_assert_eq!(hashed.encoded_id().len(), 33);
        prop_assert_eq!(&Resource::from_key(hashed.key()).unwrap(), &hashed);
        prop_assert_eq!(&hashed.hashed(b"again"), &hashed, "hashing twice changes nothing");
        prop_assert_ne!(&hashed, &resource);
    }

    #[test]
    fn no_id_can_pose_as_a_hash(resource in resource(), secret: Vec<u8>) {
        let hashed = resource.hashed(&secret);
        let posing = Resource::new(resource.kind(), &hashed.id()).unwrap();
        prop_assert!(!posing.is_hashed() && posing.key() != hashed.key());
    }

    #[test]
    fn the_hash_for_logs_is_short_and_not_the_id(resource in resource()) {
        let hash = resource.id_hash();
        prop_assert!(hash.len() == 12 && hash.bytes().all(|b| b"0123456789abcdef".contains(&b)));
        prop_assert_eq!(hash, Resource::from_key(resource.key()).unwrap().id_hash());
    }
}

#[test]
fn the_encoding_never_changes() {
    let golden = include_str!("golden/resource-keys.txt");
    let mut seen = HashSet::new();
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let [key, namespace, kind, id] = line.splitn(4, '\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?}")
        };
        let plain = Resource::new(kind, id).unwrap();
        let made = if namespace.is_empty() { plain } else { plain.in_namespace(namespace).unwrap() };
        assert_eq!(made.key(), key);
        assert_eq!(Resource::from_key(key).unwrap(), made);
        assert!(seen.insert(key), "{key} twice");
    }
    assert!(seen.len() >= 35, "the golden file was not cut short");
}

#[test]
fn hashes_never_change() {
    let golden = include_str!("golden/hashed-keys.txt");
    let mut seen = BTreeMap::new();
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let [hashed, secret, key, id_hash] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?}")
        };
        let resource = Resource::from_key(key).unwrap();
        assert_eq!(resource.hashed(secret.as_bytes()).key(), hashed);
        assert_eq!(resource.id_hash(), id_hash);
        assert!(seen.insert(hashed, key).is_none(), "secrets, namespaces and ids all count");
    }
    assert!(seen.len() >= 7, "the golden file was not cut short");
}

#[test]
fn bad_kinds_say_what_is_wrong() {
    invalid(Resource::new("", "42"), "a kind has 1 to 64 characters, this one has 0");
    invalid(Resource::new(&"k".repeat(NAME_MAX + 1), "42"), "this one has 65");
    invalid(Resource::new(&"k".repeat(1_000_000), "42"), "this one has 1000000");
    invalid(Resource::new("Report", "42"), "the kind \"Report\" has 'R' in it: only a-z, 0-9");
    invalid(Resource::new("re port", "42"), "has ' ' in it");
    invalid(Resource::new("report/x", "42"), "has '/' in it");
    invalid(Resource::new("acme:report", "42"), "has ':' in it");
    invalid(Resource::new("r\u{1b}[31m", "42"), "has '\\u{1b}' in it");
    invalid(Resource::new("répørt", "42"), "has 'é' in it");
}

#[test]
fn bad_namespaces_say_what_is_wrong() {
    let report = Resource::new("report", "42").unwrap();
    invalid(report.in_namespace(""), "a namespace has 1 to 64 characters, this one has 0");
    invalid(report.in_namespace(&"n".repeat(65)), "this one has 65");
    invalid(report.in_namespace("ACME"), "the namespace \"ACME\" has 'A' in it");
    invalid(report.in_namespace("a:b"), "has ':' in it");
}

#[test]
fn bad_ids_say_what_is_wrong() {
    invalid(Resource::new("report", ""), "an id has 1 to 256 bytes, this one has 0");
    invalid(Resource::new("report", &"x".repeat(ID_MAX + 1)), "this one has 257");
    invalid(Resource::new("report", &"🦀".repeat(65)), "this one has 260");
    invalid(Resource::new("report", &"x".repeat(10_000_000)), "this one has 10000000");
    for control in ['\0', '\n', '\r', '\t', '\u{1b}', '\u{7f}', '\u{85}'] {
        invalid(Resource::new("report", &format!("a{control}b")), "the control character");
    }
    assert!(Resource::new("report", &"x".repeat(ID_MAX)).is_ok());
    assert!(Resource::new("report", &"🦀".repeat(64)).is_ok());
}

#[test]
fn what_is_typed_without_a_slash_is_told_how() {
    for text in ["", "report", "report:42", "just some words"] {
        invalid(text.parse::<Resource>(), "is not a resource: write kind/id, as in report/42");
    }
    invalid("x".repeat(100_000).parse::<Resource>(), "write kind/id");
    invalid("\u{1b}[31mred".parse::<Resource>(), "write kind/id");
    invalid("/42".parse::<Resource>(), "a kind has 1 to 64 characters");
    invalid("report/".parse::<Resource>(), "an id has 1 to 256 bytes");
    invalid(":report/42".parse::<Resource>(), "a namespace has 1 to 64 characters");
    invalid("acme:/42".parse::<Resource>(), "a kind has 1 to 64 characters");
    invalid("a:b:c/42".parse::<Resource>(), "has ':' in it");
}

#[test]
fn what_is_typed_is_taken_as_it_is() {
    let typed: Resource = "acme:report/42%20/x y".parse().unwrap();
    assert_eq!((typed.namespace(), typed.kind(), &*typed.id()), (Some("acme"), "report", "42%20/x y"));
    assert_eq!(typed.key(), "acme:report/42%2520%2Fx%20y");
}

#[test]
fn keys_in_any_other_spelling_are_refused() {
    let wrong = [
        "report/a b",                                // not encoded
        "report/%2f",                                // lower-case digits
        "report/%61",                                // encoded without need
        "report/%",                                  // cut short
        "report/%2",                                 // cut short
        "report/%zz",                                // not digits
        "report/%FF",                                // not UTF-8
        "report/%00",                                // a control character
        "report/%0A",                                // a control character
        "report/a/b",                                // two slashes
        "report/é",                                  // not ASCII
        "report/",                                   // no id
        "report/~",                                  // not a hash
        "report/~abc",                               // too short for a hash
        "report/~0123456789abcdef0123456789abcdeg",  // not hex
        "report/~0123456789ABCDEF0123456789ABCDEF",  // a hash has one spelling, too
        "report/~0123456789abcdef0123456789abcdef0", // too long for a hash
        "Report/42",                                 // upper case
        "report",                                    // no slash
        "",
    ];
    for key in wrong {
        let error = Resource::from_key(key).expect_err(key);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{key}");
    }
    invalid(
        Resource::from_key(&format!("report/{}", " ".repeat(200))),
        "is not how this resource is encoded",
    );
    invalid(Resource::from_key(&format!("report/{}", "%".repeat(100_000))), "is not an encoded resource");
}

#[test]
fn debug_shows_the_key_and_display_the_id() {
    let resource = Resource::new("report", "4 2").unwrap().in_namespace("acme").unwrap();
    assert_eq!(format!("{resource:?} {resource}"), "acme:report/4%202 acme:report/4 2");
}
