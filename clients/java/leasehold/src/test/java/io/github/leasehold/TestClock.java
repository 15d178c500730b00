package io.github.leasehold;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;

/** The system's clocks, which a test can set. */
final class TestClock implements Clock {
    private final AtomicLong ahead = new AtomicLong();
    private final AtomicLong wallAhead = new AtomicLong();

    @Override
    public long now() {
        return SYSTEM.now() + ahead.get();
    }

    @Override
    public long wall() {
        return SYSTEM.wall() + wallAhead.get();
    }

    /** This process was stopped for so long. */
    void stopProcess(Duration time) {
        ahead.addAndGet(time.toNanos());
        wallAhead.addAndGet(time.toNanos());
    }

    /** The calendar clock is set, or the machine has slept for so long. */
    void moveWall(Duration time) {
        wallAhead.addAndGet(time.toNanos());
    }
}
