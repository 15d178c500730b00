//! Reads resources and owners, and parses the replies.

use etcd_client::{GetOptions, GetResponse, KeyValue, TxnOpResponse};
use leasehold_core::{Effect, Error, ErrorKind, GoneReason, ValueHash};

use crate::{
    call_member::Repeatable,
    claim_record::ContenderValue,
    connection::{Connections, MemberClient},
    error::StoreError,
    keys::ResourceKeys,
    resource_view::{ABSENT, Contender, OwnerKeyValue, OwnerState, PauseKey, ResourceView},
    transaction::{READS_PER_OWNER, TransactionReply, read_owner, read_resource},
    verify_reply::{HeaderInfo, KeyRange},
};

/// The stored value of a tombstone of a cancelled claim.
const TOMBSTONE_CANCELLED: &str = "!buried";
/// The stored value of a tombstone of an evicted claim.
const TOMBSTONE_EVICTED: &str = "!evicted";

/// The value of an owner key that is a tombstone.
pub(crate) fn tombstone_value(why: GoneReason) -> String {
    if why == GoneReason::Evicted { TOMBSTONE_EVICTED } else { TOMBSTONE_CANCELLED }.to_owned()
}

/// A resource, and the owners that were asked for, in that order.
pub(crate) struct ResourceRead {
    pub(crate) view: ResourceView,
    pub(crate) owners: Vec<OwnerState>,
}

impl ResourceRead {
    /// Parses the replies to the operations of [`read_resource`]. They are the last ones of a transaction;
    /// `skipped` operations come before them.
    pub(crate) fn parse(
        keys: &ResourceKeys,
        owner_hashes: &[&str],
        reply: &TransactionReply,
        skipped: usize,
    ) -> Result<ResourceRead, StoreError> {
        let reads: Vec<&GetResponse> =
            reply.operations.iter().skip(skipped).map(read_reply).collect::<Result<_, _>>()?;
        let [contenders, pause, owners @ ..] = reads.as_slice() else { return Err(missing_reply()) };
        let total = usize::try_from(contenders.count()).unwrap_or(usize::MAX);
        let contenders =
            contenders.kvs().iter().map(|kv| parse_contender(keys, kv)).collect::<Result<_, _>>()?;
        let pause = pause.kvs().first();
        let pause = pause.map(|kv| PauseKey { modified: kv.mod_revision(), lease: kv.lease() });
        let view = ResourceView { revision: reply.revision, contenders, total, pause };
        let mut read = ResourceRead { view, owners: Vec::new() };
        for (replies, owner_hash) in owners.chunks(READS_PER_OWNER).zip(owner_hashes) {
            let (owner, in_slot) = parse_owner(keys, replies, owner_hash)?;
            read.owners.push(owner);
            in_slot.into_iter().for_each(|contender| read.add(contender));
        }
        Ok(read)
    }

    /// Adds a contender that is too far back in the queue to have been read with its head.
    fn add(&mut self, contender: Contender) {
        let contenders = &mut self.view.contenders;
        if contenders.iter().all(|other| other.name != contender.name) {
            contenders.push(contender);
            contenders.sort_by_key(|contender| contender.created);
        }
    }
}

/// The reply to a read in a transaction.
pub(crate) fn read_reply(reply: &TxnOpResponse) -> Result<&GetResponse, StoreError> {
    match reply {
        TxnOpResponse::Get(get) => Ok(get),
        _ => Err(StoreError::UnexpectedReply("a read has the reply to a write".to_owned())),
    }
}

fn missing_reply() -> StoreError {
    StoreError::UnexpectedReply("a read has no reply".to_owned())
}

/// Parses the replies to [`read_owner`]. The contender in the owner's slot is returned only if it belongs to
/// this owner.
fn parse_owner(
    keys: &ResourceKeys,
    replies: &[&GetResponse],
    owner_hash: &str,
) -> Result<(OwnerState, Option<Contender>), StoreError> {
    let [owner_key, in_slot] = replies else { return Err(missing_reply()) };
    let in_slot = in_slot.kvs().first().map(|kv| parse_contender(keys, kv)).transpose()?;
    let owner_key = owner_key.kvs().first();
    let parse_value = |kv: &KeyValue| match String::from_utf8_lossy(kv.value()).as_ref() {
        TOMBSTONE_EVICTED => OwnerKeyValue::Tombstone(GoneReason::Evicted),
        TOMBSTONE_CANCELLED => OwnerKeyValue::Tombstone(GoneReason::Cancelled),
        name => OwnerKeyValue::Contender(name.to_owned()),
    };
    let owner = OwnerState {
        owner_key: owner_key.map_or(OwnerKeyValue::Absent, parse_value),
        owner_key_modified: owner_key.map_or(ABSENT, KeyValue::mod_revision),
        slot_modified: in_slot.as_ref().map_or(ABSENT, |contender| contender.modified),
    };
    Ok((owner, in_slot.filter(|contender| contender.is_owned_by(owner_hash))))
}

/// Parses the key and value of a contender.
pub(crate) fn parse_contender(keys: &ResourceKeys, kv: &KeyValue) -> Result<Contender, StoreError> {
    let key = String::from_utf8_lossy(kv.key()).into_owned();
    let (record, foreign) = match ContenderValue::parse(kv.value()) {
        ContenderValue::Claim(record) => (Some(record), None),
        ContenderValue::Foreign => (None, Some(hash_of_foreign(kv))),
        // Refused and not guessed at: a claim that is read wrongly could be granted twice.
        ContenderValue::NewerVersion => {
            let message =
                format!("key {key} was written by a newer version of leasehold: upgrade this program");
            return Err(StoreError::Refused(
                Error::new(ErrorKind::Corrupt, message).with_effect(Effect::None),
            ));
        }
    };
    let name = key.strip_prefix(&keys.lock_prefix).unwrap_or_default().to_owned();
    let (created, modified, lease) = (kv.create_revision(), kv.mod_revision(), kv.lease());
    Ok(Contender { name, created, modified, lease, record, foreign })
}

/// The hash that names a foreign lock: this key as it was created, with this value. Its value is often empty.
fn hash_of_foreign(kv: &KeyValue) -> ValueHash {
    let created = kv.create_revision().to_be_bytes();
    ValueHash::of(&[kv.key(), &[0], &created, kv.value()].concat())
}

impl Connections {
    /// Reads a resource and these owners, at one revision.
    pub(crate) async fn read(
        &self,
        keys: &ResourceKeys,
        owner_hashes: &[&str],
        limit: i64,
    ) -> Result<ResourceRead, StoreError> {
        let reply = self.read_together(read_resource(keys, owner_hashes, limit)).await?;
        let read = ResourceRead::parse(keys, owner_hashes, &reply, 0)?;
        self.add_taken_over(keys, read).await
    }

    /// Adds the contenders that the owners took over, if they are too far back in the queue to have been read
    /// with its head.
    pub(crate) async fn add_taken_over(
        &self,
        keys: &ResourceKeys,
        mut read: ResourceRead,
    ) -> Result<ResourceRead, StoreError> {
        for owner in read.owners.clone() {
            let OwnerKeyValue::Contender(name) = &owner.owner_key else { continue };
            if read.view.total > read.view.contenders.len()
                && let Some(contender) = self.read_contender(keys, name).await?
            {
                read.add(contender);
            }
        }
        Ok(read)
    }

    /// Reads an owner and its contender.
    pub(crate) async fn read_owner(
        &self,
        keys: &ResourceKeys,
        owner_hash: &str,
    ) -> Result<(OwnerState, Option<Contender>), StoreError> {
        let reply = self.read_together(read_owner(keys, owner_hash).into()).await?;
        let replies: Vec<&GetResponse> = reply.operations.iter().map(read_reply).collect::<Result<_, _>>()?;
        let (owner, in_slot) = parse_owner(keys, &replies, owner_hash)?;
        let contender = match (&in_slot, &owner.owner_key) {
            (None, OwnerKeyValue::Contender(name)) => self.read_contender(keys, name).await?,
            _ => in_slot,
        };
        Ok((owner, contender.filter(|contender| contender.is_owned_by(owner_hash))))
    }

    /// Reads one contender.
    pub(crate) async fn read_contender(
        &self,
        keys: &ResourceKeys,
        name: &str,
    ) -> Result<Option<Contender>, StoreError> {
        let range = KeyRange::one(keys.contender(name));
        let reply = self.read_range(range, GetOptions::new()).await?;
        reply.kvs().first().map(|kv| parse_contender(keys, kv)).transpose()
    }

    /// Reads a key or a range outside of a transaction.
    pub(crate) async fn read_range(
        &self,
        range: KeyRange,
        options: GetOptions,
    ) -> Result<GetResponse, StoreError> {
        let options = match &range.end {
            Some(end) => options.with_range(end.clone()),
            None => options,
        };
        let send = |member: &MemberClient| {
            let (mut client, key, options) = (member.client.clone(), range.key.clone(), options.clone());
            async move { client.get(key, Some(options)).await }
        };
        let check = |reply: &GetResponse, known: HeaderInfo| known.check_read(&range, reply);
        self.call(Repeatable::Yes, send, check).await
    }
}
