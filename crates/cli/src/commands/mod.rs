//! The commands: one file or folder each, with its arguments and all that it does.

pub(crate) mod advise;
pub(crate) mod ask;
pub(crate) mod audit;
pub(crate) mod completions;
pub(crate) mod cron;
pub(crate) mod elect;
pub(crate) mod evict;
pub(crate) mod fence;
pub(crate) mod leaks;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod pause;
pub(crate) mod redlock;
pub(crate) mod resize;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod show;
pub(crate) mod watch;
pub(crate) mod why;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command, Global},
    config::Config,
    exit::Failure,
    metrics_file::MetricsFile,
    output::Output,
    session::OperatorSession,
    store::Store,
};

/// Runs the command that was typed.
pub(crate) async fn run(cli: Cli, output: Output) -> Result<ExitCode, Failure> {
    let session = || OperatorSession::open(&cli.global, output);
    match cli.command {
        Command::Ls(ls) => ls.run(&session().await?).await,
        Command::Show(show) => show.run(&session().await?).await,
        Command::Watch(watch) => watch.run(&session().await?).await,
        Command::Why(why) => why.run(&session().await?).await,
        Command::Ask(ask) => ask.run(&session().await?).await,
        Command::Evict(evict) => evict.run(&session().await?).await,
        Command::Pause(pause) => pause.run(&session().await?).await,
        Command::Resume(resume) => resume.run(&session().await?).await,
        Command::Resize(resize) => resize.run(&session().await?).await,
        Command::Audit(audit) => audit.run(&session().await?).await,
        Command::Leaks(leaks) => leaks.run(&session().await?).await,
        Command::Advise(advise) => advise.run(output),
        Command::Cron(cron) => cron.run(&cli.global, output).await,
        Command::Elect(elect) => elect.run(&cli.global, output).await,
        Command::Fence(fence) => fence.run(output).await,
        Command::Redlock(redlock) => redlock.run(&cli.global, output).await,
        Command::Schema(schema) => schema.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Run(run) => run.run(&cli.global, output).await,
    }
}

/// What a command that uses the store needs. The store is not opened yet.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) output: Output,
    pub(crate) metrics: Option<MetricsFile>,
}

impl Context {
    pub(crate) fn new(global: &Global, output: Output) -> Result<Context, Failure> {
        let config = Config::load(global)?;
        let store = Store::choose(global, &config)?;
        // Before the client is made: the engine looks for a metrics recorder only once.
        let metrics = global.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
        Ok(Context { config, store, output, metrics })
    }

    pub(crate) fn write_metrics(&self) {
        if let Some(Err(error)) = self.metrics.as_ref().map(MetricsFile::write) {
            tracing::warn!(%error, "the metrics file cannot be written");
        }
    }
}
