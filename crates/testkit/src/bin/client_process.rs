//! A process that holds a lease, which a test can kill, stop and continue.
//!
//! `leasehold-client-process URL KIND/ID TTL_MS [WAITERS]` prints one line for each event: `waiting`, `granted
//! TOKEN`, `ended WHY`. It reads commands line by line: `check` prints `ok` or `over`, `release` prints
//! `released REPLY`. When its input ends it exits without a release, as a crash would. With `WAITERS` above 1
//! it waits that many times, each with a place of its own in the queue.

fn main() -> std::process::ExitCode {
    leasehold_testkit::client_process::main()
}
