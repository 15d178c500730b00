//! Wake-ups from etcd: one stream of watches for all waiters of a client.
//!
//! 1. A `wait` sends its watches to a background task, which opens the stream with the first of them.
//! 2. Each watch has an id that we choose. An event carries the id of its watch, and so finds its waiter. The
//!    waiter's [`WakeFilter`] decides whether the event wakes it.
//! 3. When a wait ends, its watches are cancelled.
//! 4. When the stream is lost, or requests go to another member, all waiters are woken and ask again: events
//!    may have been missed. The next `wait` opens a new stream.
//!
//! `etcd grpc-proxy` ignores our ids and chooses its own, without reporting which is which. Then an event
//! finds its waiters by its key, and no watch is cancelled, because the id could be that of another waiter.
//! Instead the whole stream is closed once [`UNCANCELLED_MAX`] watches are left on it.
//!
//! [`leasehold_support::WaiterRegistry`] is not used here: it finds waiters by resource and owner, and an
//! event of etcd has neither, only a watch id and a key.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use etcd_client::{Event, EventType, WatchOptions, WatchResponse, WatchStream};
use leasehold_core::Backoff;
use leasehold_support::race::{Either, first};
use tokio::sync::{Mutex, Notify, mpsc, watch};

use crate::{claim_record::ContenderValue, connection::Connections, error::StoreError};

/// How many watches that nobody needs are left on a stream whose ids are not ours, before the stream is
/// closed.
const UNCANCELLED_MAX: usize = 256;
/// The id of the watch that every stream begins with.
const PROBE_WATCH_ID: i64 = 1;
/// How long it may take to send a request on the stream. Longer means that the stream hangs.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// A key, or a range of keys up to `end`.
pub(crate) struct WatchedKeys {
    pub(crate) key: String,
    pub(crate) end: Option<Vec<u8>>,
}

/// What a waiter watches.
pub(crate) struct WatchRequest {
    pub(crate) watched: Vec<WatchedKeys>,
    /// The first revision whose events count.
    pub(crate) from_revision: i64,
    pub(crate) filter: WakeFilter,
}

/// The share of a contender when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedShare {
    pub(crate) capacity: u32,
    pub(crate) weight: u32,
}

/// Which events wake a waiter.
#[derive(Debug)]
pub(crate) enum WakeFilter {
    /// Any change of the contenders or of the pause.
    AnyChange { lock_prefix: String, pause: String },
    /// One of these contenders is deleted or changes its share; any change of the pause; or the waiter's own
    /// contender is called (`silence.rs`).
    BlockerGone { shares: HashMap<String, WatchedShare>, own: String, pause: String },
}

impl WakeFilter {
    fn accepts(&self, event: &Event) -> bool {
        let Some(kv) = event.kv() else { return true };
        let key = String::from_utf8_lossy(kv.key());
        let (shares, own, pause) = match self {
            WakeFilter::AnyChange { lock_prefix, pause } => {
                return key.starts_with(lock_prefix) || *key == *pause;
            }
            WakeFilter::BlockerGone { shares, own, pause } => (shares, own, pause),
        };
        if *key == *pause {
            return true;
        }
        let Some(share) = shares.get(&*key) else { return false };
        if event.event_type() == EventType::Delete {
            return true;
        }
        // Ignore updates that free no capacity: a waiter that is granted, a renewal, a note.
        let ContenderValue::Claim(record) = ContenderValue::parse(kv.value()) else { return false };
        let is_called = record.called && *key == **own;
        is_called || WatchedShare { capacity: record.capacity, weight: record.weight } != *share
    }
}

/// One `wait` under way.
#[derive(Debug)]
struct Waiter {
    wakeup: Notify,
    filter: WakeFilter,
}

/// What the background task is asked to do.
enum ListenerCommand {
    Watch {
        id: i64,
        keys: WatchedKeys,
        from_revision: i64,
        waiter: Arc<Waiter>,
    },
    /// The wait has ended.
    Cancel(Vec<i64>),
}

/// Receives wake-ups for all waiters of one client.
#[derive(Debug)]
pub(crate) struct WakeupListener {
    connections: Arc<Connections>,
    commands: mpsc::UnboundedSender<ListenerCommand>,
    /// For the background task, until it is started.
    receiver: Mutex<Option<mpsc::UnboundedReceiver<ListenerCommand>>>,
    is_started: AtomicBool,
    next_watch_id: AtomicI64,
}

/// The watches of a waiter. Dropping it cancels them.
struct WaiterHandle<'a> {
    listener: &'a WakeupListener,
    watch_ids: Vec<i64>,
    waiter: Arc<Waiter>,
}

impl Drop for WaiterHandle<'_> {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.watch_ids);
        // Fails only if the task has ended, and its watches with it.
        let _ = self.listener.commands.send(ListenerCommand::Cancel(ids));
    }
}

impl WakeupListener {
    pub(crate) fn new(connections: Arc<Connections>) -> WakeupListener {
        let (commands, receiver) = mpsc::unbounded_channel();
        WakeupListener {
            connections,
            commands,
            receiver: Mutex::new(Some(receiver)),
            is_started: AtomicBool::new(false),
            next_watch_id: AtomicI64::new(PROBE_WATCH_ID + 1),
        }
    }

    /// Resolves when an event has passed the filter, or when events may have been missed.
    pub(crate) async fn wait(&self, request: WatchRequest) {
        self.ensure_started().await;
        let handle = self.register(request);
        handle.waiter.wakeup.notified().await;
    }

    /// Starts the background task with the first wait: many clients never wait.
    async fn ensure_started(&self) {
        if self.is_started.load(Ordering::Relaxed) {
            return;
        }
        if let Some(commands) = self.receiver.lock().await.take() {
            self.is_started.store(true, Ordering::Relaxed);
            let task = ListenerTask::new(Arc::clone(&self.connections));
            self.connections.environment.spawn(Box::pin(task.run(commands)));
        }
    }

    fn register(&self, request: WatchRequest) -> WaiterHandle<'_> {
        let WatchRequest { watched, from_revision, filter } = request;
        let waiter = Arc::new(Waiter { wakeup: Notify::new(), filter });
        let mut watch_ids = Vec::new();
        for keys in watched {
            let id = self.next_watch_id.fetch_add(1, Ordering::Relaxed);
            watch_ids.push(id);
            let command = ListenerCommand::Watch { id, keys, from_revision, waiter: Arc::clone(&waiter) };
            if self.commands.send(command).is_err() {
                // The task has ended: nothing else would wake this waiter.
                waiter.wakeup.notify_one();
            }
        }
        WaiterHandle { listener: self, watch_ids, waiter }
    }
}

/// The background task, and its state.
struct ListenerTask {
    connections: Arc<Connections>,
    /// By watch id.
    waiters: HashMap<i64, Arc<Waiter>>,
    ids: WatchIds,
    /// How many watches of the stream could not be cancelled.
    uncancelled: usize,
}

/// Which side chooses the watch ids of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchIds {
    /// Not known before the first reply.
    Unknown,
    ChosenByUs,
    ChosenByProxy,
}

/// Why the task stops serving a stream.
enum StreamEnd {
    /// The stream is lost or has to be replaced.
    Lost,
    /// The client is dropped.
    ClientDropped,
}

impl ListenerTask {
    fn new(connections: Arc<Connections>) -> ListenerTask {
        ListenerTask { connections, waiters: HashMap::new(), ids: WatchIds::Unknown, uncancelled: 0 }
    }

    /// Runs until the client is dropped. Each pass of the loop is one stream, from its first watch to its
    /// end.
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<ListenerCommand>) {
        let mut backoff = Backoff::new();
        while let Some(command) = commands.recv().await {
            // Without a stream there is nothing to cancel.
            let ListenerCommand::Watch { waiter, .. } = &command else { continue };
            let waiter = Arc::clone(waiter);
            match self.open_stream().await {
                Ok(mut stream) => {
                    backoff = Backoff::new();
                    (self.ids, self.uncancelled) = (WatchIds::Unknown, 0);
                    let mut moves = self.connections.subscribe_to_moves();
                    // Moves before this stream was opened do not end it.
                    moves.mark_unchanged();
                    let end = self.serve(command, &mut stream, &mut moves, &mut commands).await;
                    if let StreamEnd::ClientDropped = end {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(?error, "cannot open a watch stream to etcd, waiters ask again");
                    waiter.wakeup.notify_one();
                    let pause = backoff.next(self.connections.environment.random());
                    self.connections.environment.sleep(pause).await;
                }
            }
            // Events may have been missed, so all waiters ask again.
            self.waiters.drain().for_each(|(_, waiter)| waiter.wakeup.notify_one());
        }
    }

    /// Opens a stream with a watch on a key that is never written. It stays for as long as the stream, and
    /// its reply tells which side chooses the ids.
    async fn open_stream(&self) -> Result<WatchStream, StoreError> {
        let connection = self.connections.get().await?;
        let mut client = connection.member.client.clone();
        let key = self.connections.config.root.probe_key();
        let opening = client.watch(key, Some(WatchOptions::new().with_watch_id(PROBE_WATCH_ID)));
        let limit = self.connections.config.timeout + self.connections.config.connect_timeout;
        let opened = match first(opening, self.connections.environment.sleep(limit)).await {
            Either::Left(opened) => opened.map_err(StoreError::from),
            Either::Right(()) => Err(StoreError::timeout()),
        };
        opened.inspect_err(|error| self.connections.report_failure(&connection, error))
    }

    /// Sends commands to the stream and passes its events on, until it ends.
    async fn serve(
        &mut self,
        command: ListenerCommand,
        stream: &mut WatchStream,
        moves: &mut watch::Receiver<usize>,
        commands: &mut mpsc::UnboundedReceiver<ListenerCommand>,
    ) -> StreamEnd {
        let mut next = Some(command);
        loop {
            if let Some(command) = next.take() {
                let limit = self.connections.environment.sleep(SEND_TIMEOUT);
                match first(self.send(command, stream), limit).await {
                    Either::Left(Ok(())) if self.uncancelled <= UNCANCELLED_MAX => {}
                    Either::Left(_) | Either::Right(()) => return StreamEnd::Lost,
                }
                continue;
            }
            match first(commands.recv(), first(stream.message(), moves.changed())).await {
                Either::Left(None) => return StreamEnd::ClientDropped,
                Either::Left(command) => next = command,
                // A watch was refused, and the reply need not say which one. The login token of a stream is
                // the one that it was opened with, and may have expired: a new stream has a new token.
                Either::Right(Either::Left(Ok(Some(response))))
                    if response.created() && response.canceled() =>
                {
                    return StreamEnd::Lost;
                }
                Either::Right(Either::Left(Ok(Some(response)))) => self.wake_waiters(&response),
                // The stream has ended; or requests go to another member now, because this one may hang.
                Either::Right(_) => return StreamEnd::Lost,
            }
        }
    }

    async fn send(
        &mut self,
        command: ListenerCommand,
        stream: &mut WatchStream,
    ) -> Result<(), etcd_client::Error> {
        match command {
            ListenerCommand::Watch { id, keys, from_revision, waiter } => {
                let mut options = WatchOptions::new().with_watch_id(id).with_start_revision(from_revision);
                if let Some(end) = keys.end {
                    options = options.with_range(end);
                }
                self.waiters.insert(id, waiter);
                stream.watch(keys.key, Some(options)).await
            }
            ListenerCommand::Cancel(ids) => {
                for id in ids {
                    match self.waiters.remove(&id) {
                        Some(_) if self.ids == WatchIds::ChosenByUs => stream.cancel(id).await?,
                        Some(_) => self.uncancelled += 1,
                        None => {}
                    }
                }
                Ok(())
            }
        }
    }

    fn wake_waiters(&mut self, response: &WatchResponse) {
        if self.ids == WatchIds::Unknown && response.created() {
            let is_ours = response.watch_id() == PROBE_WATCH_ID;
            self.ids = if is_ours { WatchIds::ChosenByUs } else { WatchIds::ChosenByProxy };
        }
        // Cancelled by etcd: the history from `from_revision` is compacted, or the member has no leader.
        let wakes = |waiter: &Waiter| {
            response.canceled() || response.events().iter().any(|event| waiter.filter.accepts(event))
        };
        let wake = |waiter: &Arc<Waiter>| {
            if wakes(waiter) {
                waiter.wakeup.notify_one();
            }
        };
        if self.ids == WatchIds::ChosenByProxy {
            self.waiters.values().for_each(wake);
        } else {
            self.waiters.get(&response.watch_id()).into_iter().for_each(wake);
        }
    }
}
