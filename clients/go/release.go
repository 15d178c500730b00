package leasehold

import (
	"context"
	"net/http"
	"time"
)

const (
	// How long a caller waits for a release.
	releaseMax = 5 * time.Second
	// How long the release of an abandoned claim is sent again, in the background.
	abandonedReleaseTimeout = 30 * time.Second
)

// releaseRequest is a release to send.
type releaseRequest struct {
	claim claim
	// How long its tombstone lasts, or 0: without an unanswered request none is needed.
	tombstoneFor time.Duration
}

func (q releaseRequest) body() releaseBody {
	return releaseBody{Resource: q.claim.resource, Owner: *q.claim.owner, Bury: toMillis(q.tombstoneFor)}
}

// release ends leases, and tells the server.
//
// The contexts of the leases end before that: the work must not go on while others are granted.
func (c *Client) release(ctx context.Context, leases []*Lease) error {
	var held, lost []releaseRequest
	for _, lease := range leases {
		before, hadUnanswered := lease.endForRelease()
		request := releaseRequest{claim: lease.claim}
		if hadUnanswered {
			request.tombstoneFor = tombstone(lease.ttl)
		}
		switch {
		case before == nil:
			held = append(held, request)
		case before.Why == Expired || before.Why == WallClock || hadUnanswered && before.Why != Released:
			lost = append(lost, request)
		}
	}
	c.keeper.lookAgain()
	if len(lost) > 0 {
		// The server may believe that we still hold it. Nobody waits for that.
		go func() { _ = c.sendReleases(detached{ctx}, releaseMax, lost) }()
	}
	if len(held) == 0 {
		return nil
	}
	return c.sendReleases(detached{ctx}, releaseMax, held)
}

// endForRelease ends the lease. It returns why it has ended before, and whether one of its requests went unanswered.
func (l *Lease) endForRelease() (*LostError, bool) {
	_ = l.Check() // it may be over, and nobody has noticed
	l.mu.Lock()
	before, hadUnanswered := l.ended, l.hadUnanswered
	if before == nil {
		l.endLocked(Released)
	}
	l.mu.Unlock()
	if before == nil {
		l.cancel(ErrReleased)
	}
	return before, hadUnanswered
}

// releaseAbandonedClaim releases, in the background, what a claim that was given up may have left at the server: a place in
// the queue, or a grant whose answer did not arrive.
func (c *Client) releaseAbandonedClaim(claim claim, ttl time.Duration) {
	requests := []releaseRequest{{claim, tombstone(ttl)}}
	go func() { _ = c.sendReleases(context.Background(), abandonedReleaseTimeout, requests) }()
}

// sendReleases sends releases until the server has carried them out, has refused them, or the time is over. A refusal is
// final, so it is the error although the others succeed later.
func (c *Client) sendReleases(ctx context.Context, limit time.Duration, requests []releaseRequest) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pause := pauseFirst
	var refused error
	for {
		var rest []releaseRequest
		var unanswered error
		for len(requests) > 0 {
			count := len(requests)
			if count > batchMax {
				count = batchMax
			}
			for i, err := range c.sendOnce(ctx, requests[:count]) {
				if _, isUnavailable := err.(*UnavailableError); isUnavailable {
					rest, unanswered = append(rest, requests[i]), firstOf(unanswered, err)
				} else {
					refused = firstOf(refused, err)
				}
			}
			requests = requests[count:]
		}
		if len(rest) == 0 {
			return refused
		}
		sleep(ctx, pause)
		if ctx.Err() != nil {
			return firstOf(refused, unanswered)
		}
		requests, pause = rest, shorter(2*pause, pauseMax)
	}
}

func firstOf(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// sendOnce returns an error for each release, or nil. Those that are an [UnavailableError] are worth sending again.
func (c *Client) sendOnce(ctx context.Context, requests []releaseRequest) []error {
	bodies := make([]releaseBody, 0, len(requests))
	for _, request := range requests {
		bodies = append(bodies, request.body())
	}
	call := call{
		method: http.MethodPost, path: "/v1/release", isLease: true, atMost: releaseMax,
		body: leasesBody{bodies, toMillis(releaseMax / 10 * 9)},
	}
	answer, err := c.transport.send(ctx, call)
	replies, err := readEntries(answer, err, len(bodies))
	errs := make([]error, len(requests))
	for i, request := range requests {
		errs[i] = err
		if err == nil {
			errs[i] = request.judge(answer, &replies[i])
		}
	}
	return errs
}

// judge reads the answer to a release.
func (q releaseRequest) judge(answer *answer, r *reply) error {
	if err := q.claim.check(r); err != nil {
		answer.dropConnections()
		return err
	}
	if r.Status == http.StatusOK && (r.Verdict == "released" || r.Verdict == "already_gone") {
		return nil
	}
	if r.Status >= 400 && r.Kind != "" {
		return errorOf(r, q.claim.resource)
	}
	answer.dropConnections()
	return unknown("the server gave an answer that this client does not know", nil)
}
