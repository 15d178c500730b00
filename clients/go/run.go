package leasehold

import (
	"context"
	"errors"
)

// Run does work under a lease: it acquires the lease as [Client.Acquire] does, calls the body with a context that ends with
// the lease, and releases it, whatever the body does.
//
// The error is the body's own. If the lease was lost meanwhile, it is both: errors.Is(err, ErrLost) is true, and the
// body's error is still found by errors.Is and errors.As. A release that fails is no error of the work: see
// [OnReleaseError].
func (c *Client) Run(ctx context.Context, resource string, body func(context.Context, *Lease) error, options ...Option) error {
	lease, held, err := c.Acquire(ctx, resource, options...)
	if err != nil {
		return err
	}
	// Also if the body panics.
	defer func() {
		if failed := lease.Release(ctx); failed != nil && c.config.onReleaseError != nil {
			c.config.onReleaseError(resource, failed)
		}
	}()
	err = body(held, lease)
	// A body that releases the lease itself has not lost it.
	lost := lease.Check()
	if lost == nil || errors.Is(lost, ErrReleased) {
		return err
	}
	return bodyError(err, lost)
}

// bodyError is the error of a body whose lease was lost.
func bodyError(err, lost error) error {
	if err == nil || errors.Is(err, ErrLost) {
		if err == nil {
			return lost
		}
		return err
	}
	return &withCause{err: err, cause: lost, text: err.Error() + " (" + lost.Error() + ")"}
}
