package leasehold

import (
	"context"
	"net/http"
	"time"
)

const (
	// How long a caller waits for a release.
	releaseMax = 5 * time.Second
	// How long a claim that was given up is cleared away in the background.
	farewellMax = 30 * time.Second
)

// ending is a release to send.
type ending struct {
	claim claim
	// How long its tombstone lasts, if one is needed.
	bury time.Duration
}

func (e ending) body() releaseBody {
	return releaseBody{Resource: e.claim.resource, Owner: *e.claim.owner, Bury: toMillis(e.bury)}
}

// release ends leases, and tells the server.
//
// The contexts of the leases end before that: the work must not go on while others are granted.
func (c *Client) release(ctx context.Context, leases []*Lease) error {
	var held, lost []ending
	for _, lease := range leases {
		before, isDoubtful := lease.endForRelease()
		ending := ending{claim: lease.claim}
		if isDoubtful {
			ending.bury = tombstone(lease.ttl)
		}
		switch {
		case before == nil:
			held = append(held, ending)
		case before.Why == Expired || before.Why == WallClock || isDoubtful && before.Why != Released:
			lost = append(lost, ending)
		}
	}
	c.keeper.lookAgain()
	if len(lost) > 0 {
		// The server may believe that we still hold it. Nobody waits for that.
		go func() { _ = c.sendEndings(detached{ctx}, releaseMax, lost) }()
	}
	if len(held) == 0 {
		return nil
	}
	return c.sendEndings(detached{ctx}, releaseMax, held)
}

// endForRelease ends the lease. It returns why it has ended before, and whether one of its requests went unanswered.
func (l *Lease) endForRelease() (*LostError, bool) {
	_ = l.Check() // it may be over, and nobody has noticed
	l.mu.Lock()
	before, isDoubtful := l.ended, l.isDoubtful
	if before == nil {
		l.endLocked(Released)
	}
	l.mu.Unlock()
	if before == nil {
		l.cancel(ErrReleased)
	}
	return before, isDoubtful
}

// sayFarewell clears away, in the background, what a claim that was given up may have left: a place, or a grant that did
// not arrive.
func (c *Client) sayFarewell(claim claim, ttl time.Duration) {
	endings := []ending{{claim, tombstone(ttl)}}
	go func() { _ = c.sendEndings(context.Background(), farewellMax, endings) }()
}

// sendEndings sends releases until the server has carried them out, or the time is over.
func (c *Client) sendEndings(ctx context.Context, limit time.Duration, endings []ending) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pause := pauseFirst
	for {
		var rest []ending
		var first error
		for len(endings) > 0 {
			count := len(endings)
			if count > batchMax {
				count = batchMax
			}
			failed, err := c.sendOnce(ctx, endings[:count])
			if first == nil {
				first = err
			}
			rest, endings = append(rest, failed...), endings[count:]
		}
		if len(rest) == 0 {
			return first
		}
		sleep(ctx, pause)
		if ctx.Err() != nil {
			return first
		}
		endings, pause = rest, shorter(2*pause, pauseMax)
	}
}

// sendOnce returns the releases that may succeed when they are sent again, and the first error.
func (c *Client) sendOnce(ctx context.Context, endings []ending) ([]ending, error) {
	bodies := make([]releaseBody, 0, len(endings))
	for _, ending := range endings {
		bodies = append(bodies, ending.body())
	}
	call := call{
		method: http.MethodPost, path: "/v1/release", isLease: true, atMost: releaseMax,
		body: leasesBody{bodies, toMillis(releaseMax / 10 * 9)},
	}
	answer, err := c.transport.send(ctx, call)
	replies, err := readEntries(answer, err, len(bodies))
	var rest []ending
	first := err
	for i, ending := range endings {
		failure := err
		if failure == nil {
			failure = ending.judge(answer, &replies[i])
		}
		if first == nil {
			first = failure
		}
		if _, isUnavailable := failure.(*UnavailableError); isUnavailable {
			rest = append(rest, ending)
		}
	}
	return rest, first
}

// judge reads the answer to a release.
func (e ending) judge(answer *answer, r *reply) error {
	if err := e.claim.check(r); err != nil {
		answer.distrust()
		return err
	}
	if r.Status == http.StatusOK && (r.Verdict == "released" || r.Verdict == "already_gone") {
		return nil
	}
	if r.Status >= 400 && r.Kind != "" {
		return errorOf(r, e.claim.resource)
	}
	answer.distrust()
	return unknown("the server gave an answer that this client does not know", nil)
}
