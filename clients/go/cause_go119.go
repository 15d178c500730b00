//go:build !go1.20

package leasehold

import (
	"context"
	"sync"
)

// causeContext carries the cause of its end. Go 1.19, which Debian 12 has, knows no context.WithCancelCause.
type causeContext struct {
	context.Context
	parent context.Context
	mu     sync.Mutex
	cause  error
}

type causeKey struct{}

func withCancelCause(parent context.Context) (context.Context, func(error)) {
	inner, cancel := context.WithCancel(parent)
	ctx := &causeContext{Context: inner, parent: parent}
	return ctx, func(cause error) {
		ctx.mu.Lock()
		if ctx.cause == nil && inner.Err() == nil {
			ctx.cause = cause
		}
		ctx.mu.Unlock()
		cancel()
	}
}

// Value gives contexts that are made from this one a way to it.
func (c *causeContext) Value(key interface{}) interface{} {
	if key == (causeKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Cause says why the context of a lease, or a context made from it, has ended: a [*LostError], [ErrReleased], or what ended
// the caller's own context. It is nil as long as the context has not ended.
//
// From Go 1.20 on it is context.Cause; programs for Go 1.19 use this one.
func Cause(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	carrier, _ := ctx.Value(causeKey{}).(*causeContext)
	if carrier == nil || carrier.Err() == nil {
		return err
	}
	carrier.mu.Lock()
	cause := carrier.cause
	carrier.mu.Unlock()
	if cause != nil {
		return cause
	}
	return Cause(carrier.parent)
}
