package leasehold

import (
	"context"
	"errors"
	"math/rand"
	"net/http"
	"os"
	"time"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

// How a claim is made:
//
//  1. Draw an owner token. Every repetition of the request has the same one, so it finds its own grant.
//  2. Ask the server to wait, for half a minute at a time. As long as more time is left, the claim keeps its place in the
//     queue between two requests, and is asked again at once.
//  3. A request without an answer is sent again, after a pause.
//  4. If a grant is over when its answer arrives, release it in the background, and begin anew with a fresh owner token
//     (ADR 0095). If the server has a tombstone for the owner token, begin anew, too.
//  5. If Acquire gives up after an unanswered request, or during one, it releases the claim in the background, with a
//     tombstone: a delayed request of the claim is refused then.

const (
	// How long one request waits. Less than the minute after which many proxies cut a connection that is silent.
	waitOnce = 30 * time.Second
	// How much later than its wait a request may be answered.
	waitGrace = 10 * time.Second
	// What is left of a wait, and not worth another request.
	waitRest      = 20 * time.Millisecond
	pauseFirst    = 50 * time.Millisecond
	pauseMax      = time.Second
	pauseMaxTries = 5
	// A try that had no answer for longer is not repeated.
	tryRepeatedWithin = 2 * time.Second
	// After so many owner tokens with a tombstone, a try and a wait that is over are given up.
	tombstonesMax = 3
)

// attempt is one claim that is being made.
type attempt struct {
	client  *Client
	claim   claim
	request request
	// Whether a request of this owner token went unanswered: it may be granted later.
	hadUnanswered bool
	// Whether the server has a place in the queue or a grant for this owner token.
	isAtServer bool
	// How often the server had a tombstone for the owner token.
	tombstones int
	begunAt    time.Duration
	// When the wait is over, unless it is forever.
	endsAt time.Duration
	pauses int
	// Who held it, in the last answer.
	busy *BusyError
	// The context of the lease that was granted.
	held context.Context
}

// Acquire acquires the lease of a resource, and waits while others hold it: until the context ends, or for the time of
// [Wait]. Those who wait are granted in the order in which they came. While no server answers, it goes on asking.
//
// The lease is renewed in the background until [Lease.Release]. The context that is returned ends with the lease: do the
// work under it. It is cancelled a sixth of the ttl before anybody else can be granted, also if the server cannot be
// reached. [Cause] says why. It ends with ctx, too, but the lease does not: it is held until it is released or lost.
//
// If ctx ends while the claim waits, Acquire returns at once. What is left of the claim is cleared away in the background.
//
// If the process was stopped for so long that the lease was over when its grant arrived, that grant is released, and Acquire
// asks for a new one: for as long as it waits, then it fails with an [UnavailableError].
//
// With an error, the context that is returned is ctx, so `lease, ctx, err := client.Acquire(ctx, …)` loses nothing.
//
// Errors: [BusyError] (after [Wait]), [UnavailableError], [DeniedError], [InvalidError], and context.Canceled or
// context.DeadlineExceeded.
func (c *Client) Acquire(ctx context.Context, resource string, options ...Option) (*Lease, context.Context, error) {
	key, err := keyOf(resource)
	if err != nil {
		return nil, ctx, err
	}
	request, err := c.newRequest(options)
	if err != nil {
		return nil, ctx, err
	}
	return c.acquire(ctx, resource, key, request)
}

// TryAcquire is Acquire without waiting: a lease that others hold is a [BusyError].
func (c *Client) TryAcquire(ctx context.Context, resource string, options ...Option) (*Lease, context.Context, error) {
	return c.Acquire(ctx, resource, append(options[:len(options):len(options)], Wait(0))...)
}

func (c *Client) acquire(ctx context.Context, resource, key string, request request) (*Lease, context.Context, error) {
	claim, err := newClaim(resource, key)
	if err != nil {
		return nil, ctx, err
	}
	now := clock.Now()
	a := &attempt{client: c, claim: claim, request: request, begunAt: now, endsAt: now + request.wait}
	lease, err := a.run(ctx)
	if err == nil {
		return lease, a.held, nil
	}
	a.releaseIfAtServer()
	if a.hadUnanswered {
		err = withUnknownEffect(err)
	}
	return nil, ctx, err
}

// run asks until there is a grant, an error that asking again does not mend, or no time left.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	for {
		if ctx.Err() != nil {
			return nil, cancelled(ctx, "waiting for "+a.claim.resource)
		}
		lease, err := a.ask(ctx)
		if err == nil {
			return lease, nil
		}
		// Not errors.Is: the cause of a context that has ended may be the loss of another lease.
		if _, isTombstone := err.(*LostError); isTombstone || err == errTooLate {
			if failed := a.beginAnew(); failed != nil {
				return nil, failed
			}
		}
		if ctx.Err() != nil {
			return nil, cancelled(ctx, "waiting for "+a.claim.resource)
		}
		if err = a.next(ctx, err); err != nil {
			return nil, err
		}
	}
}

// errQueued: the claim has a place, and is to be asked again at once.
var errQueued = errors.New("leasehold: queued")

// errTooLate: the lease was granted, and was over when the answer arrived. ADR 0095.
var errTooLate = errors.New("leasehold: granted too late")

// beginAnew releases the claim, and draws a new owner token. The release of the old one may arrive late, so the old one is
// not used again.
func (a *attempt) beginAnew() error {
	fresh, err := newClaim(a.claim.resource, a.claim.key)
	if err != nil {
		return err
	}
	a.releaseIfAtServer()
	a.claim, a.hadUnanswered, a.isAtServer, a.busy = fresh, false, false, nil
	return nil
}

// releaseIfAtServer releases the claim in the background, if the server may know it.
func (a *attempt) releaseIfAtServer() {
	if a.hadUnanswered || a.isAtServer {
		a.client.releaseAbandonedClaim(a.claim, a.request.ttl)
	}
}

// next pauses before the next request, or returns the error of the caller.
func (a *attempt) next(ctx context.Context, err error) error {
	left := a.left()
	isOver := left <= waitRest
	var busy *BusyError
	var unavailable *UnavailableError
	var pause time.Duration
	lost, isTombstone := err.(*LostError)
	switch {
	case err == errTooLate:
		if isOver {
			return &UnavailableError{Effect: EffectNone, message: "the lease of " + a.claim.resource + " was granted, and was over " +
				"before the answer arrived: if this happens again, it needs a longer ttl"}
		}
		pause = a.nextPause()
	case isTombstone:
		a.tombstones++
		if isOver && a.tombstones > tombstonesMax {
			message := "the server refused each owner token for " + a.claim.resource + ": " + lost.reason()
			return &UnavailableError{Effect: EffectNone, message: message}
		}
		pause = a.nextPause()
	case err == errQueued:
		// A server that shuts down answers early.
		pause = a.nextPause()
	case errors.As(err, &busy):
		a.busy = busy
		if a.request.wait == 0 {
			return busy
		}
		busy.TimedOut = true
		if isOver {
			return busy
		}
		pause = longer(a.nextPause(), shorter(busy.RetryAfter, pauseMax)/2)
	case errors.As(err, &unavailable) && unavailable.Kind != "corrupt":
		if a.request.wait == 0 && !a.repeatsTry(unavailable.Effect) {
			return err
		}
		if a.request.wait != 0 && isOver {
			return a.outOfTime(err)
		}
		pause = longer(a.nextPause(), shorter(unavailable.RetryAfter, 10*time.Second))
	default:
		return err
	}
	if a.request.wait > 0 && !isOver {
		pause = shorter(pause, longer(0, left-waitRest/2))
	}
	sleep(ctx, pause)
	return nil
}

// repeatsTry is whether a try without an answer is sent again, once: its connection may have been idle for too long.
func (a *attempt) repeatsTry(effect Effect) bool {
	return effect == EffectUnknown && a.pauses == 0 && clock.Now()-a.begunAt < tryRepeatedWithin
}

// outOfTime is the error at the end of a wait whose last request had no answer: who held the lease before, if that is known.
func (a *attempt) outOfTime(err error) error {
	if a.busy != nil && !a.hadUnanswered {
		return a.busy
	}
	return err
}

// left is how much of the wait is left.
func (a *attempt) left() time.Duration {
	if a.request.wait == forever {
		return longest
	}
	return longer(0, a.endsAt-clock.Now())
}

// nextPause doubles, with some chance, so that those who wait do not all ask at the same time.
func (a *attempt) nextPause() time.Duration {
	pause := pauseMax
	if a.pauses < pauseMaxTries {
		pause = pauseFirst << uint(a.pauses)
	}
	a.pauses++
	return pause/2 + time.Duration(rand.Int63n(int64(pause)))
}

// ask sends one request.
func (a *attempt) ask(ctx context.Context) (*Lease, error) {
	transport := &a.client.transport
	if err := transport.checkOneStore(); err != nil {
		return nil, err
	}
	left := a.left()
	wait := shorter(left, waitOnce)
	staysQueued := left > wait
	call := call{method: http.MethodPost, path: "/v1/acquire", body: a.body(wait, staysQueued), atMost: wait + waitGrace}
	sent := sentAt{clock.Now(), clock.Wall()}
	answer, err := transport.send(ctx, call)
	if err != nil {
		return nil, a.noteUnanswered(err)
	}
	lease, err := a.judge(ctx, answer, sent, staysQueued)
	return lease, a.noteUnanswered(err)
}

// noteUnanswered notes whether a request may have been carried out, although it failed.
func (a *attempt) noteUnanswered(err error) error {
	a.hadUnanswered = a.hadUnanswered || effectOf(err) == EffectUnknown
	return err
}

// judge says what an answer means.
func (a *attempt) judge(ctx context.Context, answer *answer, sent sentAt, staysQueued bool) (*Lease, error) {
	var r reply
	if err := answer.decode(&r); err != nil {
		return nil, err
	}
	r.Status = answer.status
	if err := a.claim.check(&r); err != nil {
		answer.dropConnections()
		return nil, err
	}
	switch {
	case r.Status == http.StatusOK && r.Verdict == "granted":
		a.isAtServer = true
		// Another request may have met another store meanwhile.
		if err := a.client.transport.checkOneStore(); err != nil {
			return nil, unknown("the grant cannot be trusted", err)
		}
		return a.hold(ctx, &r, sent)
	// Only a claim that asked to stay in the queue is told so. Without that, the client would ask for ever.
	case r.Status == http.StatusAccepted && r.Verdict == "queued" && staysQueued:
		a.isAtServer = true
		if clock.Now()-sent.at >= pauseMax {
			a.pauses = 0
		}
		return nil, errQueued
	case r.Status >= 400 && r.Kind != "":
		if r.Kind == "contended" {
			a.isAtServer = false
		}
		return nil, errorOf(&r, a.claim.resource)
	}
	answer.dropConnections()
	return nil, unknown("the server gave an answer that this client does not know", nil)
}

func (a *attempt) body(wait time.Duration, staysQueued bool) claimBody {
	body := claimBody{
		Resource: a.claim.resource,
		Owner:    *a.claim.owner,
		TTL:      toMillis(a.request.ttl),
		Wait:     toMillis(wait),
		Share:    a.request.share,
		Level:    a.client.config.level,
		Host:     a.client.host,
		PID:      os.Getpid(),
		Label:    a.request.label,
		Process:  a.client.process,
		noteBody: noteBodyOf(a.request.note),
	}
	if staysQueued {
		body.WhenBlocked = "queue"
	}
	return body
}

// effectOf says whether a request that failed may have changed something.
func effectOf(err error) Effect {
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Effect
	}
	return EffectNone
}

// withUnknownEffect is the error of a claim whose last request had no effect, while an earlier one may have had one.
func withUnknownEffect(err error) error {
	unavailable, ok := err.(*UnavailableError)
	if !ok || unavailable.Effect == EffectUnknown {
		return err
	}
	changed := *unavailable
	changed.Effect = EffectUnknown
	return &changed
}

// cancelled is the error of a caller whose context has ended.
func cancelled(ctx context.Context, doing string) error {
	err, cause := ctx.Err(), Cause(ctx)
	return &withCause{err: err, cause: cause, text: "leasehold: " + doing + ": " + cause.Error()}
}

// sleep pauses, unless the context ends before.
func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
