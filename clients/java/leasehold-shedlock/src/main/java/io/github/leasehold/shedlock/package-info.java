/** Locks of ShedLock from a leasehold server: {@link io.github.leasehold.shedlock.LeaseholdLockProvider}. */
package io.github.leasehold.shedlock;
