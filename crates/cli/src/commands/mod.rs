//! One file per command: what can be typed after its name, and its whole life.

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
    desk::Desk,
    exit::Failure,
    metrics_file::MetricsFile,
    output::Output,
    store::Store,
};

/// Does what was typed.
pub(crate) async fn run(cli: Cli, output: Output) -> Result<ExitCode, Failure> {
    let desk = || Desk::open(&cli.global, output);
    match cli.command {
        Command::Ls(ls) => ls.run(&desk().await?).await,
        Command::Show(show) => show.run(&desk().await?).await,
        Command::Watch(watch) => watch.run(&desk().await?).await,
        Command::Why(why) => why.run(&desk().await?).await,
        Command::Ask(ask) => ask.run(&desk().await?).await,
        Command::Evict(evict) => evict.run(&desk().await?).await,
        Command::Pause(pause) => pause.run(&desk().await?).await,
        Command::Resume(resume) => resume.run(&desk().await?).await,
        Command::Resize(resize) => resize.run(&desk().await?).await,
        Command::Audit(audit) => audit.run(&desk().await?).await,
        Command::Leaks(leaks) => leaks.run(&desk().await?).await,
        Command::Advise(advise) => advise.run(output),
        Command::Cron(cron) => cron.run(&cli.global, output).await,
        Command::Elect(elect) => elect.run(&cli.global, output).await,
        Command::Fence(fence) => fence.run(output).await,
        Command::Schema(schema) => schema.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Run(run) => run.run(&cli.global, output).await,
    }
}

/// What a command that uses the store begins with. Nothing is opened until it is asked for.
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
        // Before the first claim: the engine looks for a recorder once.
        let metrics = global.metrics_file.as_deref().map(MetricsFile::start).transpose()?;
        Ok(Context { config, store, output, metrics })
    }

    pub(crate) fn write_metrics(&self) {
        if let Some(Err(error)) = self.metrics.as_ref().map(MetricsFile::write) {
            tracing::warn!(%error, "the metrics file cannot be written");
        }
    }
}
