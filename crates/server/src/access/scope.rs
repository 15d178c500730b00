//! The namespaces and kinds that a caller may use.

use leasehold_core::Resource;

use super::tokens::TokenEntry;

/// Stands for "no namespace" in a list of namespaces.
pub(crate) const NO_NAMESPACE: &str = "-";

/// What a caller may use and see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    namespaces: Option<&'a [String]>,
    kinds: Option<&'a [String]>,
}

impl<'a> Scope<'a> {
    pub(super) fn of(entry: Option<&'a TokenEntry>) -> Scope<'a> {
        Scope {
            namespaces: entry.and_then(|entry| entry.namespaces.as_deref()),
            kinds: entry.and_then(|entry| entry.kinds.as_deref()),
        }
    }

    #[cfg(test)]
    pub(crate) fn everything() -> Scope<'static> {
        Scope { namespaces: None, kinds: None }
    }

    #[cfg(test)]
    pub(crate) fn of_namespaces(namespaces: &'a [String]) -> Scope<'a> {
        Scope { namespaces: Some(namespaces), kinds: None }
    }

    /// Everything is in it.
    pub(crate) fn is_everything(self) -> bool {
        self.namespaces.is_none() && self.kinds.is_none()
    }

    pub(crate) fn has(self, resource: &Resource) -> bool {
        let namespace = resource.namespace().unwrap_or(NO_NAMESPACE);
        let names =
            |list: Option<&[String]>, name: &str| list.is_none_or(|list| list.iter().any(|one| one == name));
        names(self.namespaces, namespace) && names(self.kinds, resource.kind())
    }

    /// Whether a cursor names nothing outside of the scope. A cursor that is no key names nothing.
    pub(crate) fn may_see_cursor(self, cursor: &str) -> bool {
        self.is_everything() || Resource::from_key(cursor).map_or(true, |resource| self.has(&resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_and_kinds_are_whole_names() {
        let (namespaces, kinds) = (["acme".to_owned(), "-".to_owned()], ["report".to_owned()]);
        let scope = Scope { namespaces: Some(&namespaces), kinds: Some(&kinds) };
        let has = |scope: Scope<'_>, name: &str| scope.has(&name.parse().unwrap());
        assert!(has(scope, "acme:report/1") && has(scope, "report/1"));
        for name in [
            "acme2:report/1",
            "acm:report/1",
            "acme:reports/1",
            "acme:order/1",
            "other:report/1",
            "order/acme:report",
        ] {
            assert!(!has(scope, name), "{name}");
        }
        let named_only = Scope { namespaces: Some(&namespaces[..1]), kinds: None };
        assert!(!has(named_only, "report/1") && has(named_only, "acme:x/1"));
        assert!(has(Scope { namespaces: None, kinds: None }, "other:x/1"));
        assert!(named_only.may_see_cursor("17-4") && !named_only.may_see_cursor("other:x/1"));
    }
}
