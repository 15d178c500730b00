package leasehold

import (
	"context"
	"net/http"
	"sort"
	"sync"
	"time"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

// The clocks are looked at this often, because Go's timers stand still while Linux sleeps, and know nothing of the calendar.
const lookEvery = time.Second

// The server takes a thousand; a body of more than 64 KiB shares its memory with others.
const batchMax = 200

// keeper renews all leases of a client, and ends those whose time is over. It is one goroutine, as long as a lease is held,
// and one more for each request under way, so that no server that is silent delays the end of a lease.
type keeper struct {
	client *Client
	// Holds one: look again.
	wake chan struct{}

	mu        sync.Mutex
	leases    map[*Lease]struct{}
	isRunning bool
}

func (k *keeper) start(client *Client) {
	k.client, k.wake, k.leases = client, make(chan struct{}, 1), map[*Lease]struct{}{}
}

func (k *keeper) add(lease *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leases[lease] = struct{}{}
	if !k.isRunning {
		k.isRunning = true
		go k.run()
		return
	}
	k.lookAgain()
}

func (k *keeper) lookAgain() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	for {
		batches, pause := k.look()
		if pause == 0 {
			return
		}
		for _, batch := range batches {
			go k.renew(batch)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-k.wake:
		}
		timer.Stop()
	}
}

// look drops the leases that have ended, and says which to renew, and when to look again: never, if none is left.
func (k *keeper) look() ([][]*Lease, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var soon []*Lease
	isDue, pause := false, lookEvery
	for lease := range k.leases {
		if lease.isOver() {
			delete(k.leases, lease)
			continue
		}
		due, next := lease.isDue()
		isDue = isDue || due == dueNow
		if due != dueLater {
			soon = append(soon, lease)
		}
		pause = shorter(pause, next)
	}
	if len(k.leases) == 0 {
		k.isRunning = false
		return nil, 0
	}
	if !isDue {
		soon = nil
	}
	for _, lease := range soon {
		lease.setRenewing(true)
	}
	return batchesOf(soon), longer(pause, time.Millisecond)
}

type due int

const (
	dueLater due = iota
	// Worth going along with one that is due.
	dueSoon
	dueNow
)

// isDue says whether a lease is to be renewed, and how long it is until something is to be done for it.
func (l *Lease) isDue() (due, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := clock.Now()
	stop := longer(0, l.times.stopAt-now)
	if l.isRenewing {
		return dueLater, stop
	}
	left := l.times.renewAt - now
	switch {
	case left <= 0:
		return dueNow, stop
	case left <= l.ttl/6:
		return dueSoon, shorter(left, stop)
	}
	return dueLater, shorter(left, stop)
}

func (l *Lease) setRenewing(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isRenewing = is
}

// batchesOf puts leases of a similar ttl together: a batch has the time of its shortest lease to be answered.
func batchesOf(leases []*Lease) [][]*Lease {
	sort.Slice(leases, func(a, b int) bool { return leases[a].ttl < leases[b].ttl })
	var batches [][]*Lease
	for len(leases) > 0 {
		count := sort.Search(len(leases), func(i int) bool { return leases[i].ttl > 2*leases[0].ttl })
		if count > batchMax {
			count = batchMax
		}
		batches = append(batches, leases[:count])
		leases = leases[count:]
	}
	return batches
}

// renew renews a batch, and plans the next renewal of those that failed.
func (k *keeper) renew(batch []*Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), renewalTimeout(batch[0].ttl))
	defer cancel()
	errs := k.client.renew(ctx, batch, nil)
	for i, lease := range batch {
		lease.mu.Lock()
		lease.isRenewing = false
		if errs[i] != nil {
			lease.times.renewAt = clock.Now() + renewalRetry(lease.ttl)
		}
		lease.mu.Unlock()
	}
	k.lookAgain()
}

// renew sends one request for these leases, with a new note if there is one. A lease that the server says is gone has ended
// then; any other error changes nothing: the clock goes on.
func (c *Client) renew(ctx context.Context, leases []*Lease, note *string) []error {
	bodies := make([]renewBody, 0, len(leases))
	for _, lease := range leases {
		bodies = append(bodies, renewBody{lease.claim.resource, *lease.claim.owner, toMillis(lease.ttl), noteBodyOf(note)})
	}
	limit := renewalTimeout(leases[0].ttl)
	call := call{
		method: http.MethodPost, path: "/v1/renew", isLease: true, atMost: limit,
		body: leasesBody{bodies, toMillis(limit / 10 * 9)},
	}
	sent := sentAt{clock.Now(), clock.Wall()}
	answer, err := c.transport.send(ctx, call)
	replies, err := readEntries(answer, err, len(leases))
	errs := make([]error, len(leases))
	for i, lease := range leases {
		if err != nil {
			errs[i] = err
		} else {
			errs[i] = lease.renewed(answer, &replies[i], sent)
		}
		if errs[i] != nil && effectOf(errs[i]) == EffectUnknown {
			lease.noteUnanswered()
		}
	}
	return errs
}

// readEntries reads the entries of a list.
func readEntries(answer *answer, err error, count int) ([]reply, error) {
	if err != nil {
		return nil, err
	}
	var list leasesReply
	if err := answer.read(&list, "the leases"); err != nil {
		return nil, err
	}
	if len(list.Leases) != count {
		answer.dropConnections()
		return nil, unknown("the server's answer has not as many entries as the request", nil)
	}
	return list.Leases, nil
}

// renewed takes the answer to a renewal.
func (l *Lease) renewed(answer *answer, r *reply, sent sentAt) error {
	if err := l.claim.check(r); err != nil {
		answer.dropConnections()
		return err
	}
	switch {
	case r.Status == http.StatusOK && r.Verdict == "kept":
		if r.Grant.number() != l.number {
			// A delayed request of this owner token was granted anew. Others may have held it between.
			l.noteUnanswered()
			l.end(NotThere)
			return nil
		}
		l.prolong(r, sent)
		return nil
	case r.Status == http.StatusAccepted && r.Verdict == "queued":
		l.noteUnanswered()
		l.end(NotThere)
		return nil
	case r.Status == http.StatusGone && r.Kind == "lost":
		l.end(whyOf(r))
		return nil
	case r.Status >= 400 && r.Kind != "":
		return errorOf(r, l.claim.resource)
	}
	answer.dropConnections()
	return unknown("the server gave an answer that this client does not know", nil)
}

func (l *Lease) prolong(r *reply, sent sentAt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isEvicting = r.Evicting
	if r.Asked != nil && l.asked == nil {
		l.asked = &FinishRequest{Within: fromMillis(r.Asked.WithinMs), By: r.Asked.By, Why: r.Asked.Why}
	}
	given := r.given(l.ttl, 0)
	l.times = l.times.laterOf(timesOf(sent, given))
	if r.Evicting {
		// It is not extended any more, but the server may say that it is gone sooner.
		l.times.renewAt = longer(l.times.renewAt, sent.at+renewalRetry(l.ttl))
	}
}

func (l *Lease) noteUnanswered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hadUnanswered = true
}
