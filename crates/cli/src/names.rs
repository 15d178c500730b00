//! Names as people type them: one resource, or all that begin in some way.

use leasehold::Resource;

/// One resource: `[namespace:]kind/id`. A hashed id is taken as it is shown: `account/~` and 32 digits.
pub(crate) fn resource(typed: &str) -> Result<Resource, String> {
    let is_hash =
        |id: &str| id.len() == 33 && id.starts_with('~') && id[1..].bytes().all(|b| b.is_ascii_hexdigit());
    let hashed = typed.split_once('/').is_some_and(|(_, id)| is_hash(id));
    let read = if hashed { Resource::from_key(typed) } else { typed.parse() };
    read.map_err(|error| error.to_string())
}

/// The keys of all whose names begin so; a `*` at the end changes nothing.
pub(crate) fn prefix(typed: &str) -> Result<String, String> {
    let typed = typed.strip_suffix('*').unwrap_or(typed);
    match typed.split_once('/') {
        // Ids are encoded byte by byte: the key of a beginning is the beginning of a key.
        Some((_, id)) if !id.is_empty() && !id.starts_with('~') => typed
            .parse()
            .map(|resource: Resource| resource.key().to_owned())
            .map_err(|error| error.to_string()),
        _ => Ok(typed.to_owned()),
    }
}

/// What to look at: one, or all that begin so.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    One(Resource),
    Prefix(String),
}

impl Scope {
    /// `report/4` is one resource; `report/4*`, `report/`, `report` and nothing are many.
    pub(crate) fn read(typed: &str) -> Result<Scope, String> {
        let one = typed.split_once('/').is_some_and(|(_, id)| !id.is_empty() && !id.ends_with('*'));
        if one { resource(typed).map(Scope::One) } else { prefix(typed).map(Scope::Prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_of_a_name_is_the_beginning_of_its_key() {
        let table = [
            ("", ""),
            ("*", ""),
            ("report", "report"),
            ("report/", "report/"),
            ("report/*", "report/"),
            ("acme:report/4 of", "acme:report/4%20of"),
            ("account/~ab", "account/~ab"),
        ];
        for (typed, key) in table {
            assert_eq!(prefix(typed).as_deref(), Ok(key), "{typed}");
        }
        assert!(prefix("Report/4").is_err());
    }

    #[test]
    fn a_hashed_id_is_taken_as_it_is_shown() {
        let hashed = "account/anna".parse::<Resource>().unwrap().hashed(b"secret");
        assert_eq!(resource(&hashed.to_string()).unwrap(), hashed);
        assert_eq!(resource("account/~anna").unwrap().key(), "account/%7Eanna");
        assert!(resource("account").is_err());
    }

    #[test]
    fn one_is_told_from_many() {
        assert!(matches!(Scope::read("report/4"), Ok(Scope::One(_))));
        for many in ["report/4*", "report/", "report", "", "acme:"] {
            assert!(matches!(Scope::read(many), Ok(Scope::Prefix(_))), "{many}");
        }
    }
}
