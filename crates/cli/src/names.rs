//! The names of resources as people type them.
//!
//! | typed | resource |
//! |---|---|
//! | `report/42`, `acme:report/42` | itself: `[NAMESPACE:]KIND/ID` |
//! | `backup`, `acme:backup` | `name/backup`, `acme:name/backup` |
//! | `/var/lock/x.lock`, `./x.lock`, `../x.lock` | `path/` and the absolute path, so that a script for flock keeps its argument |
//!
//! A command that looks at many resources takes the start of a name instead: [`prefix`], [`Scope`]. The
//! default namespace and `--sensitive` are applied later, when the configuration is known
//! ([`NameRules`]).

use std::env;

use leasehold::Resource;

use crate::exit::Failure;

/// The kind of a resource that was typed as a plain name.
pub(crate) const PLAIN_KIND: &str = "name";
/// The kind of a resource that was typed as the path of a file.
pub(crate) const PATH_KIND: &str = "path";

const GRAMMAR: &str = "write KIND/ID as in report/42, a NAME as in backup, or a PATH as in /var/lock/x";

/// Parses one resource, in one of the forms of the module documentation. A hashed id can be typed as it is
/// shown: `account/~` and 32 hex digits.
pub(crate) fn resource(typed: &str) -> Result<Resource, String> {
    parse(typed).map_err(|error| format!("{error}; {GRAMMAR}"))
}

fn parse(typed: &str) -> Result<Resource, String> {
    let text = |error: leasehold::Error| error.to_string();
    let (namespace, name) = split_namespace(typed);
    let parsed = if is_path(name) {
        Resource::new(PATH_KIND, &absolute_path(name)?).map_err(text)?
    } else if !name.contains('/') {
        Resource::new(PLAIN_KIND, name).map_err(text)?
    } else {
        let is_hash = |id: &str| {
            id.len() == 33 && id.starts_with('~') && id[1..].bytes().all(|b| b.is_ascii_hexdigit())
        };
        let hashed = typed.split_once('/').is_some_and(|(_, id)| is_hash(id));
        return if hashed { Resource::from_key(typed) } else { typed.parse() }.map_err(text);
    };
    namespace.map_or(Ok(parsed.clone()), |namespace| parsed.in_namespace(namespace)).map_err(text)
}

/// The namespace before the first colon, and the rest. A colon after a slash belongs to the id.
fn split_namespace(typed: &str) -> (Option<&str>, &str) {
    match typed.split_once(':') {
        Some((namespace, name)) if !namespace.contains('/') => (Some(namespace), name),
        _ => (None, typed),
    }
}

fn is_path(name: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| name.starts_with(start)) || name == "." || name == ".."
}

/// The path from the root, without `.`, `..` and double slashes. Symbolic links are not followed: on another
/// host they may lead elsewhere.
fn absolute_path(typed: &str) -> Result<String, String> {
    let here = if typed.starts_with('/') {
        String::new()
    } else {
        let here =
            env::current_dir().map_err(|error| format!("the working directory is unknown: {error}"))?;
        here.into_os_string().into_string().map_err(|_| "the working directory is not UTF-8".to_owned())?
    };
    let mut parts = Vec::new();
    for part in here.split('/').chain(typed.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Ok(format!("/{}", parts.join("/")))
}

/// Converts the start of a name to the start of a key. A `*` at the end is ignored.
pub(crate) fn prefix(typed: &str) -> Result<String, String> {
    let typed = typed.strip_suffix('*').unwrap_or(typed);
    let (namespace, name) = split_namespace(typed);
    if is_path(name) {
        let slash = if name.ends_with('/') && absolute_path(name)? != "/" { "/" } else { "" };
        let path = Resource::new(PATH_KIND, &(absolute_path(name)? + slash));
        let path = path.map_err(|error| error.to_string())?;
        return Ok(namespace.map_or_else(|| path.key().to_owned(), |space| format!("{space}:{}", path.key())));
    }
    match typed.split_once('/') {
        // Ids are encoded byte by byte, so the encoded start of an id is the start of the encoded id.
        Some((_, id)) if !id.is_empty() && !id.starts_with('~') => {
            let parsed: Result<Resource, leasehold::Error> = typed.parse();
            parsed.map(|resource| resource.key().to_owned()).map_err(|error| error.to_string())
        }
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
    /// `report/4` and `./x.lock` are one resource; `report/4*`, `report/`, `report` and the empty text are
    /// prefixes.
    pub(crate) fn read(typed: &str) -> Result<Scope, String> {
        let one = if is_path(split_namespace(typed).1) {
            !typed.ends_with(['/', '*'])
        } else {
            typed.split_once('/').is_some_and(|(_, id)| !id.is_empty() && !id.ends_with('*'))
        };
        if one { resource(typed).map(Scope::One) } else { prefix(typed).map(Scope::Prefix) }
    }
}

/// A name in the command line.
pub(crate) enum TypedName<'a> {
    One(&'a mut Resource),
    Scope(&'a mut Scope),
    /// The start of a key.
    Prefix(&'a mut String),
    /// The name of a job of `cron`: `[NAMESPACE:]NAME`.
    Job(&'a mut String),
}

/// What is done to every name that was typed: `--namespace` and `--sensitive`.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameRules {
    /// The namespace of names that have none.
    pub(crate) namespace: Option<String>,
    /// With `--sensitive`: the key that ids are hashed with.
    pub(crate) hash_key: Option<HashKey>,
    /// Whether `--sensitive` was typed. In `config.toml` it is for the names of single resources, and not for lists and jobs.
    pub(crate) sensitive_is_typed: bool,
}

/// The key that ids are hashed with. `Debug` does not show it.
#[derive(Clone)]
pub(crate) struct HashKey(pub(crate) Vec<u8>);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl NameRules {
    pub(crate) fn apply(&self, name: TypedName<'_>) -> Result<(), Failure> {
        match name {
            TypedName::One(resource) | TypedName::Scope(Scope::One(resource)) => {
                *resource = self.resource(resource)?;
                Ok(())
            }
            TypedName::Prefix(_) | TypedName::Scope(Scope::Prefix(_)) if self.sensitive_is_typed => {
                Err(Failure::usage("--sensitive needs one resource: a hash has no beginning to look for")
                    .hint("leave --sensitive out to list hashed ids as they are"))
            }
            TypedName::Job(_) if self.sensitive_is_typed => {
                Err(Failure::usage("cron has no --sensitive: leasehold cron ls shows the names of jobs")
                    .hint("give the job a name that may be seen"))
            }
            TypedName::Prefix(name) | TypedName::Scope(Scope::Prefix(name)) | TypedName::Job(name) => {
                if let Some(namespace) = self.namespace.as_ref().filter(|_| !has_namespace(name)) {
                    *name = format!("{namespace}:{name}");
                }
                Ok(())
            }
        }
    }

    fn resource(&self, typed: &Resource) -> Result<Resource, Failure> {
        let resource = match (&self.namespace, typed.namespace()) {
            (Some(namespace), None) => typed.in_namespace(namespace)?,
            _ => typed.clone(),
        };
        // The hash includes the namespace, so it comes second.
        Ok(self.hash_key.as_ref().map_or(resource.clone(), |key| resource.hashed(&key.0)))
    }
}

fn has_namespace(start: &str) -> bool {
    split_namespace(start).0.is_some()
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
            ("/var//lock/../x", "path/%2Fvar%2Fx"),
            ("acme:/var/lock/", "acme:path/%2Fvar%2Flock%2F"),
        ];
        for (typed, key) in table {
            assert_eq!(prefix(typed).as_deref(), Ok(key), "{typed}");
        }
        assert!(prefix("Report/4").is_err());
    }

    #[test]
    fn plain_names_and_paths_are_resources() {
        let table = [
            ("backup", "name/backup"),
            ("Nightly Backup", "name/Nightly%20Backup"),
            ("acme:backup", "acme:name/backup"),
            ("report/42", "report/42"),
            ("acme:report/4:2", "acme:report/4:2"),
            ("report/a:b", "report/a:b"),
            ("/var/lock/x.lock", "path/%2Fvar%2Flock%2Fx.lock"),
            ("/var/./lock//y/../x.lock", "path/%2Fvar%2Flock%2Fx.lock"),
            ("acme:/x", "acme:path/%2Fx"),
        ];
        for (typed, key) in table {
            assert_eq!(resource(typed).unwrap().key(), key, "{typed}");
        }
        let here = env::current_dir().unwrap();
        assert_eq!(resource("./a/../x").unwrap().id(), here.join("x").to_str().unwrap());
        assert_eq!(resource("../x").unwrap().id(), here.parent().unwrap().join("x").to_str().unwrap());
    }

    #[test]
    fn what_is_no_name_gets_the_grammar() {
        for wrong in ["", "Report/4", "report/", "a b/c", ":x", "Acme:x", "report/\n"] {
            let error = resource(wrong).unwrap_err();
            assert!(error.contains("report/42") && error.contains("backup"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_hashed_id_can_be_typed_as_it_is_shown() {
        let hashed = "account/anna".parse::<Resource>().unwrap().hashed(b"secret");
        assert_eq!(resource(&hashed.to_string()).unwrap(), hashed);
        assert_eq!(resource("account/~anna").unwrap().key(), "account/%7Eanna");
    }

    #[test]
    fn one_resource_and_a_prefix_are_told_apart() {
        for one in ["report/4", "./x", "/x", "acme:/x"] {
            assert!(matches!(Scope::read(one), Ok(Scope::One(_))), "{one}");
        }
        for many in ["report/4*", "report/", "report", "", "acme:", "/var/", "./x*"] {
            assert!(matches!(Scope::read(many), Ok(Scope::Prefix(_))), "{many}");
        }
    }

    #[test]
    fn the_default_namespace_is_for_names_that_have_none() {
        let rules = NameRules { namespace: Some("acme".into()), ..NameRules::default() };
        for (typed, expected) in
            [("", "acme:"), ("report/", "acme:report/"), ("beta:", "beta:"), ("x/a:b", "acme:x/a:b")]
        {
            let mut name = typed.to_owned();
            rules.apply(TypedName::Prefix(&mut name)).unwrap();
            assert_eq!(name, expected, "{typed}");
        }
        for (typed, expected) in [("x/1", "acme:x/1"), ("beta:x/1", "beta:x/1")] {
            let mut resource = typed.parse().unwrap();
            rules.apply(TypedName::One(&mut resource)).unwrap();
            assert_eq!(resource.key(), expected);
        }
    }

    #[test]
    fn a_sensitive_id_is_hashed_and_has_no_prefix() {
        let rules = NameRules {
            namespace: Some("acme".into()),
            hash_key: Some(HashKey(b"k".to_vec())),
            sensitive_is_typed: true,
        };
        let mut resource: Resource = "account/anna".parse().unwrap();
        let expected = resource.in_namespace("acme").unwrap().hashed(b"k");
        rules.apply(TypedName::One(&mut resource)).unwrap();
        assert_eq!(resource, expected);
        assert_eq!(rules.apply(TypedName::Prefix(&mut "account/".to_owned())).unwrap_err().code, 64);
        assert!(!format!("{rules:?}").contains("107"));
    }
}
