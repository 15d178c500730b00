//! Moving a mark to the numbers of another backend.

use leasehold_fence::rule::{self, Mark};
use proptest::strategy::{Strategy as _, ValueTree as _};

use crate::test_server::{Test, TestServer, refusal, token};

pub(crate) const TESTS: &[Test] = &[("rebase_in_sql_equals_the_pure_rule", same_rule)];

fn same_rule(server: &TestServer) {
    server.run(async {
        let mut connection = server.connect().await;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let moves = proptest::collection::vec((1u64..40, proptest::option::weighted(0.4, 1u64..40)), 1..8);
        for case in 0..40 {
            let resource = format!("rebase/{case}");
            let insert = "INSERT INTO leasehold_fence.mark (resource, token, owner) VALUES (?, 20, 'x')";
            connection.execute_with(insert, &[Some(&resource)]).await.unwrap();
            // A move removes the owner: only tokens above the new mark are admitted.
            let mut owner = " x";
            let mut model = Mark { highest: token(20), owner: None, ceiling: None };
            for (to, ceiling) in moves.new_tree(&mut runner).unwrap().current() {
                let expected = rule::rebase(&model, token(to), ceiling.map(token));
                let call = "CALL leasehold_fence.rebase(?, ?, ?, 'me', 'leases moved')";
                let (new, edge) = (to.to_string(), ceiling.map(|ceiling| ceiling.to_string()));
                let parameters = [Some(resource.as_str()), Some(&new), edge.as_deref()];
                let answer = connection.execute_with(call, &parameters).await;
                match expected {
                    Ok(moved) => {
                        answer.map_err(|error| format!("{model:?} to {to}, {ceiling:?}: {error}")).unwrap();
                        (model, owner) = (moved, "");
                    }
                    Err(error) => assert_eq!(refusal(answer).0, "LH004", "{error}"),
                }
                let mark = format!("SELECT CONCAT_WS(' ', token, ceiling, owner) FROM leasehold_fence.mark WHERE resource = '{resource}'");
                let wanted = model.ceiling.map_or(model.highest.to_string(), |ceiling| format!("{} {ceiling}", model.highest));
                assert_eq!(connection.text(mark).await, Some(wanted + owner));
            }
        }
        let none = connection.execute("CALL leasehold_fence.rebase('rebase/none', 1, NULL, 'me', 'why')").await;
        assert!(refusal(none).1.contains("nothing to move"));
        let records = "SELECT MIN(by_whom) FROM leasehold_fence.audit WHERE why = 'leases moved' AND resource LIKE 'rebase/%'";
        assert_eq!(connection.text(records).await.as_deref(), Some("me"));
    });
}
