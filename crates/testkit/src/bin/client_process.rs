//! Takes a lease and tells what becomes of it: a process to kill, stop and continue.
//!
//! `leasehold-client-process URL KIND/ID TTL_MS` writes one line for each thing that happens (`waiting`, `granted TOKEN`,
//! `ended WHY`) and answers each line it reads: `check` with `ok` or `over`, `release` with `released ANSWER`. When its
//! input ends it exits without a farewell, as a crash would.

fn main() -> std::process::ExitCode {
    leasehold_testkit::client_process::main()
}
