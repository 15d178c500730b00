//! `leasehold config show`

use std::{env, path::Path, process::ExitCode};

use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Subcommand, parser::ValueSource};
use serde::Serialize;
use toml::de::{DeTable, DeValue};

use crate::{
    args::{Cli, Global},
    config::{self, Config},
    exit::Failure,
    order,
    output::Output,
    redact::{self, UrlParts},
    screen::Screen,
    store_url,
    table::{Cell, Style, Table},
    text, typed_urls,
};

#[derive(Debug, Args)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    command: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Show every setting, its value, and where the value comes from: an option, a variable, a line of
    /// config.toml, or the default. Secrets are not shown
    Show,
}

/// The settings that have an option, a variable and a key: the key and the default. The option and the
/// variable have the same name.
const GLOBAL: [(&str, &str); 8] = [
    ("password_file", "none"),
    ("namespace", "none"),
    ("sensitive", "false"),
    ("hash_key_file", "none"),
    ("color", "auto"),
    ("log_format", "none: the log is off"),
    ("metrics_file", "none"),
    ("pass_secrets", "false"),
];

/// The settings that only the file has: the key and the default.
const IN_FILE: [(&str, &str); 20] = [
    ("run.ttl", "30s"),
    ("run.grace", "a sixth of the ttl"),
    ("run.wait", "no limit"),
    ("run.max_hold", "no limit"),
    ("run.conflict_exit_code", "75"),
    ("run.fair", "false"),
    ("run.at_least", "0s"),
    ("run.correctness", "false"),
    ("run.no_renew", "false"),
    ("run.on_ask", "none"),
    ("cron.zone", "UTC"),
    ("cron.missed", "skip"),
    ("cron.wait", "0s"),
    ("cron.at_least", "0s"),
    ("cron.ttl", "as run.ttl"),
    ("cron.max_hold", "no limit"),
    ("cron.on_failure", "none"),
    ("elect.ttl", "as run.ttl"),
    ("elect.grace", "as run.grace"),
    ("serve.sample_idle", "30s"),
];

#[derive(Debug, Serialize)]
struct Setting {
    key: &'static str,
    value: String,
    source: Source,
}

/// Where a value comes from.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "lowercase")]
enum Source {
    Option { option: String },
    Variable { variable: String },
    File { file: String, line: usize },
    Url,
    Default,
}

impl Source {
    fn text(&self) -> String {
        match self {
            Source::Option { option } => option.clone(),
            Source::Variable { variable } => variable.clone(),
            Source::File { file, line } => format!("{file}, line {line}"),
            Source::Url => "the URL of the store".to_owned(),
            Source::Default => "default".to_owned(),
        }
    }
}

impl ConfigCommand {
    pub(crate) fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        let ConfigAction::Show = self.command;
        // Parsed once more: the definition knows which values came from a variable.
        let words = typed_urls::restore(env::args_os().collect());
        let parsed = Cli::command().try_get_matches_from(words);
        let matches = parsed.map_err(|error| Failure::internal(error.to_string()))?;
        let mut global =
            Cli::from_arg_matches(&matches).map_err(|error| Failure::internal(error.to_string()))?.global;
        global.typed.store = matches.value_source("store") == Some(ValueSource::CommandLine);
        global.config = global.config.map(|path| store_url::absolute(&path, None));
        global.loaded = Config::load(global.config.as_deref())?;
        let file = FileValues::read(global.loaded.path.as_deref())?;
        let settings = Sources { matches: &matches, global: &global, file: &file }.settings()?;
        show(&settings, global.loaded.path.as_deref(), output)
    }
}

fn show(settings: &[Setting], file: Option<&Path>, output: Output) -> Result<ExitCode, Failure> {
    let screen = Screen::now();
    if output.json {
        let file = file.map(|file| file.display().to_string());
        screen.print_json(&serde_json::json!({ "config_file": file, "settings": settings }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["=SETTING", "VALUE", "FROM"]);
    for Setting { key, value, source } in settings {
        let style = if *source == Source::Default { Style::Dim } else { Style::Plain };
        let value = text::printable(&redact::redact(value)).into_owned();
        table.row([(*key).into(), Cell::styled(value, style), Cell::styled(source.text(), style)]);
    }
    screen.print_lines(&screen.lines(&table)).map(|_| ExitCode::SUCCESS)
}

/// The values of `config.toml`, and their lines.
#[derive(Default)]
struct FileValues {
    path: String,
    /// The key, such as `run.ttl`; the value; the line.
    values: Vec<(String, String, usize)>,
}

impl FileValues {
    fn read(path: Option<&Path>) -> Result<FileValues, Failure> {
        let Some(path) = path else { return Ok(FileValues::default()) };
        let failure = |error: String| Failure::config(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| failure(error.to_string()))?;
        let table = DeTable::parse(&text).map_err(|error| failure(error.message().to_owned()))?;
        let mut found = FileValues { path: path.display().to_string(), values: Vec::new() };
        found.add("", table.get_ref(), &text);
        Ok(found)
    }

    fn add(&mut self, before: &str, table: &DeTable<'_>, text: &str) {
        for (key, value) in table {
            let name = format!("{before}{}", key.get_ref());
            let shown = match value.get_ref() {
                DeValue::Table(inner) => {
                    self.add(&format!("{name}."), inner, text);
                    continue;
                }
                DeValue::String(value) => value.to_string(),
                _ => text[value.span()].to_owned(),
            };
            self.values.push((name, shown, config::line_of(text, key.span().start)));
        }
    }

    fn get(&self, key: &str) -> Option<(String, Source)> {
        let (_, value, line) = self.values.iter().find(|(name, ..)| name == key)?;
        Some((value.clone(), Source::File { file: self.path.clone(), line: *line }))
    }
}

struct Sources<'a> {
    matches: &'a ArgMatches,
    global: &'a Global,
    file: &'a FileValues,
}

impl Sources<'_> {
    fn settings(&self) -> Result<Vec<Setting>, Failure> {
        let mut settings = vec![self.store()?, self.config(), self.password()];
        for (key, default) in GLOBAL {
            let (value, source) = self
                .given(key)
                .or_else(|| self.namespace_in_url().filter(|_| key == "namespace"))
                .or_else(|| self.file.get(key))
                .unwrap_or_else(|| (default.to_owned(), Source::Default));
            let value = self.absolute_if_path(key, value, &source);
            settings.push(Setting { key, value, source });
        }
        settings.push(self.operator());
        for (key, default) in IN_FILE {
            let (value, source) = self.file.get(key).unwrap_or_else(|| (default.to_owned(), Source::Default));
            settings.push(Setting { key, value, source });
        }
        Ok(settings)
    }

    /// The value of an option or of its variable.
    fn given(&self, key: &str) -> Option<(String, Source)> {
        let value = self.matches.get_raw(key)?.next()?.to_string_lossy().into_owned();
        let source = match self.matches.value_source(key)? {
            ValueSource::CommandLine => Source::Option { option: format!("--{}", key.replace('_', "-")) },
            ValueSource::EnvVariable => {
                // `--namespace` is above the URL, and the URL above the variable.
                if key == "namespace" && self.namespace_in_url().is_some() {
                    return None;
                }
                Source::Variable { variable: format!("LEASEHOLD_{}", key.to_uppercase()) }
            }
            _ => return None,
        };
        Some((value, source))
    }

    fn namespace_in_url(&self) -> Option<(String, Source)> {
        let given = store_url::given(self.global).ok().flatten()?;
        given.namespace.map(|namespace| (namespace, Source::Url))
    }

    fn absolute_if_path(&self, key: &str, value: String, source: &Source) -> String {
        if !key.ends_with("_file") || *source == Source::Default {
            return value;
        }
        let base = Path::new(&self.file.path).parent().filter(|_| matches!(source, Source::File { .. }));
        store_url::absolute(Path::new(&value), base).display().to_string()
    }

    fn store(&self) -> Result<Setting, Failure> {
        let source = self.given("store").or_else(|| self.file.get("store")).map(|(_, source)| source);
        let from_directory = || Source::Variable { variable: "LEASEHOLD_DIR".to_owned() };
        let default = if env::var_os("LEASEHOLD_DIR").is_some() { from_directory() } else { Source::Default };
        let url = match store_url::given(self.global)? {
            Some(given) => given.url,
            None => store_url::file_url(&store_url::default_file()?),
        };
        let shown = UrlParts::of(&url).map_or(url.clone(), |parts| parts.stripped());
        Ok(Setting { key: "store", value: shown, source: source.unwrap_or(default) })
    }

    fn config(&self) -> Setting {
        let path = self.global.loaded.path.as_ref().map(|path| path.display().to_string());
        let source = self.given("config").map_or(Source::Default, |(_, source)| source);
        Setting { key: "config", value: path.unwrap_or_else(|| "none".to_owned()), source }
    }

    /// The name of the operator. Its option is one of the operator's commands.
    fn operator(&self) -> Setting {
        let variable = "LEASEHOLD_OPERATOR";
        let in_variable = env::var(variable).ok();
        let in_variable =
            in_variable.map(|value| (value, Source::Variable { variable: variable.to_owned() }));
        let given = in_variable.or_else(|| self.file.get("operator"));
        let (value, source) = given.unwrap_or_else(|| (order::operator(None), Source::Default));
        Setting { key: "operator", value, source }
    }

    /// Whether there is a password, and never the password.
    fn password(&self) -> Setting {
        let in_url = store_url::given(self.global).ok().flatten();
        let in_url = in_url.is_some_and(|given| {
            UrlParts::of(&given.url).is_some_and(|parts| parts.secrets().next().is_some())
        });
        let variable = "LEASEHOLD_PASSWORD";
        let source = if in_url {
            Source::Url
        } else if let Some((_, source)) =
            self.given("password_file").or_else(|| self.file.get("password_file"))
        {
            source
        } else if env::var_os(variable).is_some_and(|password| !password.is_empty()) {
            Source::Variable { variable: variable.to_owned() }
        } else {
            Source::Default
        };
        let value = if source == Source::Default { "none" } else { "(hidden)" };
        Setting { key: "password", value: value.to_owned(), source }
    }
}
