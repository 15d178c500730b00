package leasehold

import (
	"context"
	"time"
)

// detached has the values of a context, for tracing, and not its end: what a claim leaves behind is cleared away although
// its caller has cancelled. (context.WithoutCancel needs Go 1.21.)
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }
