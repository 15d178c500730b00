//! The commands: one file or folder each, with its arguments and all that it does.

pub(crate) mod acquire;
pub(crate) mod advise;
pub(crate) mod ask;
pub(crate) mod audit;
pub(crate) mod complete_resources;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cron;
pub(crate) mod elect;
pub(crate) mod evict;
pub(crate) mod fence;
pub(crate) mod leaks;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod pause;
pub(crate) mod redlock;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod resize;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod show;
#[cfg(feature = "serve")]
pub(crate) mod token;
pub(crate) mod watch;
pub(crate) mod why;

use std::{ffi::OsString, process::ExitCode, sync::Arc};

use leasehold::Backend;

use crate::{
    args::{Cli, Command, Global},
    config::Config,
    exit::Failure,
    metrics_file::MetricsFile,
    names::TypedName,
    output::Output,
    session::OperatorSession,
    settings,
    store::Store,
};

/// Runs the command that was typed.
pub(crate) async fn run(cli: Cli, output: Output) -> Result<ExitCode, Failure> {
    let reading = || OperatorSession::open(&cli.global, output, Access::Read);
    let writing = || OperatorSession::open(&cli.global, output, Access::Write);
    match cli.command {
        Command::Ls(ls) => ls.run(&reading().await?).await,
        Command::Show(show) => show.run(&reading().await?).await,
        Command::Watch(watch) => watch.run(&reading().await?).await,
        Command::Why(why) => why.run(&reading().await?).await,
        Command::Ask(ask) => ask.run(&reading().await?).await,
        Command::Evict(evict) => evict.run(&reading().await?).await,
        // A resource can be paused before anything was leased.
        Command::Pause(pause) => pause.run(&writing().await?).await,
        Command::Resume(resume) => resume.run(&reading().await?).await,
        Command::Resize(resize) => resize.run(&reading().await?).await,
        Command::Audit(audit) => audit.run(&reading().await?).await,
        Command::Leaks(leaks) => leaks.run(&reading().await?).await,
        Command::Advise(advise) => advise.run(output),
        Command::Cron(cron) => cron.run(&cli.global, output).await,
        Command::Elect(elect) => elect.run(&cli.global, output).await,
        Command::Fence(fence) => fence.run(output).await,
        Command::Redlock(redlock) => redlock.run(&cli.global, output).await,
        Command::Schema(schema) => schema.run(),
        Command::Config(config) => config.run(output),
        Command::CompleteResources(complete) => complete.run(cli.global).await,
        Command::Serve(serve) => serve.run(&cli.global, output).await,
        #[cfg(feature = "serve")]
        Command::Token(token) => token.run(output),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Run(run) => run.run(&cli.global, output).await,
        Command::Acquire(acquire) => acquire.run(&cli.global, output).await,
        Command::Renew(renew) => renew.run(&cli.global, output).await,
        Command::Release(release) => release.run(&cli.global, output).await,
    }
}

impl Command {
    /// Whether the command uses the store, and so the whole configuration.
    pub(crate) fn uses_store(&self) -> bool {
        use Command::{Advise, CompleteResources, Completions, Config, Fence, Man, Schema};
        #[cfg(feature = "serve")]
        if matches!(self, Command::Token(_)) {
            return false;
        }
        !matches!(
            self,
            Advise(_) | CompleteResources(_) | Completions(_) | Config(_) | Fence(_) | Man(_) | Schema(_)
        )
    }

    /// URLs in the command line that may contain a password.
    pub(crate) fn typed_urls(&self) -> Option<&str> {
        match self {
            Command::Fence(fence) => fence.database(),
            Command::Redlock(redlock) => redlock.url(),
            _ => None,
        }
    }
}

/// The names of resources in the command line.
pub(crate) fn typed_names(command: &mut Command) -> Vec<TypedName<'_>> {
    match command {
        Command::Run(run) => run.typed_names(),
        Command::Acquire(acquire) => vec![TypedName::One(&mut acquire.resource)],
        Command::Renew(renew) => renew.lease.resource.iter_mut().map(TypedName::One).collect(),
        Command::Release(release) => release.lease.resource.iter_mut().map(TypedName::One).collect(),
        Command::Elect(elect) => vec![TypedName::One(&mut elect.resource)],
        Command::Cron(cron) => cron.job.iter_mut().map(TypedName::Job).collect(),
        Command::Ls(ls) => vec![TypedName::Prefix(&mut ls.prefix)],
        Command::Audit(audit) => vec![TypedName::Prefix(&mut audit.prefix)],
        Command::Leaks(leaks) => vec![TypedName::Prefix(&mut leaks.prefix)],
        Command::Watch(watch) => vec![TypedName::Scope(&mut watch.scope)],
        Command::Show(show) => vec![TypedName::One(&mut show.resource)],
        Command::Why(why) => vec![TypedName::One(&mut why.resource)],
        Command::Ask(ask) => vec![TypedName::One(&mut ask.order.resource)],
        Command::Evict(evict) => vec![TypedName::One(&mut evict.order.resource)],
        Command::Pause(pause) => vec![TypedName::One(&mut pause.order.resource)],
        Command::Resume(resume) => vec![TypedName::One(&mut resume.order.resource)],
        Command::Resize(resize) => vec![TypedName::One(&mut resize.order.resource)],
        _ => Vec::new(),
    }
}

/// The name of the operator in the command line (`--by-whom`), if the command has one.
pub(crate) fn operator(command: &mut Command) -> Option<&mut Option<String>> {
    match command {
        Command::Ask(ask) => Some(&mut ask.order.by_whom),
        Command::Evict(evict) => Some(&mut evict.order.by_whom),
        Command::Pause(pause) => Some(&mut pause.order.by_whom),
        Command::Resume(resume) => Some(&mut resume.order.by_whom),
        Command::Resize(resize) => Some(&mut resize.order.by_whom),
        Command::Fence(fence) => fence.operator(),
        _ => None,
    }
}

/// Fills the options of `run`, `acquire`, `cron` and `elect` that were not typed from `config.toml`.
pub(crate) fn take_defaults(command: &mut Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::Run(run) => run.take_defaults(&config.run)?,
        Command::Acquire(acquire) => acquire.take_defaults(&config.run),
        Command::Cron(cron) => cron.take_defaults(&config.cron)?,
        Command::Elect(elect) => elect.take_defaults(&config.elect),
        Command::Serve(serve) => serve.take_defaults(&config.serve),
        _ => {}
    }
    Ok(())
}

/// What a command does with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads, or changes what is there: a store that is missing is not created.
    Read,
    /// Creates the store if it is missing.
    Write,
}

/// What a command that uses the store needs. The store is not opened yet.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) output: Output,
    pub(crate) metrics: Option<MetricsFile>,
    /// See [`Context::variables`].
    variables: Vec<(&'static str, OsString)>,
}

impl Context {
    pub(crate) fn new(global: &Global, output: Output) -> Result<Context, Failure> {
        Context::on(Store::choose(global)?, global, output)
    }

    /// The same on this store, whatever the options say.
    pub(crate) fn on(store: Store, global: &Global, output: Output) -> Result<Context, Failure> {
        // Before the client is made: the engine looks for a metrics recorder only once.
        let metrics = global.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
        let mut variables = settings::variables_for_command(global);
        if let Some(url) = store.with_secrets().filter(|_| global.pass_secrets) {
            variables.push(("LEASEHOLD_STORE", url.into()));
        }
        Ok(Context { config: global.loaded.clone(), store, output, metrics, variables })
    }

    /// The variables with which a nested `leasehold` means the same store and the same names, wherever it runs. Secrets are among
    /// them only with `--pass-secrets`.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut all = vec![("LEASEHOLD_STORE", self.store.shown().into())];
        all.extend(self.store.password_file().map(|file| ("LEASEHOLD_PASSWORD_FILE", file.into())));
        all.extend(self.variables.iter().cloned());
        all
    }

    /// Opens the store.
    pub(crate) async fn open(&self, access: Access) -> Result<Arc<dyn Backend>, Failure> {
        match access {
            Access::Read => self.store.open_to_read(self.output).await,
            Access::Write => self.store.open().await,
        }
    }

    pub(crate) fn write_metrics(&self) {
        if let Some(Err(error)) = self.metrics.as_ref().map(MetricsFile::write) {
            tracing::warn!(%error, "the metrics file cannot be written");
        }
    }
}
