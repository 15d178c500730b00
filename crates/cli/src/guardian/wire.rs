//! What `leasehold` and the guardian say to each other: one packet each, small and of fixed layout.

use std::{
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
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

/// How the watch begins. The command's stdin travels with it: the guardian's own is the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    /// From when on someone else may be granted.
    pub(crate) deadline: Timestamp,
    /// How much before the deadline the command is told to stop.
    pub(crate) stop_before: Duration,
    /// How long it has from then on.
    pub(crate) grace: Duration,
    /// It gets the terminal.
    pub(crate) foreground: bool,
}

/// What `leasehold` wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The lease was renewed: this is the deadline now.
    Deadline(Timestamp),
    /// Send this to the command's process group.
    Signal(i32),
    /// The lease is over: end the command and all that it started.
    Stop(Manner),
    /// The command is done; what it left running is none of our business.
    ReleaseRequest,
}

/// How the command is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// TERM, and KILL when its time is up.
    Gently,
    /// KILL: someone else may be at work already.
    AtOnce,
}

/// What the guardian tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The command runs, as this process.
    Started(i32),
    /// It does not, for this reason (errno).
    NotStarted(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// The deadline is near: the command is being stopped.
    Stopping,
    /// This process below it cannot be signalled: it is another user's.
    CannotKill(i32),
    /// Nothing of it is left.
    AllDead,
}

const BEGIN: usize = 25;
const PACKET: usize = 9;

/// The other end is gone, or what it says makes no sense.
#[derive(Debug)]
pub(crate) struct Broken;

impl Begin {
    pub(crate) fn send(&self, link: impl AsFd, stdin: impl AsFd) -> io::Result<()> {
        let mut bytes = [0; BEGIN];
        bytes[..8].copy_from_slice(&self.deadline.as_nanos().to_le_bytes());
        bytes[8..16].copy_from_slice(&nanos(self.stop_before).to_le_bytes());
        bytes[16..24].copy_from_slice(&nanos(self.grace).to_le_bytes());
        bytes[24] = self.foreground.into();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let stdin = [stdin.as_fd()];
        rights.push(SendAncillaryMessage::ScmRights(&stdin));
        sendmsg(link, &[IoSlice::new(&bytes)], &mut rights, SendFlags::NOSIGNAL).map(drop)
    }

    pub(crate) fn receive(link: impl AsFd) -> Result<(Begin, OwnedFd), Broken> {
        let mut bytes = [0; BEGIN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [std::io::IoSliceMut::new(&mut bytes)];
        let got = recvmsg(link, &mut buffers, &mut rights, RecvFlags::CMSG_CLOEXEC).map_err(|_| Broken)?;
        let stdin = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let (BEGIN, Some(stdin)) = (got.bytes, stdin) else { return Err(Broken) };
        let number = |at: usize| word(&bytes[at..at + 8]);
        let begin = Begin {
            deadline: Timestamp::from_nanos(number(0)),
            stop_before: Duration::from_nanos(number(8)),
            grace: Duration::from_nanos(number(16)),
            foreground: bytes[24] != 0,
        };
        Ok((begin, stdin))
    }
}

/// Something that fits in a packet: a letter and a number.
pub(crate) trait Packet: Sized {
    fn pack(self) -> (u8, u64);
    fn unpack(letter: u8, number: u64) -> Option<Self>;

    fn send(self, link: impl AsFd) -> io::Result<()> {
        let (letter, number) = self.pack();
        let mut bytes = [letter; PACKET];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        send(link, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    }

    /// What has come, if anything has.
    fn receive(link: impl AsFd) -> Result<Option<Self>, Broken> {
        let mut bytes = [0; PACKET];
        match recv(link, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, PACKET)) => Self::unpack(bytes[0], word(&bytes[1..])).map(Some).ok_or(Broken),
            Err(io::Errno::AGAIN | io::Errno::INTR) => Ok(None),
            Ok(_) | Err(_) => Err(Broken),
        }
    }
}

impl Packet for Wish {
    fn pack(self) -> (u8, u64) {
        match self {
            Wish::Deadline(at) => (b'd', at.as_nanos()),
            Wish::Signal(number) => (b's', signed(number)),
            Wish::Stop(Manner::Gently) => (b'g', 0),
            Wish::Stop(Manner::AtOnce) => (b'o', 0),
            Wish::ReleaseRequest => (b'f', 0),
        }
    }

    fn unpack(letter: u8, number: u64) -> Option<Wish> {
        Some(match letter {
            b'd' => Wish::Deadline(Timestamp::from_nanos(number)),
            b's' => Wish::Signal(i32::try_from(number).ok()?),
            b'g' => Wish::Stop(Manner::Gently),
            b'o' => Wish::Stop(Manner::AtOnce),
            b'f' => Wish::ReleaseRequest,
            _ => return None,
        })
    }
}

impl Packet for News {
    fn pack(self) -> (u8, u64) {
        match self {
            News::Started(pid) => (b'b', signed(pid)),
            News::NotStarted(errno) => (b'n', signed(errno)),
            News::Stopped(signal) => (b't', signed(signal)),
            News::Exited(code) => (b'e', signed(code)),
            News::Killed(signal) => (b'k', signed(signal)),
            News::Stopping => (b'l', 0),
            News::CannotKill(pid) => (b'c', signed(pid)),
            News::AllDead => (b'a', 0),
        }
    }

    fn unpack(letter: u8, number: u64) -> Option<News> {
        let number = i32::try_from(number).ok()?;
        Some(match letter {
            b'b' => News::Started(number),
            b'n' => News::NotStarted(number),
            b't' => News::Stopped(number),
            b'e' => News::Exited(number),
            b'k' => News::Killed(number),
            b'l' => News::Stopping,
            b'c' => News::CannotKill(number),
            b'a' => News::AllDead,
            _ => return None,
        })
    }
}

fn signed(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(0) // none of these is ever negative
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes were cut out"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn link() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        let (here, there) = link();
        let wishes = [
            Wish::Deadline(Timestamp::from_nanos(u64::MAX - 1)),
            Wish::Signal(15),
            Wish::Stop(Manner::Gently),
            Wish::Stop(Manner::AtOnce),
            Wish::ReleaseRequest,
        ];
        for wish in wishes {
            wish.send(&here).unwrap();
            assert_eq!(Wish::receive(&there).unwrap(), Some(wish));
        }
        let news = [
            News::Started(7),
            News::NotStarted(2),
            News::Stopped(20),
            News::Exited(255),
            News::Killed(9),
            News::Stopping,
            News::CannotKill(8),
            News::AllDead,
        ];
        for news in news {
            news.send(&there).unwrap();
            assert_eq!(News::receive(&here).unwrap(), Some(news));
        }
        assert_eq!(News::receive(&here).unwrap(), None);
        drop(there);
        assert!(News::receive(&here).is_err(), "the other end is gone");
    }

    #[test]
    fn the_beginning_carries_a_file() {
        let (here, there) = link();
        let begin = Begin {
            deadline: Timestamp::from_nanos(9),
            stop_before: Duration::from_secs(5),
            grace: Duration::from_millis(4750),
            foreground: true,
        };
        let file = tempfile::tempfile().unwrap();
        begin.send(&here, &file).unwrap();
        let (heard, stdin) = Begin::receive(&there).unwrap();
        assert_eq!(heard, begin);
        let (sent, got) = (rustix::fs::fstat(&file).unwrap(), rustix::fs::fstat(&stdin).unwrap());
        assert_eq!((sent.st_dev, sent.st_ino), (got.st_dev, got.st_ino));
    }
}
