//go:build go1.20

package leasehold

import "context"

func withCancelCause(parent context.Context) (context.Context, func(error)) {
	ctx, cancel := context.WithCancelCause(parent)
	return ctx, cancel
}

// Cause says why the context of a lease, or a context made from it, has ended: a [*LostError], [ErrReleased], or what ended
// the caller's own context. It is nil as long as the context has not ended.
//
// From Go 1.20 on it is [context.Cause]; programs for Go 1.19 use this one.
func Cause(ctx context.Context) error { return context.Cause(ctx) }
