//! Parsing the names of resources: one resource, or all resources with a prefix.

use leasehold::Resource;

/// Parses one resource: `[namespace:]kind/id`. A hashed id can be typed as it is shown: `account/~` and 32
/// hex digits.
pub(crate) fn resource(typed: &str) -> Result<Resource, String> {
    let is_hash =
        |id: &str| id.len() == 33 && id.starts_with('~') && id[1..].bytes().all(|b| b.is_ascii_hexdigit());
    let hashed = typed.split_once('/').is_some_and(|(_, id)| is_hash(id));
    let parsed = if hashed { Resource::from_key(typed) } else { typed.parse() };
    parsed.map_err(|error| error.to_string())
}

/// Converts the start of a name to the start of a key. A `*` at the end is ignored.
pub(crate) fn prefix(typed: &str) -> Result<String, String> {
    let typed = typed.strip_suffix('*').unwrap_or(typed);
    match typed.split_once('/') {
        // Ids are encoded byte by byte, so the encoded start of an id is the start of the encoded id.
        Some((_, id)) if !id.is_empty() && !id.starts_with('~') => typed
            .parse()
            .map(|resource: Resource| resource.key().to_owned())
            .map_err(|error| error.to_string()),
        _ => Ok(typed.to_owned()),
    }
}

/// The resources that a command looks at.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    One(Resource),
    /// All resources whose key starts with this.
    Prefix(String),
}

impl Scope {
    /// `report/4` is one resource; `report/4*`, `report/`, `report` and the empty text are prefixes.
    pub(crate) fn read(typed: &str) -> Result<Scope, String> {
        let one = typed.split_once('/').is_some_and(|(_, id)| !id.is_empty() && !id.ends_with('*'));
        if one { resource(typed).map(Scope::One) } else { prefix(typed).map(Scope::Prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_name_is_the_start_of_its_key() {
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
    fn a_hashed_id_can_be_typed_as_it_is_shown() {
        let hashed = "account/anna".parse::<Resource>().unwrap().hashed(b"secret");
        assert_eq!(resource(&hashed.to_string()).unwrap(), hashed);
        assert_eq!(resource("account/~anna").unwrap().key(), "account/%7Eanna");
        assert!(resource("account").is_err());
    }

    #[test]
    fn one_resource_and_a_prefix_are_told_apart() {
        assert!(matches!(Scope::read("report/4"), Ok(Scope::One(_))));
        for many in ["report/4*", "report/", "report", "", "acme:"] {
            assert!(matches!(Scope::read(many), Ok(Scope::Prefix(_))), "{many}");
        }
    }
}
