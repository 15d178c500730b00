/**
 * Distributed leases with fencing tokens, over the HTTP API of a leasehold server.
 *
 * <pre>{@code
 * LeaseholdClient client = LeaseholdClient.connect("http://127.0.0.1:7420");
 * try (Lease lease = client.acquire("report/42")) {
 *     lease.check();                       // before each effect: throws LostException if the lease has ended
 *     export(lease.token());               // the fencing token, for a database that refuses stale holders
 * }
 * }</pre>
 *
 * <p>Start with {@link io.github.leasehold.LeaseholdClient} and {@link io.github.leasehold.Lease}. What goes wrong is a
 * {@link io.github.leasehold.LeaseholdException}.
 */
package io.github.leasehold;
