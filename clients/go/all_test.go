package leasehold_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

// If the first lease is lost while the second is waited for, nothing is held, so the wait ends.
func TestALossWhileTheNextLeaseIsWaitedForEndsTheWait(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	fake.lie("/v1/acquire", func(request asked, w http.ResponseWriter, status int, body object) (int, object) {
		if request.body["resource"] == "a/1" {
			return status, body
		}
		// The second lease is held by others. Without the loss, the claim waits here.
		select {
		case <-w.(http.CloseNotifier).CloseNotify(): //nolint:staticcheck // the context of the request is not at hand
		case <-time.After(time.Minute):
		}
		return 0, nil
	})
	fake.lie("/v1/renew", withEntry(object{"status": 410, "verdict": "gone", "kind": "lost", "why": "evicted"}))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	all, got, err := fake.client().AcquireAll(ctx, []string{"a/2", "a/1"}, leasehold.TTL(9*time.Second))
	var lost *leasehold.LostError
	if all != nil || !errors.As(err, &lost) || lost.Why != leasehold.Evicted || lost.Resource != "a/1" {
		t.Fatalf("got %v, %v", all, err)
	}
	// The caller has not cancelled.
	if errors.Is(err, context.Canceled) || got != ctx || ctx.Err() != nil {
		t.Errorf("got %v, %v", err, got)
	}
	// The claim for the second lease is released: its request is under way.
	claim := fake.requests("/v1/acquire")[1].body
	if released := fake.await("/v1/release", 1).leases()[0]; released["owner"] != claim["owner"] {
		t.Errorf("got %v for %v", released, claim)
	}
}

// `lease, ctx, err := client.Acquire(ctx, …)` assigns the ctx of the caller.
func TestAnErrorLeavesTheCallerItsContext(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	client := fake.client()
	acquire := func(ctx context.Context, name string, options ...leasehold.Option) (context.Context, error) {
		_, got, err := client.Acquire(ctx, name, append(options, leasehold.Wait(0))...)
		return got, err
	}
	all := func(ctx context.Context, name string, options ...leasehold.Option) (context.Context, error) {
		_, got, err := client.AcquireAll(ctx, []string{name}, append(options, leasehold.Wait(0))...)
		return got, err
	}
	none := func(ctx context.Context, _ string, _ ...leasehold.Option) (context.Context, error) {
		_, got, err := client.AcquireAll(ctx, nil)
		return got, err
	}
	type key struct{}
	caller := context.WithValue(context.Background(), key{}, "the caller's")
	cancelled, cancel := context.WithCancel(caller)
	cancel()
	busy := func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		answer := named(request.body)
		answer["kind"], answer["effect"] = "contended", "none"
		return 423, answer
	}
	for name, test := range map[string]struct {
		how     lie
		ctx     context.Context
		name    string
		options []leasehold.Option
		want    error
	}{
		"busy":           {busy, caller, resource, nil, leasehold.ErrBusy},
		"denied":         {problem(403, object{"kind": "denied", "effect": "none"}), caller, resource, nil, leasehold.ErrDenied},
		"unavailable":    {hangUp, caller, resource, nil, leasehold.ErrUnavailable},
		"too late":       {with("remaining_ms", 0), caller, resource, nil, leasehold.ErrUnavailable},
		"a wrong name":   {nil, caller, "report", nil, leasehold.ErrInvalid},
		"a wrong option": {nil, caller, resource, []leasehold.Option{leasehold.TTL(0)}, leasehold.ErrInvalid},
		"cancelled":      {nil, cancelled, resource, nil, context.Canceled},
	} {
		fake.lie("/v1/acquire", test.how)
		for _, call := range []func(context.Context, string, ...leasehold.Option) (context.Context, error){acquire, all} {
			got, err := call(test.ctx, test.name, test.options...)
			if !errors.Is(err, test.want) {
				t.Errorf("%s: got %v", name, err)
			}
			if got != test.ctx {
				t.Errorf("%s: got the context %v", name, got)
			}
		}
	}
	if got, err := none(caller, ""); got != caller || !errors.Is(err, leasehold.ErrInvalid) {
		t.Errorf("got %v, %v", got, err)
	}
}
