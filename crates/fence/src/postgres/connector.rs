//! Opens connections, whatever kind of TLS the program uses.
#![expect(
    clippy::disallowed_methods,
    reason = "there is no engine here: time and tasks come from the program's own tokio"
)]

use leasehold_core::async_trait;
use leasehold_support::postgres::{check_request_id, process_at_startup};
use tokio::task::AbortHandle;
use tokio_postgres::{
    CancelToken, Client, Config, Socket,
    tls::{MakeTlsConnect, TlsConnect},
    types::Type,
};

use super::request_id;

/// A connection that was opened.
pub(super) struct OpenedConnection {
    pub(super) client: Client,
    /// Ends the task that reads from the socket, and so closes the connection.
    pub(super) driver: AbortHandle,
    pub(super) is_direct: bool,
}

/// Opens connections to one database. Hides the type of TLS.
#[async_trait]
pub(super) trait Connector: Send + Sync {
    /// Connects with this password, or with the password of the settings if it is `None`.
    async fn connect(&self, password: Option<String>) -> Result<OpenedConnection, tokio_postgres::Error>;

    /// Cancels the statement that a connection waits for.
    async fn cancel(&self, token: CancelToken);
}

/// Opens connections with the TLS connector of the program.
pub(super) struct TlsConnector<T> {
    pub(super) settings: Config,
    pub(super) tls: T,
}

#[async_trait]
impl<T> Connector for TlsConnector<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    async fn connect(&self, password: Option<String>) -> Result<OpenedConnection, tokio_postgres::Error> {
        let mut settings = self.settings.clone();
        if let Some(password) = password {
            settings.password(password);
        }
        let (client, connection) = settings.connect(self.tls.clone()).await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(target: "leasehold", %error, "a connection to the database ended");
            }
        });
        let is_direct = is_direct(&client).await?;
        Ok(OpenedConnection { client, driver: driver.abort_handle(), is_direct })
    }

    async fn cancel(&self, token: CancelToken) {
        if let Err(error) = token.cancel_query(self.tls.clone()).await {
            tracing::debug!(target: "leasehold", %error, "cannot cancel the statement of a silent connection");
        }
    }
}

/// Whether the process that serves this connection is the one that executes its statements, so that no pool is in between.
/// ADR 0034.
async fn is_direct(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let request = request_id::next();
    let number = request.get().cast_signed();
    let rows = client.query_typed("SELECT pg_backend_pid(), $1::bigint", &[(&number, Type::INT8)]).await?;
    let process = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
    let is_ours = check_request_id(&rows, request).is_ok();
    Ok(is_ours && process.is_some() && process == process_at_startup(client).await)
}
