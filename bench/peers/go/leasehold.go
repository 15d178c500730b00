package main

import (
	"context"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

// leases is the client of this repository, through the server.
type leases struct{ client *leasehold.Client }

func newLeases(url string) (lock, error) {
	client, err := leasehold.New(url)
	if err != nil {
		return nil, err
	}
	return leases{client}, nil
}

func (l leases) acquire(ctx context.Context, _ int, resource string) (func() error, error) {
	lease, _, err := l.client.Acquire(ctx, "go/"+resource, leasehold.TTL(ttl))
	if err != nil {
		return nil, err
	}
	return func() error { return lease.Release(ctx) }, nil
}
