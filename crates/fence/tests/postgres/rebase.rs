//! Rebases, and the format of the fence.

use leasehold_core::{ErrorKind, Resource};
use leasehold_fence::{Rebase, postgres, rule};

use crate::{
    common::{pass, token},
    test_database::{Test, TestDatabase, connect},
};

pub(crate) const TESTS: &[Test] = &[
    ("after_a_rebase_smaller_tokens_are_admitted_former_ones_are_refused_and_it_is_audited", rebase),
    ("many_clients_can_call_setup_at_once", at_once),
    ("a_newer_format_is_refused", newer),
];

fn rebase(database: &TestDatabase) {
    database.run(async {
        let client = database.client().await;
        postgres::setup(&client).await.unwrap();
        let resource: Resource = "report/42".parse().unwrap();
        let to = |to, ceiling: Option<u64>| Rebase {
            to: token(to),
            ceiling: ceiling.map(token),
            by: "ann".into(),
            why: "to etcd".into(),
        };
        let unknown = postgres::rebase(&client, &resource, &to(1, None)).await.unwrap_err();
        assert!(
            unknown.kind() == ErrorKind::Invalid && unknown.to_string().contains("nothing to move"),
            "{unknown}"
        );
        postgres::enter(&client, &pass(1_000_000, 1)).await.unwrap();
        postgres::enter(&client, &pass(500, 2)).await.unwrap_err();
        for (number, ceiling) in [(400, 400), (400, 1_000_001), (1_000_000, 1_000_001)] {
            let error = postgres::rebase(&client, &resource, &to(number, Some(ceiling))).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        let (before, after) = postgres::rebase(&client, &resource, &to(400, None)).await.unwrap();
        assert_eq!(
            (before.highest, after.highest, after.ceiling),
            (token(1_000_000), token(400), Some(token(500_200)))
        );
        postgres::enter(&client, &pass(500, 2)).await.unwrap();
        for former in [500_200, 999_999, 1_000_000, 1_000_001] {
            let error = postgres::enter(&client, &pass(former, 1)).await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::StaleToken && error.to_string().contains("before the rebase"),
                "{error}"
            );
        }
        // For any rebase of a mark that was moved before, the function has the same result and error text as the rule.
        for (number, ceiling) in [(400, None), (300, None), (300, Some(501)), (550, None), (540, Some(550))] {
            let wish = to(number, ceiling);
            let mark = postgres::mark(&client, &resource).await.unwrap().unwrap();
            match (
                postgres::rebase(&client, &resource, &wish).await,
                rule::rebase(&mark, wish.to, wish.ceiling),
            ) {
                (Ok((_, after)), Ok(pure)) => assert_eq!(after, pure),
                (Err(error), Err(pure)) => {
                    assert!(error.to_string().ends_with(&pure.to_string()), "{error}, {pure}");
                }
                (ours, pure) => panic!("{wish:?}: {ours:?}, {pure:?}"),
            }
        }
        postgres::enter(&client, &pass(545, 2)).await.unwrap();
        let (_, up) = postgres::rebase(&client, &resource, &to(600_000, None)).await.unwrap();
        assert_eq!((up.highest, up.ceiling), (token(600_000), None), "up again, and the ceiling is gone");
    });
    let audit = "SELECT by, role, why, resource, was, now, ceiling FROM leasehold_fence.audit ORDER BY id";
    let moves = ["1000000|400|500200", "500|550|500200", "550|540|550", "545|600000|"];
    let rows = moves.map(|numbers| format!("ann|postgres|to etcd|report/42|{numbers}"));
    assert_eq!(database.psql(audit).unwrap(), rows.join("\n"));
}

fn at_once(database: &TestDatabase) {
    database.run(async {
        let url = database.url();
        #[expect(clippy::disallowed_methods, reason = "a test has a runtime")]
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { postgres::setup(&connect(&url).await).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        postgres::enter(&database.client().await, &pass(1, 1)).await.unwrap();
    });
}

fn newer(database: &TestDatabase) {
    database.run(async {
        let client = database.client().await;
        postgres::setup(&client).await.unwrap();
        client.batch_execute("UPDATE leasehold_fence.format SET version = 2").await.unwrap();
        let error = postgres::setup(&client).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("format 2"), "{error}");
    });
}
