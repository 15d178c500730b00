package leasehold

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

// A Lease is held until it is released, or lost. It is safe for any number of goroutines.
type Lease struct {
	client *Client
	claim  claim
	ttl    time.Duration
	// The token of an exclusive lease, or the number of a shared one.
	number int64
	pass   string
	// Ends the context of the lease.
	cancel func(error)

	mu    sync.Mutex
	times times
	// Why it has ended, or nil.
	ended *LostError
	// A request of this owner token went unanswered.
	hadUnanswered bool
	// A renewal is under way.
	isRenewing bool
	asked      *FinishRequest
	isEvicting bool
}

// A FinishRequest is an operator's request that a holder finish.
type FinishRequest struct {
	// Within is how much time the holder had when the request was noticed.
	Within time.Duration
	By     string
	Why    string
}

// hold begins to renew what an answer has granted, unless it is over already.
func (a *attempt) hold(ctx context.Context, r *reply, sent sentAt) (*Lease, error) {
	token, number := r.Token.number(), r.Number.number()
	isExclusive := a.request.share == nil
	if token == 0 && (isExclusive || number == 0) {
		return nil, unknown("the server's grant has no token", nil)
	}
	if token != 0 && r.Pass != fmt.Sprintf("%d %s %s", token, a.claim.ownerHash, a.claim.resource) {
		return nil, unknown("the pass of the server's grant does not fit its token", nil)
	}
	given := r.given(a.request.ttl, clock.Now()-sent.at)
	lease := &Lease{
		client: a.client, claim: a.claim, ttl: given.ttl, number: number, times: timesOf(sent, given), hadUnanswered: a.hadUnanswered,
	}
	if token != 0 {
		lease.number, lease.pass = token, r.Pass
	}
	held, cancel := withCancelCause(ctx)
	lease.cancel = cancel
	if lease.isOver() {
		return nil, errTooLate
	}
	a.held = held
	a.client.keeper.add(lease)
	return lease, nil
}

// Resource that is held.
func (l *Lease) Resource() string { return l.claim.resource }

// Token is the fencing token: higher than that of every earlier holder of this resource. What the work writes to must refuse
// lower ones. It is 0 for a lease that others may share, because its number has no order: see [Lease.Number].
func (l *Lease) Token() int64 {
	if l.pass == "" {
		return 0
	}
	return l.number
}

// Pass is what a holder presents to a fence: the token, a hash of the owner, and the resource. It holds no secret. It is
// empty for a lease that others may share.
func (l *Lease) Pass() string { return l.pass }

// Number of the grant: the token, if there is one. It names the grant in an [Order].
func (l *Lease) Number() int64 { return l.number }

// TTL that the server has given: it may be less than was asked for.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Remaining is how long the work may go on if no renewal succeeds any more, by the clock that says less. It is 0 after the end.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return 0
	}
	return longer(0, shorter(l.times.stopAt-clock.Now(), time.Duration(l.times.wallStopAt-clock.Wall())))
}

// Check returns nil if the lease is held at this moment, and a [*LostError] if it has ended. It asks no server: it looks at the
// clocks, so it is cheap enough for before each effect. A goroutine that was stopped between two lines learns from
// it what no timer could tell before.
func (l *Lease) Check() error {
	l.mu.Lock()
	now, wall := clock.Now(), clock.Wall()
	ended, isNew := l.ended, false
	if ended == nil {
		switch {
		case now >= l.times.stopAt:
			ended, isNew = l.endLocked(Expired), true
		case wall >= l.times.wallStopAt:
			ended, isNew = l.endLocked(WallClock), true
		}
	}
	l.mu.Unlock()
	if isNew {
		l.cancel(ended)
	}
	if ended != nil {
		return ended
	}
	return nil
}

// Asked is an operator's request that the holder finish, if there is one.
func (l *Lease) Asked() (FinishRequest, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked == nil {
		return FinishRequest{}, false
	}
	return *l.asked, true
}

// Evicting is true if an operator evicts the lease at its expiry: it is not renewed any more.
func (l *Lease) Evicting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isEvicting
}

// SetNote replaces the note that others can read. After an [UnavailableError] it may or may not have been replaced.
func (l *Lease) SetNote(ctx context.Context, note string) error {
	if err := l.Check(); err != nil {
		return err
	}
	err := l.client.renew(ctx, []*Lease{l}, &note)[0]
	if ended := l.Check(); ended != nil {
		return ended
	}
	if err != nil && ctx.Err() != nil {
		return cancelled(ctx, "writing the note of "+l.claim.resource)
	}
	return err
}

// Release releases the lease, and ends its context. Others are granted at once.
//
// It works although ctx has ended, so that `defer lease.Release(ctx)` does what it says, and takes five seconds at most. A
// lease that has ended before is nothing to release, and no error. After an error the lease ends by itself, within its
// ttl.
func (l *Lease) Release(ctx context.Context) error {
	return l.client.release(ctx, []*Lease{l})
}

// end ends the lease, unless it has ended before.
func (l *Lease) end(why Why) {
	l.mu.Lock()
	isNew := l.ended == nil
	if isNew {
		l.endLocked(why)
	}
	ended := l.ended
	l.mu.Unlock()
	if isNew {
		l.cancel(ended)
	}
}

func (l *Lease) endLocked(why Why) *LostError {
	l.ended = &LostError{Resource: l.claim.resource, Why: why}
	return l.ended
}

// isOver is whether the lease has ended, by now.
func (l *Lease) isOver() bool { return l.Check() != nil }

// String names the lease.
func (l *Lease) String() string {
	return fmt.Sprintf("lease of %s, number %d", l.claim.resource, l.number)
}

// GoString is String: %#v shows no secret.
func (l *Lease) GoString() string { return l.String() }
