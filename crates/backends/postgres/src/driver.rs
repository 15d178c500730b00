//! How `tokio-postgres` is set up, and the task that reads from the socket.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_core::{Environment, Result};
use leasehold_support::race::{Either, first};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection as Socket, NoTls, Notification,
    config::{SslMode, TargetSessionAttrs},
    error::DbError,
};

use crate::{config::Config, connection::Activity, error, tls};

/// When the kernel begins to probe a connection without traffic, how often, and how many probes may be lost.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// The name that `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "leasehold";
/// The function of the server that warns when the wait for a synchronous standby was cancelled.
const STANDBY_WAIT: &str = "SyncRepWaitForLSN";

/// Connects, and starts the task that reads from the socket.
pub(crate) async fn connect(
    config: &Config,
    environment: &Arc<dyn Environment>,
    activity: &Arc<Activity>,
    notifications: Option<mpsc::UnboundedSender<Notification>>,
) -> Result<Client> {
    let settings = settings(config)?;
    let failed = |error: tokio_postgres::Error| error::of_connect(&error, &config.host_list());
    // The two kinds of sockets have different types, so the branches cannot share the code after `connect`.
    if config.tls {
        let (client, socket) = settings.connect(tls::connector(config)?).await.map_err(failed)?;
        environment.spawn(Box::pin(drive(socket, Arc::clone(activity), notifications, config.host_list())));
        Ok(client)
    } else {
        let (client, socket) = settings.connect(NoTls).await.map_err(failed)?;
        environment.spawn(Box::pin(drive(socket, Arc::clone(activity), notifications, config.host_list())));
        Ok(client)
    }
}

fn settings(config: &Config) -> Result<tokio_postgres::Config> {
    let mut settings = tokio_postgres::Config::new();
    for (host, port) in &config.hosts {
        settings.host(host).port(*port);
    }
    settings.user(&config.user).dbname(&config.database).application_name(APPLICATION_NAME);
    if let Some(password) = config.password.current()? {
        settings.password(password);
    }
    // Never `Prefer`: it would go on without protection if the server has no TLS.
    settings.ssl_mode(if config.tls { SslMode::Require } else { SslMode::Disable });
    // Passes over standbys: with several hosts, the driver goes on to the next one.
    let role = if config.any_role { TargetSessionAttrs::Any } else { TargetSessionAttrs::ReadWrite };
    settings
        .target_session_attrs(role)
        .connect_timeout(config.connect_timeout)
        // A host that is gone sends nothing: only the kernel can find out. ADR 0022.
        .tcp_user_timeout(config.silence_max())
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(KEEPALIVE_INTERVAL)
        .keepalives_retries(KEEPALIVE_RETRIES);
    Ok(settings)
}

/// Notifies [`Activity::ended`] when it is dropped, so that every way out of [`drive`] does.
struct NotifyEnded(Arc<Activity>);

impl Drop for NotifyEnded {
    fn drop(&mut self) {
        self.0.ended.notify_one();
    }
}

/// Moves bytes until the connection ends. Handles messages that are no reply: notifications and warnings.
async fn drive<S, T>(
    mut socket: Socket<S, T>,
    activity: Arc<Activity>,
    notifications: Option<mpsc::UnboundedSender<Notification>>,
    hosts: String,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let _ended = NotifyEnded(Arc::clone(&activity));
    loop {
        let message = match first(poll_fn(|cx| socket.poll_message(cx)), activity.close.notified()).await {
            Either::Left(Some(Ok(message))) => message,
            Either::Left(Some(Err(error))) => {
                tracing::debug!(error = %error::of_statement(&error, &hosts), "a connection to PostgreSQL ended");
                return;
            }
            Either::Left(None) | Either::Right(()) => return,
        };
        match message {
            AsyncMessage::Notice(notice) if is_unconfirmed(&notice) => {
                activity.unconfirmed_commits.fetch_add(1, Ordering::Relaxed);
            }
            AsyncMessage::Notification(notification) => {
                // The receiver is dropped only shortly before the connection ends.
                let _ = notifications.as_ref().map(|receiver| receiver.send(notification));
            }
            _ => {}
        }
    }
}

/// Whether the wait for a synchronous standby was cancelled. The text of the warning is translated; the name of the
/// server's function is not.
fn is_unconfirmed(notice: &DbError) -> bool {
    notice.routine() == Some(STANDBY_WAIT)
}
