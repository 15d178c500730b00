//! The messages between `leasehold` and the guardian. Each is one packet of a fixed layout on a SEQPACKET
//! socket.
//!
//! | message | direction | bytes |
//! |---|---|---|
//! | [`StartMessage`] | to the guardian, once | deadline, `stop_before`, grace (8 each), foreground (1), variables |
//! | [`GuardianRequest`] | to the guardian | a letter and a number (1 + 8) |
//! | [`GuardianEvent`] | to `leasehold` | a letter and a number (1 + 8) |
//!
//! The first message also carries a file descriptor: the stdin of the command. Its variables are those that
//! the command gets in addition to the guardian's own, each as `NAME=VALUE` and a zero byte. Numbers are
//! little-endian. Times are nanoseconds of the boot clock.

use std::{
    ffi::{OsStr, OsString},
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    time::Duration,
};

use leasehold::Timestamp;
use rustix::{
    io,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recv, recvmsg, send, sendmsg,
    },
};

/// The first message. The stdin of the command is sent with it, because the guardian's own stdin is the
/// socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartMessage {
    /// The deadline of the lease: from then on the store may grant the resource to another client.
    pub(crate) deadline: Timestamp,
    /// How long before the deadline the command gets TERM.
    pub(crate) stop_before: Duration,
    /// The time from TERM to KILL.
    pub(crate) grace: Duration,
    /// Whether the command gets the foreground of the terminal at once.
    pub(crate) foreground: bool,
}

/// A request of `leasehold` to the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardianRequest {
    /// The lease was renewed: this is its new deadline.
    Deadline(Timestamp),
    /// Send this signal to the process group of the command.
    Signal(i32),
    /// The lease has ended: end the command and everything that it started.
    Stop(StopMode),
    /// The command has ended: exit. Processes that the command left running stay alive, as they would without
    /// us.
    Quit,
}

/// How the guardian ends the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// TERM, then KILL after the grace.
    Graceful,
    /// KILL at once: another client may already work under a new lease.
    Immediate,
}

/// What the guardian reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardianEvent {
    /// The command runs, with this pid.
    Started(i32),
    /// The command could not be started: the errno.
    NotStarted(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command exited with this code.
    Exited(i32),
    /// The command was killed by this signal.
    Killed(i32),
    /// The deadline is near: the guardian has begun to stop the command.
    Stopping,
    /// This descendant cannot be killed, because it belongs to another user.
    CannotKill(i32),
    /// The command and all its descendants have ended.
    AllDead,
}

/// The length of a [`StartMessage`] without its variables, in bytes.
const START_LENGTH: usize = 25;
/// The length of every other message in bytes.
const PACKET_LENGTH: usize = 9;

/// The other side has closed the socket or sent something that is not a message.
#[derive(Debug)]
pub(crate) struct ConnectionBroken;

/// A variable of the command: its name and its value.
pub(crate) type Variable = (OsString, OsString);

impl StartMessage {
    /// Sends the message with the stdin and the variables of the command.
    pub(crate) fn send(
        &self,
        socket: impl AsFd,
        stdin: impl AsFd,
        variables: &[(&str, OsString)],
    ) -> io::Result<()> {
        let mut bytes = vec![0; START_LENGTH];
        bytes[..8].copy_from_slice(&self.deadline.as_nanos().to_le_bytes());
        bytes[8..16].copy_from_slice(&nanos(self.stop_before).to_le_bytes());
        bytes[16..24].copy_from_slice(&nanos(self.grace).to_le_bytes());
        bytes[24] = self.foreground.into();
        for (name, value) in variables {
            bytes.extend([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let stdin = [stdin.as_fd()];
        rights.push(SendAncillaryMessage::ScmRights(&stdin));
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut rights, SendFlags::NOSIGNAL).map(drop)
    }

    /// Waits for the message.
    pub(crate) fn receive(
        socket: impl AsFd,
    ) -> Result<(StartMessage, OwnedFd, Vec<Variable>), ConnectionBroken> {
        let no_bytes: &mut [u8] = &mut [];
        let (_, length) =
            recv(&socket, no_bytes, RecvFlags::PEEK | RecvFlags::TRUNC).map_err(|_| ConnectionBroken)?;
        let mut bytes = vec![0; length];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [std::io::IoSliceMut::new(&mut bytes)];
        let got = recvmsg(socket, &mut buffers, &mut rights, RecvFlags::CMSG_CLOEXEC)
            .map_err(|_| ConnectionBroken)?;
        let stdin = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let Some(stdin) = stdin.filter(|_| got.bytes == length && length >= START_LENGTH) else {
            return Err(ConnectionBroken);
        };
        let number = |at: usize| u64_from(&bytes[at..at + 8]);
        let start = StartMessage {
            deadline: Timestamp::from_nanos(number(0)),
            stop_before: Duration::from_nanos(number(8)),
            grace: Duration::from_nanos(number(16)),
            foreground: bytes[24] != 0,
        };
        let variables = bytes[START_LENGTH..].split(|&byte| byte == 0).filter(|part| !part.is_empty());
        let variables = variables.map(variable).collect::<Option<_>>().ok_or(ConnectionBroken)?;
        Ok((start, stdin, variables))
    }
}

fn variable(bytes: &[u8]) -> Option<Variable> {
    let equals = bytes.iter().position(|&byte| byte == b'=')?;
    let (name, value) = (&bytes[..equals], &bytes[equals + 1..]);
    Some((OsString::from_vec(name.to_vec()), OsStr::from_bytes(value).to_owned()))
}

/// A message that is a letter and a number.
pub(crate) trait Packet: Sized {
    fn pack(self) -> (u8, u64);
    fn unpack(letter: u8, number: u64) -> Option<Self>;

    fn send(self, socket: impl AsFd) -> io::Result<()> {
        let (letter, number) = self.pack();
        let mut bytes = [letter; PACKET_LENGTH];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    }

    /// The next message, or `None` if none has arrived yet.
    fn receive(socket: impl AsFd) -> Result<Option<Self>, ConnectionBroken> {
        let mut bytes = [0; PACKET_LENGTH];
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, PACKET_LENGTH)) => {
                Self::unpack(bytes[0], u64_from(&bytes[1..])).map(Some).ok_or(ConnectionBroken)
            }
            Err(io::Errno::AGAIN | io::Errno::INTR) => Ok(None),
            Ok(_) | Err(_) => Err(ConnectionBroken),
        }
    }
}

impl Packet for GuardianRequest {
    fn pack(self) -> (u8, u64) {
        match self {
            GuardianRequest::Deadline(at) => (b'd', at.as_nanos()),
            GuardianRequest::Signal(number) => (b's', number_of(number)),
            GuardianRequest::Stop(StopMode::Graceful) => (b'g', 0),
            GuardianRequest::Stop(StopMode::Immediate) => (b'o', 0),
            GuardianRequest::Quit => (b'f', 0),
        }
    }

    fn unpack(letter: u8, number: u64) -> Option<GuardianRequest> {
        Some(match letter {
            b'd' => GuardianRequest::Deadline(Timestamp::from_nanos(number)),
            b's' => GuardianRequest::Signal(i32::try_from(number).ok()?),
            b'g' => GuardianRequest::Stop(StopMode::Graceful),
            b'o' => GuardianRequest::Stop(StopMode::Immediate),
            b'f' => GuardianRequest::Quit,
            _ => return None,
        })
    }
}

impl Packet for GuardianEvent {
    fn pack(self) -> (u8, u64) {
        match self {
            GuardianEvent::Started(pid) => (b'b', number_of(pid)),
            GuardianEvent::NotStarted(errno) => (b'n', number_of(errno)),
            GuardianEvent::Stopped(signal) => (b't', number_of(signal)),
            GuardianEvent::Exited(code) => (b'e', number_of(code)),
            GuardianEvent::Killed(signal) => (b'k', number_of(signal)),
            GuardianEvent::Stopping => (b'l', 0),
            GuardianEvent::CannotKill(pid) => (b'c', number_of(pid)),
            GuardianEvent::AllDead => (b'a', 0),
        }
    }

    fn unpack(letter: u8, number: u64) -> Option<GuardianEvent> {
        let number = i32::try_from(number).ok()?;
        Some(match letter {
            b'b' => GuardianEvent::Started(number),
            b'n' => GuardianEvent::NotStarted(number),
            b't' => GuardianEvent::Stopped(number),
            b'e' => GuardianEvent::Exited(number),
            b'k' => GuardianEvent::Killed(number),
            b'l' => GuardianEvent::Stopping,
            b'c' => GuardianEvent::CannotKill(number),
            b'a' => GuardianEvent::AllDead,
            _ => return None,
        })
    }
}

/// A pid, signal, exit code or errno as the number of a packet.
fn number_of(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(0) // none of these is negative
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn u64_from(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes were cut out"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (ours, theirs) = sockets();
        let requests = [
            GuardianRequest::Deadline(Timestamp::from_nanos(u64::MAX - 1)),
            GuardianRequest::Signal(15),
            GuardianRequest::Stop(StopMode::Graceful),
            GuardianRequest::Stop(StopMode::Immediate),
            GuardianRequest::Quit,
        ];
        for request in requests {
            request.send(&ours).unwrap();
            assert_eq!(GuardianRequest::receive(&theirs).unwrap(), Some(request));
        }
        let events = [
            GuardianEvent::Started(7),
            GuardianEvent::NotStarted(2),
            GuardianEvent::Stopped(20),
            GuardianEvent::Exited(255),
            GuardianEvent::Killed(9),
            GuardianEvent::Stopping,
            GuardianEvent::CannotKill(8),
            GuardianEvent::AllDead,
        ];
        for event in events {
            event.send(&theirs).unwrap();
            assert_eq!(GuardianEvent::receive(&ours).unwrap(), Some(event));
        }
        assert_eq!(GuardianEvent::receive(&ours).unwrap(), None);
        drop(theirs);
        assert!(GuardianEvent::receive(&ours).is_err(), "the other side has closed the socket");
    }

    #[test]
    fn the_start_message_carries_a_file_descriptor_and_variables() {
        let (ours, theirs) = sockets();
        let start = StartMessage {
            deadline: Timestamp::from_nanos(9),
            stop_before: Duration::from_secs(5),
            grace: Duration::from_millis(4750),
            foreground: true,
        };
        let file = tempfile::tempfile().unwrap();
        let value = OsString::from_vec(b"a=b \xff\n".repeat(10_000));
        start.send(&ours, &file, &[("ONE", value.clone()), ("EMPTY", OsString::new())]).unwrap();
        let (received, stdin, variables) = StartMessage::receive(&theirs).unwrap();
        assert_eq!(received, start);
        assert_eq!(variables, [("ONE".into(), value), ("EMPTY".into(), OsString::new())]);
        let (sent, got) = (rustix::fs::fstat(&file).unwrap(), rustix::fs::fstat(&stdin).unwrap());
        assert_eq!((sent.st_dev, sent.st_ino), (got.st_dev, got.st_ino));
        drop(ours);
        assert!(StartMessage::receive(&theirs).is_err(), "leasehold has ended before it sent one");
    }
}
