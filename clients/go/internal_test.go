package leasehold

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

func TestTimesCountFromTheSendAndFromWhatRemains(t *testing.T) {
	ttl := 30 * time.Second
	sent := sentAt{at: 100 * time.Second, wall: 5e18}
	got := timesOf(sent, given{ttl: ttl, remaining: ttl})
	want := times{110 * time.Second, 124698 * time.Millisecond, 129698 * time.Millisecond, 5e18 + 24698e6}
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	// Asked again 12 s after the grant: the rest of the lease is shorter, and a renewal is overdue.
	rest := timesOf(sentAt{at: 112 * time.Second}, given{ttl: ttl, remaining: 18 * time.Second})
	if rest.deadline != want.deadline || rest.renewAt != 112*time.Second {
		t.Errorf("got %v", rest)
	}
	// The server's wait counts, less one per cent.
	waited := timesOf(sent, given{ttl: ttl, remaining: ttl, waited: 100 * time.Second})
	if waited.deadline != want.deadline+99*time.Second {
		t.Errorf("got %v", waited)
	}
	day := 24 * time.Hour
	if long := timesOf(sentAt{}, given{ttl: day, remaining: day}); long.renewAt != time.Minute {
		t.Errorf("a long lease is renewed every minute, not after %v", long.renewAt)
	}
	if dead := timesOf(sent, given{ttl: ttl}); dead.stopAt >= sent.at {
		t.Errorf("nothing is left of it: %v", dead)
	}
}

func TestNoTimeOfALeaseMovesBack(t *testing.T) {
	now := times{renewAt: 10, stopAt: 20, deadline: 30, wallStopAt: 40}
	if got := now.laterOf(times{9, 19, 29, 39}); got != (times{9, 20, 30, 40}) {
		t.Errorf("got %v", got)
	}
}

// If the calendar clock was an hour fast when a lease was granted, and has been set right since, the limit of the renewal
// counts: an hour more would hide that the machine sleeps.
func TestTheLimitOfTheCalendarClockIsThatOfTheAnswerThatCounts(t *testing.T) {
	const hour = int64(time.Hour)
	given := given{ttl: 30 * time.Second, remaining: 30 * time.Second}
	granted := timesOf(sentAt{at: 100 * time.Second, wall: 5e18 + hour}, given)
	renewed := timesOf(sentAt{at: 110 * time.Second, wall: 5e18 + 10e9}, given)
	if got := granted.laterOf(renewed); got != renewed {
		t.Errorf("got %v, want %v", got, renewed)
	}
	// A renewal that gives less changes nothing but the time of the next one.
	want := renewed
	want.renewAt = granted.renewAt
	if got := renewed.laterOf(granted); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A grant that is over by either clock is no lease.
func TestAGrantThatIsOverByTheCalendarClockComesTooLate(t *testing.T) {
	client, err := New("http://localhost:7420")
	if err != nil {
		t.Fatal(err)
	}
	const ttl = 10 * time.Minute
	now, wall := clock.Now(), clock.Wall()
	for name, sent := range map[string]sentAt{
		"the clock that counts sleep": {now - time.Hour, wall},
		"the calendar clock":          {now, wall - int64(time.Hour)},
	} {
		claim, err := newClaim("report/42", "report/42")
		if err != nil {
			t.Fatal(err)
		}
		a := &attempt{client: client, claim: claim, request: request{ttl: ttl}}
		r := &reply{
			Token: "7", Pass: "7 " + claim.ownerHash + " report/42",
			TTLMs: uint64(ttl.Milliseconds()), RemainingMs: uint64(ttl.Milliseconds()),
		}
		lease, err := a.hold(context.Background(), r, sent)
		if lease != nil || err != errTooLate {
			t.Errorf("%s: got %v, %v", name, lease, err)
		}
	}
	client.keeper.mu.Lock()
	defer client.keeper.mu.Unlock()
	if len(client.keeper.leases) != 0 {
		t.Error("it is renewed")
	}
}

func TestWhatRemainsIsTheLessOfBothClocks(t *testing.T) {
	lease := &Lease{times: timesOf(sentAt{clock.Now(), clock.Wall()}, given{ttl: time.Hour, remaining: time.Hour})}
	lease.times.wallStopAt = clock.Wall() + int64(time.Minute)
	if got := lease.Remaining(); got <= 0 || got > time.Minute {
		t.Errorf("got %v", got)
	}
	lease.times.wallStopAt = clock.Wall() - 1
	if got := lease.Remaining(); got != 0 {
		t.Errorf("got %v", got)
	}
}

func TestAnAnswerGivesNoMoreThanWasAskedFor(t *testing.T) {
	r := reply{TTLMs: 1 << 60, RemainingMs: 1 << 63, WaitedMs: 1 << 62}
	got := r.given(10*time.Second, time.Second)
	if got != (given{10 * time.Second, 10 * time.Second, time.Second}) {
		t.Errorf("got %v", got)
	}
}

func TestKeys(t *testing.T) {
	for resource, want := range map[string]string{
		"report/42":          "report/42",
		"acme:report/4 2":    "acme:report/4%202",
		"report/a/b c%20":    "report/a%2Fb%20c%2520",
		"report/ü":           "report/%C3%BC",
		"a.b_c-9/A-._:@+=,z": "a.b_c-9/A-._:@+=,z",
	} {
		if got, err := keyOf(resource); err != nil || got != want {
			t.Errorf("%q: got %q, %v", resource, got, err)
		}
	}
	for _, resource := range []string{
		"", "report", "Report/1", "report/", "/1", "a b/1", "report/\a", "report/\u0085", "report/\xff", ":report/1", "a:b:c/1",
		"report/" + strings.Repeat("x", 257), strings.Repeat("x", 65) + "/1",
	} {
		if got, err := keyOf(resource); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: got %q, %v", resource, got, err)
		}
	}
}

func TestTheOwnerHashIsThatOfTheDocumentation(t *testing.T) {
	first, err := newClaim("report/42", "report/42")
	if err != nil {
		t.Fatal(err)
	}
	second, _ := newClaim("report/42", "report/42")
	if len(*first.owner) != 32 || len(first.ownerHash) != 32 || *first.owner == *second.owner {
		t.Errorf("%q and %q", *first.owner, *second.owner)
	}
}

func TestTheCauseOfAnEndReachesContextsBelow(t *testing.T) {
	lost := &LostError{"report/42", Expired}
	outer, end := withCancelCause(context.Background())
	inner, endInner := withCancelCause(outer)
	below, cancel := context.WithTimeout(inner, time.Hour)
	defer cancel()
	if Cause(below) != nil {
		t.Error("it has not ended")
	}
	end(lost)
	<-below.Done()
	endInner(ErrReleased)
	if !errors.Is(Cause(below), ErrLost) || below.Err() != context.Canceled {
		t.Errorf("got %v and %v", Cause(below), below.Err())
	}

	// The caller's own end is no loss, and comes first.
	parent, cancelParent := context.WithCancel(context.Background())
	held, end := withCancelCause(parent)
	cancelParent()
	<-held.Done()
	end(lost)
	if got := Cause(held); got != context.Canceled {
		t.Errorf("got %v", got)
	}
}

func TestErrorsAreFoundBehindOthers(t *testing.T) {
	body := errors.New("the disk is full")
	err := bodyError(body, &LostError{"report/42", Evicted})
	var lost *LostError
	if !errors.Is(err, body) || !errors.Is(err, ErrLost) || !errors.As(err, &lost) || lost.Why != Evicted {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("the error of the body is hidden: %v", err)
	}
	if errors.Is(err, ErrReleased) || errors.Is(&LostError{"a/1", Expired}, ErrReleased) {
		t.Error("it was not released")
	}
	busy := &BusyError{Resource: "report/42"}
	if errors.Is(busy, ErrTimedOut) || !errors.Is(busy, ErrBusy) {
		t.Error("nobody waited")
	}
	busy.TimedOut = true
	if !errors.Is(busy, ErrTimedOut) || !errors.Is(busy, ErrBusy) {
		t.Error("somebody waited")
	}
}

func TestBatchesHaveLeasesOfASimilarTTL(t *testing.T) {
	var leases []*Lease
	for _, seconds := range []int{300, 1, 2, 250, 3} {
		leases = append(leases, &Lease{ttl: time.Duration(seconds) * time.Second})
	}
	for i := 0; i < batchMax+10; i++ {
		leases = append(leases, &Lease{ttl: 30 * time.Second})
	}
	var sizes []int
	for _, batch := range batchesOf(leases) {
		sizes = append(sizes, len(batch))
		if batch[len(batch)-1].ttl > 2*batch[0].ttl {
			t.Errorf("%v and %v", batch[0].ttl, batch[len(batch)-1].ttl)
		}
	}
	want := []int{2, 1, batchMax, 10, 2}
	if len(sizes) != len(want) {
		t.Fatalf("got %v, want %v", sizes, want)
	}
	for i := range want {
		if sizes[i] != want[i] {
			t.Fatalf("got %v, want %v", sizes, want)
		}
	}
}

func TestEachClockEndsALease(t *testing.T) {
	for _, test := range []struct {
		why    Why
		change func(*times)
	}{
		{Expired, func(t *times) { t.stopAt = clock.Now() }},
		{WallClock, func(t *times) { t.wallStopAt = clock.Wall() }},
		// With both, it is the clock that nobody sets.
		{Expired, func(t *times) { *t = times{} }},
	} {
		ctx, cancel := withCancelCause(context.Background())
		now := sentAt{clock.Now(), clock.Wall()}
		lease := &Lease{
			claim: claim{resource: "report/42"}, cancel: cancel,
			times: timesOf(now, given{ttl: time.Hour, remaining: time.Hour}),
		}
		if err := lease.Check(); err != nil || lease.Remaining() < 49*time.Minute {
			t.Fatalf("got %v, %v left", err, lease.Remaining())
		}
		test.change(&lease.times)
		var lost *LostError
		if err := lease.Check(); !errors.As(err, &lost) || lost.Why != test.why || lease.Remaining() != 0 {
			t.Errorf("got %v, want %v", err, test.why)
		}
		// A check that fails has told everybody.
		if !errors.Is(Cause(ctx), ErrLost) {
			t.Errorf("got %v", Cause(ctx))
		}
		// For good, whatever the clocks say.
		lease.times = timesOf(now, given{ttl: time.Hour, remaining: time.Hour})
		if lease.Check() == nil {
			t.Error("it came back")
		}
	}
}

func TestTextsOfOthersDoNotBreakALogLine(t *testing.T) {
	process := Process{Host: "a\nb", PID: 1, Label: "\x1b[31mred"}
	if got := process.String(); got != "1@a b ( [31mred)" {
		t.Errorf("got %q", got)
	}
}
