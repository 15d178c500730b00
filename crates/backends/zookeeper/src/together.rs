//! Many requests at once: each is sent without waiting for the replies to the others, over the one connection of
//! the session.
//!
//! Each claim keeps a transaction of its own. In one transaction for several claims, one refused claim would
//! refuse all, and two contenders of one resource would have the same zxid, and so the same token (ADR 0041).

use std::{collections::HashMap, future::Future};

use futures_util::future::join_all;
use leasehold_core::Resource;

/// Carries out all requests at the same time, but those of one resource one after the other, in their order.
/// One result for each request, in order.
pub(crate) async fn carry_out_together<'a, Q, T, F>(
    requests: &'a [Q],
    resource: impl Fn(&'a Q) -> &'a Resource,
    carry_out: impl Fn(&'a Q) -> F,
) -> Vec<T>
where
    F: Future<Output = T>,
{
    if let [request] = requests {
        return vec![carry_out(request).await];
    }
    let mut by_resource: HashMap<&Resource, Vec<usize>> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        by_resource.entry(resource(request)).or_default().push(index);
    }
    let carry_out = &carry_out;
    let mut results: Vec<(usize, T)> = join_all(by_resource.into_values().map(|indices| async move {
        let mut results = Vec::with_capacity(indices.len());
        for index in indices {
            results.push((index, carry_out(&requests[index]).await));
        }
        results
    }))
    .await
    .into_iter()
    .flatten()
    .collect();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn requests_of_one_resource_keep_their_order_and_others_do_not_wait_for_them() {
        let [a, b]: [Resource; 2] = ["r/a", "r/b"].map(|text| text.parse().unwrap());
        let requests = [(&a, 1), (&a, 2), (&b, 3), (&a, 4)];
        let log = Mutex::new(Vec::new());
        let note = |resource: &Resource, number: u32, what: &'static str| {
            log.lock().unwrap().push((resource.clone(), number, what));
        };
        let note = &note;
        let results = carry_out_together(
            &requests,
            |request| request.0,
            |request| async move {
                note(request.0, request.1, "begins");
                tokio::task::yield_now().await;
                note(request.0, request.1, "ends");
                request.1
            },
        )
        .await;
        assert_eq!(results, [1, 2, 3, 4]);
        let log = log.lock().unwrap().clone();
        let of_a: Vec<_> = log.iter().filter(|(resource, ..)| *resource == a).map(|entry| entry.1).collect();
        assert_eq!(of_a, [1, 1, 2, 2, 4, 4]);
        let begins = log.iter().position(|entry| entry.1 == 3).unwrap();
        let ends = log.iter().position(|entry| (entry.1, entry.2) == (1, "ends")).unwrap();
        assert!(begins < ends, "{log:?}");
    }
}
