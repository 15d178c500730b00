//! Requests per second of one token.

use std::time::Duration;

use tokio::time::Instant;

/// Lets through a number of requests per second, and as many at once as come in one second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    /// When the requests so far would be over if they came evenly.
    until: Option<Instant>,
}

impl Rate {
    /// Takes a request, or says how long to wait.
    pub(crate) fn take(&mut self, per_second: u32, now: Instant) -> Result<(), Duration> {
        let each = Duration::from_secs(1) / per_second.max(1);
        let until = self.until.map_or(now, |until| until.max(now));
        let ahead = until.duration_since(now);
        // At once: as many as come in one second.
        if ahead + each > Duration::from_secs(1) {
            return Err(ahead + each - Duration::from_secs(1));
        }
        self.until = Some(until + each);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_requests_may_come_at_once_and_then_they_come_evenly() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        assert!((0..10).all(|_| rate.take(10, start).is_ok()));
        assert_eq!(rate.take(10, start), Err(Duration::from_millis(100)));
        assert!(rate.take(10, start + Duration::from_millis(100)).is_ok());
        assert!(rate.take(10, start + Duration::from_millis(100)).is_err());
        let later = start + Duration::from_secs(60);
        assert!((0..10).all(|_| rate.take(10, later).is_ok()) && rate.take(10, later).is_err());
    }
}
