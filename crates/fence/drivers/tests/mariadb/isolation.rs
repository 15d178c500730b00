//! Two transactions at the same time, at each isolation level.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::test_server::{Session, Test, TestServer, pass, refusal};

pub(crate) const TESTS: &[Test] = &[
    ("a_higher_token_waits_for_the_transaction_that_was_admitted", waits),
    ("with_the_pass_before_the_first_read_no_update_is_lost_at_any_isolation_level", pass_first),
    ("with_a_read_before_the_pass_an_update_is_lost", read_first),
    ("a_snapshot_from_before_the_pass_loses_an_update_unless_the_server_checks_it", old_snapshot),
];

/// Held by the test that reads `INNODB_TRX`.
static READER: Mutex<()> = Mutex::const_new(());

const LEVELS: [&str; 4] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Two connections with a transaction each, at this isolation level, and a counter at 0.
async fn two_transactions(server: &TestServer, counter: &str, level: &str, begin: &str) -> [Session; 2] {
    let mut connections = [server.connect().await, server.connect().await];
    let create = "CREATE TABLE IF NOT EXISTS counter (id VARCHAR(40) PRIMARY KEY, total INT) ENGINE = InnoDB";
    connections[0].execute(create).await.unwrap();
    let insert = "INSERT INTO counter VALUES (?, 0)";
    connections[0].execute_with(insert, &[Some(counter)]).await.unwrap();
    for connection in &mut connections {
        connection.execute(format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        connection.execute(begin).await.unwrap();
    }
    connections
}

async fn admit(session: &mut Session, counter: &str, token: u64, owner: u8) -> Result<u64, sqlx::Error> {
    session.admit(&pass(&format!("counter/{counter}"), token, owner)).await
}

async fn read(session: &mut Session, counter: &str) -> i32 {
    let select = format!("SELECT CAST(total AS CHAR) FROM counter WHERE id = '{counter}'");
    session.text(select).await.unwrap().parse().unwrap()
}

async fn write(session: &mut Session, counter: &str, total: i32) {
    session.execute(format!("UPDATE counter SET total = {total} WHERE id = '{counter}'")).await.unwrap();
    session.execute("COMMIT").await.unwrap();
}

async fn id(session: &mut Session) -> String {
    session.text("SELECT CAST(CONNECTION_ID() AS CHAR)").await.unwrap()
}

/// Waits until the session with this id waits for a lock.
async fn session_waits(look: &mut Session, session: &str) {
    let count = format!(
        "SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.INNODB_TRX \
         WHERE trx_mysql_thread_id = {session} AND trx_state = 'LOCK WAIT'"
    );
    for _ in 0..200 {
        // The server renews this table only if nobody has read it for a tenth of a second: two tests that take turns in reading
        // it would see the same old rows for ever. So one waits for the pause of the other.
        let _turn = READER.lock().await;
        #[expect(clippy::disallowed_methods, reason = "the server sends no event when a session waits")]
        tokio::time::sleep(Duration::from_millis(150)).await;
        if look.text(count.as_str()).await.as_deref() == Some("1") {
            return;
        }
    }
    panic!("the session does not wait for a lock");
}

fn waits(server: &TestServer) {
    server.run(async {
        let mut look = server.connect().await;
        let [mut a, mut b] = two_transactions(server, "waits", "REPEATABLE READ", "START TRANSACTION").await;
        admit(&mut a, "waits", 33, 1).await.unwrap();
        let session = id(&mut b).await;
        let first = async {
            session_waits(&mut look, &session).await;
            write(&mut a, "waits", 1).await;
        };
        let second = async {
            admit(&mut b, "waits", 34, 2).await.unwrap(); // waits for the first
            write(&mut b, "waits", 2).await;
        };
        tokio::join!(first, second);
        assert_eq!(read(&mut look, "waits").await, 2, "B's write came after A's");
        // The holder of 33 is refused from now on, and its transaction has changed nothing.
        a.execute("START TRANSACTION").await.unwrap();
        let (state, message) = refusal(admit(&mut a, "waits", 33, 1).await);
        assert!(state == "LH001" && message.ends_with("(presented=33 highest=34)"), "{message}");
        a.execute("ROLLBACK").await.unwrap();
    });
}

fn pass_first(server: &TestServer) {
    server.run(async {
        let mut look = server.connect().await;
        for level in LEVELS {
            let counter = level.replace(' ', "-");
            let [mut a, mut b] = two_transactions(server, &counter, level, "START TRANSACTION").await;
            admit(&mut a, &counter, 33, 1).await.unwrap();
            let total = read(&mut a, &counter).await;
            let session = id(&mut b).await;
            let first = async {
                session_waits(&mut look, &session).await;
                write(&mut a, &counter, total + 1).await;
            };
            let second = async {
                admit(&mut b, &counter, 34, 2).await.unwrap(); // waits for the first
                let total = read(&mut b, &counter).await;
                write(&mut b, &counter, total + 1).await;
            };
            tokio::join!(first, second);
            assert_eq!(read(&mut look, &counter).await, 2, "both were admitted, and both are there: {level}");
        }
    });
}

fn read_first(server: &TestServer) {
    server.run(async {
        for level in ["READ COMMITTED", "REPEATABLE READ"] {
            let counter = format!("read-first-{}", level.len());
            let [mut a, mut b] = two_transactions(server, &counter, level, "START TRANSACTION").await;
            let totals = [read(&mut a, &counter).await, read(&mut b, &counter).await];
            admit(&mut a, &counter, 33, 1).await.unwrap();
            write(&mut a, &counter, totals[0] + 1).await;
            admit(&mut b, &counter, 34, 2).await.unwrap();
            write(&mut b, &counter, totals[1] + 1).await;
            assert_eq!(
                read(&mut a, &counter).await,
                1,
                "both were admitted, and one of two updates is lost: {level}"
            );
        }
    });
}

/// `START TRANSACTION WITH CONSISTENT SNAPSHOT` is a read before the pass. MariaDB can refuse the locking read after it.
fn old_snapshot(server: &TestServer) {
    server.run(async {
        for checked in [false, true] {
            let counter = format!("snapshot-{checked}");
            let begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
            let [mut a, mut b] = two_transactions(server, &counter, "REPEATABLE READ", begin).await;
            for connection in [&mut a, &mut b] {
                connection.execute("ROLLBACK").await.unwrap();
                let set = format!("SET SESSION innodb_snapshot_isolation = {}", u8::from(checked));
                connection.execute(set).await.unwrap();
                connection.execute(begin).await.unwrap();
            }
            admit(&mut a, &counter, 33, 1).await.unwrap();
            write(&mut a, &counter, 1).await;
            let admitted = admit(&mut b, &counter, 34, 2).await;
            if checked {
                let (_, message) = refusal(admitted);
                assert!(message.contains("Record has changed since last read"), "{message}");
            } else {
                admitted.unwrap();
                assert_eq!(read(&mut b, &counter).await, 0, "it reads its old snapshot");
            }
            b.execute("ROLLBACK").await.unwrap();
        }
    });
}
