package leasehold

import (
	"context"
	"fmt"
	"sort"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

// Leases are several leases that were acquired at once.
type Leases struct {
	client *Client
	leases []*Lease
}

// AcquireAll acquires several leases, all or none, and waits while others hold one of them. It acquires them one after the
// other, in the byte order of their keys: two programs that do so cannot wait for each other.
//
// The context that is returned ends as soon as one of them is lost. [Wait] is for all of them together. If one is lost while
// the next one is waited for, AcquireAll releases the others and returns the [LostError]. The other errors are those of
// [Client.Acquire]; with an error, the context that is returned is ctx.
func (c *Client) AcquireAll(ctx context.Context, resources []string, options ...Option) (*Leases, context.Context, error) {
	request, err := c.newRequest(options)
	if err != nil {
		return nil, ctx, err
	}
	wanted, err := inOrder(resources)
	if err != nil {
		return nil, ctx, err
	}
	all, held := &Leases{client: c}, ctx
	endsAt := clock.Now() + request.wait
	for _, next := range wanted {
		if request.wait > 0 {
			request.wait = longer(waitRest, endsAt-clock.Now())
		}
		// Under the context of the lease before: if that is lost, the wait for the next one ends.
		lease, inner, err := c.acquire(held, next.resource, next.key, request)
		if err == nil {
			all.leases, held = append(all.leases, lease), inner
		}
		// Also after a grant: the clocks may say more than the contexts.
		if lost := all.Check(); lost != nil && ctx.Err() == nil {
			err = lost
		}
		if err != nil {
			_ = all.Release(ctx) // if it fails, the leases end by themselves
			return nil, ctx, err
		}
	}
	return all, held, nil
}

type keyed struct{ resource, key string }

func inOrder(resources []string) ([]keyed, error) {
	if len(resources) == 0 {
		return nil, &InvalidError{Kind: "invalid", Message: "no resources are named"}
	}
	wanted := make([]keyed, 0, len(resources))
	for _, resource := range resources {
		key, err := keyOf(resource)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, keyed{resource, key})
	}
	sort.Slice(wanted, func(a, b int) bool { return wanted[a].key < wanted[b].key })
	for i := 1; i < len(wanted); i++ {
		if wanted[i].key == wanted[i-1].key {
			return nil, &InvalidError{Kind: "invalid", Message: fmt.Sprintf("%q is named twice", wanted[i].resource)}
		}
	}
	return wanted, nil
}

// All of them, in the order in which they were acquired.
func (l *Leases) All() []*Lease { return append([]*Lease(nil), l.leases...) }

// Check returns nil if all of them are held at this moment, and a [*LostError] if one has ended: see [Lease.Check].
func (l *Leases) Check() error {
	for _, lease := range l.leases {
		if err := lease.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all of them, as [Lease.Release] does.
func (l *Leases) Release(ctx context.Context) error { return l.client.release(ctx, l.leases) }
