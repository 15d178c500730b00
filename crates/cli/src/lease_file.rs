//! The lease file of `leasehold acquire -o`: all that `renew` and `release` need, in a form that a shell can read.
//!
//! ```text
//! # leasehold lease file 1: …
//! LEASEHOLD_STATE=held
//! LEASEHOLD_DEADLINE=2026-01-02T03:04:05.678Z
//! LEASEHOLD_LEASE='1|1|OWNER|TOKEN|TTL|KEY|STORE'
//! LEASEHOLD_TOKEN='7'
//! …
//! ```
//!
//! The owner token in it is a secret, so the file is created with the mode 0600. It never goes through a symbolic link, and never
//! replaces a file other than a lease file of this user whose lease has ended. It is replaced as a whole, so a reader never sees a
//! part.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use leasehold::{Clock as _, Pass, SystemClock, WallTime};
use rustix::{
    fs::{Access, CWD, Mode, OFlags, RenameFlags, access, open, renameat_with},
    io::Errno,
};

use crate::{claim::nested::HeldLine, exit::Failure, text};

/// The start of the first line.
const SIGNATURE: &str = "# leasehold lease file 1";
/// A lease file is never longer than this.
const LENGTH_MAX: u64 = 64 * 1024;

/// A lease as it stands in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    pub(crate) held: HeldLine,
    /// Until when no other claim is granted, by the calendar clock of this host.
    pub(crate) deadline: WallTime,
    pub(crate) state: RecordedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedState {
    Held,
    /// It has ended, and was not released by its owner.
    Lost,
}

/// What stands in the place of a lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Lease(LeaseRecord),
    /// A lease file whose lease was released. It holds no secret.
    Released,
    /// Something else, and what it is.
    NotOurs(&'static str),
}

impl LeaseRecord {
    fn write(&self) -> String {
        let (held, store) = (&self.held, &self.held.store);
        let state = match self.state {
            RecordedState::Held => "held",
            RecordedState::Lost => "lost",
        };
        let token = held.token.parse().ok().filter(|_| held.share.is_exclusive());
        let pass =
            token.map(|token| Pass::new(held.resource.clone(), token).owned_by(held.owner).to_string());
        let values = [
            ("DEADLINE", text::exact_time(self.deadline)),
            ("LEASE", held.write()),
            ("TOKEN", token.map_or(String::new(), |token| token.to_string())),
            ("PASS", pass.unwrap_or_default()),
            ("OWNER", held.owner.reveal()),
            ("STORE", store.clone()),
            ("RESOURCE", held.resource.to_string()),
        ];
        let lines = values.map(|(name, value)| format!("LEASEHOLD_{name}={}\n", text::single_quoted(&value)));
        format!(
            "{SIGNATURE}: a secret. leasehold renew -f and leasehold release -f read it\nLEASEHOLD_STATE={state}\n{}",
            lines.concat()
        )
    }

    fn has_ended(&self) -> bool {
        self.state == RecordedState::Lost || self.deadline < SystemClock.wall()
    }
}

/// The text of a lease file whose lease was released.
fn released_text(resource: &str) -> String {
    let resource = text::single_quoted(resource);
    format!("{SIGNATURE}: released\nLEASEHOLD_STATE=released\nLEASEHOLD_RESOURCE={resource}\n")
}

impl Found {
    /// Reads what stands there. Symbolic links are not followed.
    pub(crate) fn at(path: &Path) -> io::Result<Found> {
        // Without waiting for the writer of a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(Errno::LOOP) => return Ok(Found::NotOurs("a symbolic link")),
            Err(Errno::ACCESS | Errno::NXIO) => return Ok(Found::NotOurs("something that cannot be read")),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Found::NotOurs("not a file"));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Ok(Found::NotOurs("a file of another user"));
        }
        let mut bytes = Vec::new();
        file.take(LENGTH_MAX).read_to_end(&mut bytes)?;
        Ok(Found::by_text(&String::from_utf8_lossy(&bytes)))
    }

    fn by_text(text: &str) -> Found {
        let not_ours = Found::NotOurs("not a lease file of leasehold");
        if !text.starts_with(SIGNATURE) {
            return not_ours;
        }
        // The first line counts: the URL of the store and the name of the resource, which come last, may contain almost anything.
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let state = match value("LEASEHOLD_STATE=") {
            Some("released") => return Found::Released,
            Some("lost") => RecordedState::Lost,
            _ => RecordedState::Held,
        };
        let read = |name| value(name).and_then(text::without_single_quotes);
        let deadline = read("LEASEHOLD_DEADLINE=").and_then(|text| humantime::parse_rfc3339(&text).ok());
        let since_1970 = deadline.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let held = read("LEASEHOLD_LEASE=").and_then(|line| HeldLine::read(&line));
        match (held, since_1970) {
            (Some(held), Some(deadline)) => {
                Found::Lease(LeaseRecord { held, deadline: WallTime::default().after(deadline), state })
            }
            _ => not_ours,
        }
    }
}

/// The file of `acquire -o`, `renew -f` or `release -f`.
#[derive(Clone, Debug)]
pub(crate) struct LeaseFile {
    path: PathBuf,
}

impl LeaseFile {
    pub(crate) fn new(path: &Path) -> io::Result<LeaseFile> {
        // The keeper changes its directory.
        Ok(LeaseFile { path: std::path::absolute(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if a lease like this could not be written here: before the claim, so that nothing is acquired in vain.
    pub(crate) fn check(&self, wanted: &WantedLease<'_>) -> Result<(), Failure> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        access(directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| self.failure(&format!("cannot be written: {}", io::Error::from(error))))?;
        self.may_be_replaced(wanted).map(drop)
    }

    /// Whether there is a file to replace. Fails if it must not be replaced.
    fn may_be_replaced(&self, wanted: &WantedLease<'_>) -> Result<bool, Failure> {
        match Found::at(&self.path) {
            Ok(Found::Nothing) => Ok(false),
            Ok(Found::Released) => Ok(true),
            // The claim is granted only when this lease has ended.
            Ok(Found::Lease(record)) if record.has_ended() || wanted.excludes(&record.held) => Ok(true),
            Ok(Found::Lease(record)) => {
                let (resource, until) = (&record.held.resource, text::time(record.deadline));
                let what = format!("has a lease of {resource} that lasts until {until}");
                Err(self.failure(&what).hint("release it with leasehold release -f, or name another file"))
            }
            Ok(Found::NotOurs(what)) => Err(self
                .failure(&format!("is {what}: it is left as it is"))
                .hint("remove it, or name another file")),
            Err(error) => Err(self.failure(&format!("cannot be used: {error}"))),
        }
    }

    fn failure(&self, what: &str) -> Failure {
        Failure::config(format!("the lease file {} {what}", self.path.display())).hint("name another file")
    }

    /// Writes the file after the grant.
    pub(crate) fn create(&self, record: &LeaseRecord, wanted: &WantedLease<'_>) -> Result<(), Failure> {
        let replace = self.may_be_replaced(wanted)?;
        self.put(&record.write(), replace)
            .map_err(|error| self.failure(&format!("cannot be written: {error}")))
    }

    /// Writes the new state of this lease, if the file is still that of this lease.
    pub(crate) fn update(&self, record: &LeaseRecord) -> io::Result<()> {
        match Found::at(&self.path)? {
            Found::Lease(found) if found.held.owner == record.held.owner => self.put(&record.write(), true),
            _ => Ok(()),
        }
    }

    /// Marks the lease as released, and removes its secrets. Only if the file is still that of this lease.
    pub(crate) fn released(&self, held: &HeldLine) -> io::Result<()> {
        match Found::at(&self.path)? {
            Found::Lease(found) if found.held.owner == held.owner => {
                self.put(&released_text(&held.resource.to_string()), true)
            }
            _ => Ok(()),
        }
    }

    /// Puts a file with this text in place, as a whole.
    fn put(&self, text: &str, replace: bool) -> io::Result<()> {
        let mut name = std::ffi::OsString::from(".");
        name.push(self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        name.push(format!(".{}.{}", std::process::id(), SystemClock.wall().as_micros()));
        let temporary = self.path.with_file_name(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let moved = file.write_all(text.as_bytes()).and_then(|()| match replace {
            true => fs::rename(&temporary, &self.path),
            false => move_without_replacing(&temporary, &self.path),
        });
        moved.inspect_err(|_| drop(fs::remove_file(&temporary)))
    }
}

/// Never over a file that has appeared meanwhile.
fn move_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems do not know this flag.
        Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(from, to).and_then(|()| fs::remove_file(from)),
        moved => moved.map_err(Into::into),
    }
}

/// The lease that is to be written to the file.
pub(crate) struct WantedLease<'a> {
    pub(crate) resource: &'a leasehold::Resource,
    pub(crate) store: &'a str,
    pub(crate) is_exclusive: bool,
}

impl WantedLease<'_> {
    /// Whether this lease and the other one cannot be held at the same time.
    fn excludes(&self, other: &HeldLine) -> bool {
        *self.resource == other.resource
            && self.store == other.store
            && (self.is_exclusive || other.share.is_exclusive())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::OwnerToken;

    use super::*;
    use crate::claim::ShareMode;

    fn record() -> LeaseRecord {
        let held = HeldLine {
            share: ShareMode::Exclusive,
            owner: OwnerToken::from_bytes([7; 16]),
            token: "42".into(),
            ttl: Duration::from_secs(30),
            resource: "acme:report/it's LEASEHOLD_STATE=released".parse().unwrap(),
            store: "sqlite:/a'b".into(),
        };
        LeaseRecord {
            held,
            deadline: WallTime::from_micros(1_785_326_400_123_000),
            state: RecordedState::Held,
        }
    }

    #[test]
    fn a_lease_is_read_as_it_was_written_whatever_its_name() {
        for state in [RecordedState::Held, RecordedState::Lost] {
            let record = LeaseRecord { state, ..record() };
            assert_eq!(Found::by_text(&record.write()), Found::Lease(record));
        }
        assert_eq!(Found::by_text(&released_text("x")), Found::Released);
        for other in ["", "LEASEHOLD_STATE=held\n", SIGNATURE] {
            assert!(matches!(Found::by_text(other), Found::NotOurs(_)), "{other:?}");
        }
    }

    #[test]
    fn the_file_of_another_lease_is_not_updated() {
        let directory = tempfile::tempdir().unwrap();
        let file = LeaseFile::new(&directory.path().join("lease")).unwrap();
        let resource = &"x/1".parse().unwrap();
        let wanted = WantedLease { resource, store: "sqlite:/a", is_exclusive: true };
        file.create(&record(), &wanted).unwrap();
        let mut other = record();
        other.held.owner = OwnerToken::from_bytes([8; 16]);
        file.update(&other).unwrap();
        file.released(&other.held).unwrap();
        assert_eq!(Found::at(file.path()).unwrap(), Found::Lease(record()));
        file.released(&record().held).unwrap();
        assert_eq!(Found::at(file.path()).unwrap(), Found::Released);
        assert!(!fs::read_to_string(file.path()).unwrap().contains(&record().held.owner.reveal()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
