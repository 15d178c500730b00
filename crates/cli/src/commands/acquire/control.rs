//! How `leasehold release` reaches the keeper of a lease.
//!
//! The keeper must know that its lease was released: otherwise its next renewal finds the lease gone, and it signals its process.
//! So it listens on a socket in the abstract namespace, which needs no file. The name contains the hash of the owner token; the
//! message is the owner token itself, which proves that the sender may release. The reply is one line.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream},
    },
    time::Duration,
};

use leasehold::{OwnerHash, OwnerToken, Released};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};

/// How long one side waits for the other.
const REPLY_WITHIN: Duration = Duration::from_secs(10);
/// The length of an owner token.
const OWNER_LENGTH: usize = 32;

fn address(owner: OwnerToken) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("leasehold/keeper/{}", OwnerHash::from(owner)))
}

/// The keeper's side.
pub(super) struct Control {
    listener: UnixListener,
    owner: OwnerToken,
}

impl Control {
    pub(super) fn listen(owner: OwnerToken) -> io::Result<Control> {
        let listener = StdListener::bind_addr(&address(owner)?)?;
        listener.set_nonblocking(true)?;
        Ok(Control { listener: UnixListener::from_std(listener)?, owner })
    }

    /// Resolves when the owner asks to release the lease.
    ///
    /// # Cancel safety
    /// A request that is being read is dropped, and its sender is told nothing.
    pub(super) async fn release_requested(&self) -> ReleaseReply {
        loop {
            let Ok((mut stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_secs(1)).await; // no files left: try again
                continue;
            };
            let mut text = [0; OWNER_LENGTH];
            let read = tokio::time::timeout(REPLY_WITHIN, stream.read_exact(&mut text)).await;
            if matches!(read, Ok(Ok(_))) && text == *self.owner.reveal().as_bytes() {
                return ReleaseReply(stream);
            }
        }
    }
}

/// Where the reply to a release goes.
pub(super) struct ReleaseReply(UnixStream);

impl ReleaseReply {
    pub(super) async fn send(mut self, released: &leasehold::Result<Released>) {
        let line = match released {
            Ok(released) => released.as_str().to_owned(),
            Err(error) => format!("failed {error}"),
        };
        let _ = self.0.write_all(line.as_bytes()).await; // the sender may have gone
        let _ = self.0.shutdown().await;
    }
}

/// What the keeper of a lease replied to a request to release it.
pub(crate) enum KeeperReply {
    /// This lease has no keeper on this host.
    NoKeeper,
    Released,
    AlreadyGone,
    Failed(String),
}

/// Asks the keeper of this lease to release it.
pub(crate) async fn ask_to_release(owner: OwnerToken) -> KeeperReply {
    let connected = address(owner).and_then(|address| StdStream::connect_addr(&address));
    let Ok(stream) = connected else { return KeeperReply::NoKeeper };
    let replied = tokio::time::timeout(REPLY_WITHIN, exchange(stream, owner)).await;
    match replied.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(None) => KeeperReply::NoKeeper,
        Ok(Some(line)) if line == Released::AlreadyGone.as_str() => KeeperReply::AlreadyGone,
        Ok(Some(line)) if line == Released::Now.as_str() || line == Released::StillHeld.as_str() => {
            KeeperReply::Released
        }
        Ok(Some(line)) => KeeperReply::Failed(line.strip_prefix("failed ").unwrap_or(&line).to_owned()),
        Err(error) => KeeperReply::Failed(format!("the keeper of this lease did not reply: {error}")),
    }
}

/// `None` if the other side belongs to another user: an owner token is not for them.
async fn exchange(stream: StdStream, owner: OwnerToken) -> io::Result<Option<String>> {
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    let (peer, us) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if peer != us && peer != 0 && us != 0 {
        return Ok(None);
    }
    stream.write_all(owner.reveal().as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    if reply.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(reply))
}
