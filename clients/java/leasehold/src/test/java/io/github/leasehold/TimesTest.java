package io.github.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import org.junit.jupiter.api.Test;

class TimesTest {
    private static final Duration TTL = Duration.ofSeconds(30);

    private static long ms(long millis) {
        return millis * 1_000_000;
    }

    private static Times of(long sentMs, Duration remaining, Duration waited) {
        return Times.of(new Clock.Sent(ms(sentMs), ms(sentMs)), new Times.Left(TTL, remaining, waited), true);
    }

    @Test
    void timesCountFromTheSend() {
        Times times = of(100_000, TTL, Duration.ZERO);
        assertEquals(ms(110_000), times.renewAt());
        assertEquals(ms(129_698), times.deadline());
        assertEquals(ms(124_698), times.stopAt());
        assertEquals(ms(124_798), times.wallStopAt());
    }

    @Test
    void theTimeThatTheServerWaitedIsTrustedLessOnePercent() {
        Times times = of(0, TTL, Duration.ofSeconds(100));
        assertEquals(ms(99_000 + 29_698), times.deadline());
        assertEquals(ms(99_000 + 10_000), times.renewAt());
    }

    @Test
    void anOldGrantIsRenewedSooner() {
        Times rest = of(12_000, Duration.ofSeconds(18), Duration.ZERO);
        assertEquals(of(0, TTL, Duration.ZERO).deadline(), rest.deadline());
        assertEquals(ms(12_000), rest.renewAt());
    }

    @Test
    void anAnswerWithoutTimeLeftIsOver() {
        Times over = of(0, Duration.ZERO, Duration.ZERO);
        assertEquals(0, over.deadline());
        assertEquals(-ms(5_000), over.stopAt());
    }

    @Test
    void aLongLeaseIsRenewedEveryMinute() {
        Duration day = Duration.ofDays(1);
        Times times = Times.of(new Clock.Sent(0, 0), new Times.Left(day, day, Duration.ZERO), true);
        assertEquals(ms(60_000), times.renewAt());
    }

    @Test
    void withoutRenewalTheStopIsTheDeadline() {
        Times times = Times.of(new Clock.Sent(0, 0), new Times.Left(TTL, TTL, Duration.ZERO), false);
        assertEquals(times.deadline(), times.stopAt());
    }

    @Test
    void noTimeMovesBackAndTheClockMayWrapAround() {
        long late = Long.MAX_VALUE - 5;
        Times before = new Times(late, late, late, late);
        Times after = new Times(late + 10, late + 10, late + 10, late + 10);
        assertEquals(after, before.laterOf(after));
        assertEquals(after.stopAt(), after.laterOf(before).stopAt());
    }

    @Test
    void bothStopsAreOfTheSameAnswer() {
        Times fast = new Times(10, 20, 30, 1_000_000);
        Times setRight = new Times(20, 40, 60, 40);
        assertEquals(40, fast.laterOf(setRight).wallStopAt());
        Times shorter = new Times(20, 15, 25, 1_000_000);
        assertEquals(40, setRight.laterOf(shorter).wallStopAt(), "nor does an answer with an earlier stop count");
        assertEquals(LossReason.WALL_CLOCK, setRight.stoppedBy(new Clock.Sent(39, 40)));
        assertEquals(LossReason.EXPIRED, setRight.stoppedBy(new Clock.Sent(40, 39)));
        assertEquals(null, setRight.stoppedBy(new Clock.Sent(39, 39)));
    }

    @Test
    void aGrantIsNoLongerThanItsRequest() {
        Duration hour = Duration.ofHours(1);
        Times.Left left = new Times.Left(hour, hour, hour).cappedBy(TTL, Duration.ofSeconds(2));
        assertEquals(new Times.Left(TTL, TTL, Duration.ofSeconds(2)), left);
    }
}
