//! Settles the global options: a value of the command line comes first, then the variable, then
//! `config.toml`, then the default. Afterwards `Global` has the values that count, with absolute paths, and
//! the names in the command line are complete.

use std::{ffi::OsString, path::PathBuf};

use leasehold::Resource;

use crate::{
    args::{Cli, Global},
    commands,
    config::Config,
    exit::Failure,
    names::{HashKey, NameRules},
    output::Output,
    secret_file,
    store_url::{self, absolute},
};

/// The shortest key for `--sensitive`. A shorter one can be guessed.
const HASH_KEY_MIN: usize = 16;

/// Settles the options, and completes the names.
pub(crate) fn settle(cli: &mut Cli) -> Result<(), Failure> {
    let uses_store = cli.command.uses_store();
    let global = &mut cli.global;
    global.config = global.config.as_deref().map(|path| absolute(path, None));
    global.loaded = match Config::load(global.config.as_deref()) {
        // `leasehold man` and the like work with a broken file as well.
        Err(_) if !uses_store => Config::default(),
        loaded => loaded?,
    };
    take_from_file(global);
    if let Some(operator) = commands::operator(&mut cli.command) {
        *operator = operator.take().or_else(|| global.loaded.operator.clone());
    }
    if !uses_store {
        return Ok(());
    }
    commands::take_defaults(&mut cli.command, &global.loaded)?;
    let rules = name_rules(global)?;
    global.namespace.clone_from(&rules.namespace);
    commands::typed_names(&mut cli.command).into_iter().try_for_each(|name| rules.apply(name))
}

/// Settles the options for `leasehold complete-resources`, which takes a name as it is. Returns the default
/// namespace.
pub(crate) fn settle_for_completion(global: &mut Global) -> Result<Option<String>, Failure> {
    global.loaded = Config::load(global.config.as_deref())?;
    take_from_file(global);
    global.sensitive = false;
    Ok(name_rules(global)?.namespace)
}

/// Fills options that were not given from the file, and makes paths absolute.
fn take_from_file(global: &mut Global) {
    let config = &global.loaded;
    let base = config.path.as_deref().and_then(|path| path.parent());
    let path = |given: &Option<PathBuf>, in_file: &Option<PathBuf>| match given {
        Some(given) => Some(absolute(given, None)),
        None => in_file.as_ref().map(|in_file| absolute(in_file, base)),
    };
    global.password_file = path(&global.password_file, &config.password_file);
    global.hash_key_file = path(&global.hash_key_file, &config.hash_key_file);
    global.metrics_file = path(&global.metrics_file, &config.metrics_file);
    global.log_format = global.log_format.or(config.log_format);
    global.color = global.color.or(config.color);
    global.pass_secrets = global.pass_secrets || config.pass_secrets.unwrap_or(false);
    global.sensitive = global.sensitive || config.sensitive.unwrap_or(false);
}

/// What is done to the names: the default namespace, and `--sensitive`.
fn name_rules(global: &Global) -> Result<NameRules, Failure> {
    let hash_key = if global.sensitive { Some(hash_key(global)?) } else { None };
    let rules = NameRules { namespace: None, hash_key, sensitive_is_typed: global.typed.sensitive };
    if global.no_namespace {
        return Ok(rules);
    }
    let typed = global.namespace.clone().filter(|_| global.typed.namespace);
    let in_url = || -> Result<Option<String>, Failure> {
        Ok(store_url::given(global)?.and_then(|given| given.namespace))
    };
    let namespace = match typed {
        Some(typed) => Some((typed, "--namespace")),
        None => in_url()?
            .map(|namespace| (namespace, "the namespace in the URL of the store"))
            .or_else(|| global.namespace.clone().map(|namespace| (namespace, "LEASEHOLD_NAMESPACE")))
            .or_else(|| global.loaded.namespace.clone().map(|in_file| (in_file, "namespace in config.toml"))),
    };
    namespace.iter().try_for_each(|(namespace, source)| check_namespace(namespace, source))?;
    Ok(NameRules { namespace: namespace.map(|(namespace, _)| namespace), ..rules })
}

fn check_namespace(namespace: &str, source: &str) -> Result<(), Failure> {
    if namespace.is_empty() {
        return Err(Failure::usage(format!("{source} is empty"))
            .hint("leave it out, or use --no-namespace to use none at all"));
    }
    let checked = Resource::new("kind", "id").and_then(|resource| resource.in_namespace(namespace));
    checked.map(drop).map_err(|error| Failure::usage(format!("{source}: {error}")))
}

fn hash_key(global: &Global) -> Result<HashKey, Failure> {
    let Some(file) = &global.hash_key_file else {
        return Err(Failure::config("--sensitive needs a key to hash the id with").hint(
            "name a file with --hash-key-file, LEASEHOLD_HASH_KEY_FILE or hash_key_file in config.toml",
        ));
    };
    let key = secret_file::read(file, "hash key file", "--hash-key-file", Output::new(global))?;
    if key.len() < HASH_KEY_MIN {
        let message =
            format!("the hash key in {} has {} bytes, and needs {HASH_KEY_MIN}", file.display(), key.len());
        return Err(Failure::config(message)
            .hint(format!("make one with: head -c 32 /dev/urandom | base64 > {}", file.display())));
    }
    Ok(HashKey(key.into_bytes()))
}

/// Variables that the guardian and the command of `cron --on-failure` do not inherit: they hold secrets, or the command gets its
/// own.
pub(crate) const NOT_INHERITED: [&str; 3] =
    ["LEASEHOLD_PASSWORD", "LEASEHOLD_NAMESPACE", crate::typed_urls::VARIABLE];

/// The variables that a nested `leasehold` needs, in addition to `LEASEHOLD_STORE`, to mean the same store
/// and the same names after a `cd`. Secrets are among them only with `--pass-secrets`.
pub(crate) fn variables_for_command(global: &Global) -> Vec<(&'static str, OsString)> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    // A metrics file belongs to one process. A nested one uses it only if the variable says so.
    let metrics_file = global.metrics_file.as_ref().filter(|_| is_set("LEASEHOLD_METRICS_FILE"));
    let password = std::env::var_os("LEASEHOLD_PASSWORD").filter(|_| global.pass_secrets);
    let variables = [
        ("LEASEHOLD_NAMESPACE", global.namespace.clone().map(OsString::from)),
        ("LEASEHOLD_CONFIG", global.config.clone().map(OsString::from)),
        ("LEASEHOLD_HASH_KEY_FILE", global.hash_key_file.clone().map(OsString::from)),
        ("LEASEHOLD_METRICS_FILE", metrics_file.cloned().map(OsString::from)),
        ("LEASEHOLD_PASSWORD", password),
    ];
    variables.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}
