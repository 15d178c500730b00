//! A refusal is counted by kind and downstream, and logged without an id or an owner.

mod common;

use std::sync::{Arc, Mutex};

use common::{pass_for, stale};
use leasehold_core::OwnerToken;
use leasehold_fence::sqlite;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use rusqlite::Connection;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[test]
fn a_refusal_is_counted_and_logged_without_secrets() {
    let (recorder, log) = (DebuggingRecorder::new(), Log::default());
    let counted = recorder.snapshotter();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let mut database = Connection::open_in_memory().unwrap();
    sqlite::setup(&database).unwrap();
    metrics::with_local_recorder(&recorder, || {
        tracing::subscriber::with_default(subscriber, || {
            sqlite::enter(&mut database, &pass_for("payment/ann@example.com", 34, 2)).unwrap();
            for _ in 0..2 {
                let late = sqlite::enter(&mut database, &pass_for("payment/ann@example.com", 33, 1));
                assert_eq!(stale(late), (33, 34));
            }
            for number in 0..300 {
                let resource = format!("kind{number}/1");
                sqlite::enter(&mut database, &pass_for(&resource, 2, 1)).unwrap();
                sqlite::enter(&mut database, &pass_for(&resource, 1, 1)).unwrap_err();
            }
        });
    });
    let counters: Vec<_> = counted.snapshot().into_vec();
    let of = |kind: &str| {
        counters.iter().find_map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| (label.key(), label.value())).collect();
            let wanted = key.key().name() == "leasehold_fencing_rejected_total"
                && labels == [("kind", kind), ("downstream", "sqlite")];
            wanted.then_some(value)
        })
    };
    assert_eq!(of("payment"), Some(&DebugValue::Counter(2)));
    assert!(counters.len() <= 257 && of("other").is_some(), "labels are bounded: {}", counters.len());
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = text.lines().next().unwrap();
    for part in [
        "WARN",
        "stale_token_refused",
        "kind=\"payment\"",
        "token=33",
        "highest=34",
        "downstream=\"sqlite\"",
        "id_hash=",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let owner = OwnerToken::from_bytes([1; 16]).reveal();
    assert!(!text.contains("ann@example.com") && !text.contains(&owner), "{line}");
}
