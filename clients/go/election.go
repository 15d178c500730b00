package leasehold

import (
	"context"
	"errors"
	"time"
)

// A Leader is who leads an election: the holder of its resource. A candidate is anybody who acquires the resource, usually
// with a [Note] that says where it can be reached.
type Leader struct {
	Process
	// Token of its grant: higher than that of every leader before.
	Token int64
	// Value is its note.
	Value string
}

// How long to wait after an answer that brought nothing new, at least.
const observePause = 50 * time.Millisecond

// Observe follows an election, without taking part: it calls tell with the leader now and after each change, and with nil
// when nobody leads. What comes and goes quickly may not be seen.
//
// It returns when ctx ends, when tell returns an error, or when asking again does not help ([DeniedError],
// [InvalidError]). While no server answers, it goes on asking, and tell is not called: what was told may be old.
func (c *Client) Observe(ctx context.Context, resource string, tell func(leader *Leader) error) error {
	var told *Leader
	isTold, cursor, pause := false, "", pauseFirst
	for {
		seen, err := c.look(ctx, resource, cursor, waitOnce)
		if ctx.Err() != nil {
			return cancelled(ctx, "observing "+resource)
		}
		isUnreadable := err == nil && seen.Unreadable != ""
		if errors.Is(err, ErrUnavailable) || isUnreadable {
			sleep(ctx, pause)
			pause = shorter(2*pause, pauseMax)
			continue
		}
		if err != nil {
			return err
		}
		pause = pauseFirst
		leader := leaderOf(seen)
		if isTold && sameLeader(told, leader) {
			sleep(ctx, observePause)
		} else if err := tell(leader); err != nil {
			return err
		}
		told, isTold, cursor = leader, true, seen.cursor
	}
}

func leaderOf(resource *Resource) *Leader {
	for i := len(resource.Holders) - 1; i >= 0; i-- {
		if holder := resource.Holders[i]; !holder.Kept {
			return &Leader{Process: holder.Process, Token: holder.Token, Value: holder.Note}
		}
	}
	return nil
}

func sameLeader(a, b *Leader) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
