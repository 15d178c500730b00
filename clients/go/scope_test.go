package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

var errDisk = errors.New("the disk is full")

func TestRunNeverHidesTheErrorOfTheBody(t *testing.T) {
	fake := newFake(t)
	fake.lie("/v1/release", problem(403, object{"kind": "denied", "effect": "none"}))
	var told error
	client := fake.client(leasehold.OnReleaseError(func(_ string, err error) { told = err }))
	err := client.Run(context.Background(), resource, func(context.Context, *leasehold.Lease) error { return errDisk })
	if err != errDisk {
		t.Errorf("got %v", err)
	}
	if !errors.Is(told, leasehold.ErrDenied) {
		t.Errorf("the release failed: %v", told)
	}
	err = client.Run(context.Background(), resource, func(context.Context, *leasehold.Lease) error { return nil })
	if err != nil {
		t.Errorf("the work was done: %v", err)
	}
}

func TestRunReleasesAfterAPanic(t *testing.T) {
	fake := newFake(t)
	client := fake.client()
	defer func() {
		if recover() != errDisk {
			t.Error("the panic goes on")
		}
		fake.await("/v1/release", 1)
	}()
	_ = client.Run(context.Background(), resource, func(context.Context, *leasehold.Lease) error { panic(errDisk) })
}

func TestRunSaysWhatABodyDidNotNotice(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	fake.lie("/v1/renew", hangUp)
	client := fake.client()
	wait := func(result error) error {
		return client.Run(context.Background(), resource, func(ctx context.Context, _ *leasehold.Lease) error {
			awaitEnd(t, ctx)
			return result
		}, leasehold.TTL(5*time.Second))
	}
	if err := wait(nil); !errors.Is(err, leasehold.ErrLost) {
		t.Errorf("got %v", err)
	}
	if err := wait(errDisk); !errors.Is(err, leasehold.ErrLost) || !errors.Is(err, errDisk) {
		t.Errorf("got %v", err)
	}
	// A body that releases early has lost nothing.
	err := client.Run(context.Background(), resource, func(ctx context.Context, lease *leasehold.Lease) error {
		if err := lease.Release(ctx); err != nil {
			return err
		}
		awaitEnd(t, ctx)
		if cause := leasehold.Cause(ctx); !errors.Is(cause, leasehold.ErrReleased) {
			t.Errorf("got %v", cause)
		}
		return nil
	})
	if err != nil {
		t.Errorf("got %v", err)
	}
}

func TestAReleaseIsSentAlthoughItsContextHasEnded(t *testing.T) {
	fake := newFake(t)
	ctx, cancel := context.WithCancel(context.Background())
	lease, held, err := fake.client().Acquire(ctx, resource)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-held.Done()
	if err := lease.Check(); err != nil {
		t.Errorf("it is held until it is released: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Errorf("got %v", err)
	}
	if len(fake.requests("/v1/release")) != 1 {
		t.Error("it was not sent")
	}
	if err := lease.Release(ctx); err != nil {
		t.Errorf("again: %v", err)
	}
	if len(fake.requests("/v1/release")) != 1 {
		t.Error("it was sent twice")
	}
}

func TestACallerThatCancelsLeavesNothing(t *testing.T) {
	fake := newFake(t)
	fake.lie("/v1/acquire", func(_ asked, w http.ResponseWriter, _ int, _ object) (int, object) {
		select {
		case <-w.(http.CloseNotifier).CloseNotify(): //nolint:staticcheck // the context of the request is not at hand
		case <-time.After(30 * time.Second):
		}
		return 0, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		fake.await("/v1/acquire", 1)
		cancel()
	}()
	_, _, err := fake.client().Acquire(ctx, resource)
	if !errors.Is(err, context.Canceled) || errors.Is(err, leasehold.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	released := fake.await("/v1/release", 1).leases()[0]
	if released["owner"] != fake.requests("/v1/acquire")[0].body["owner"] || released["bury_ms"] == nil {
		t.Errorf("got %v", released)
	}

	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := fake.client().Acquire(ctx, resource); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// A context that has ended before asks nobody.
	before := len(fake.requests("/v1/acquire"))
	if _, _, err := fake.client().Acquire(ctx, resource); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if len(fake.requests("/v1/acquire")) != before {
		t.Error("it asked")
	}
}

func TestAPlaceInTheQueueIsGivenBack(t *testing.T) {
	fake := newFake(t)
	queued := func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		answer := named(request.body)
		answer["verdict"], answer["place_ms"] = "queued", 6000
		return 202, answer
	}
	fake.lie("/v1/acquire", queued)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		fake.await("/v1/acquire", 2)
		cancel()
	}()
	if _, _, err := fake.client().Acquire(ctx, resource); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	first := fake.requests("/v1/acquire")[0].body
	if first["when_blocked"] != "queue" || first["wait_ms"].(float64) != 30_000 {
		t.Errorf("got %v", first)
	}
	if released := fake.await("/v1/release", 1).leases()[0]; released["owner"] != first["owner"] {
		t.Errorf("got %v", released)
	}
}

func TestAPlaceIsGivenBackAfterARefusal(t *testing.T) {
	fake := newFake(t)
	var left atomic.Int32
	left.Store(1)
	fake.lie("/v1/acquire", func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		if left.Add(-1) < 0 {
			return 403, object{"status": 403, "kind": "denied", "effect": "none"}
		}
		answer := named(request.body)
		answer["verdict"], answer["place_ms"] = "queued", 6000
		return 202, answer
	})
	if _, _, err := fake.client().Acquire(context.Background(), resource); !errors.Is(err, leasehold.ErrDenied) {
		t.Errorf("got %v", err)
	}
	claim := fake.requests("/v1/acquire")[0].body
	if released := fake.await("/v1/release", 1).leases()[0]; released["owner"] != claim["owner"] {
		t.Errorf("got %v", released)
	}
}

func TestADeniedRequestIsNotRepeated(t *testing.T) {
	fake := newFake(t)
	fake.lie("/v1/acquire", problem(401, object{"kind": "unauthenticated", "effect": "none", "detail": "no such token"}))
	_, _, err := fake.client().Acquire(context.Background(), resource)
	if !errors.Is(err, leasehold.ErrDenied) || !strings.Contains(err.Error(), "no such token") {
		t.Errorf("got %v", err)
	}
	if got := fake.requests("/v1/acquire"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestLeasesAreRenewedTogether(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	client := fake.client()
	var wait sync.WaitGroup
	for i := 0; i < 50; i++ {
		name := fmt.Sprintf("batch/%d", i)
		wait.Add(1)
		go func() {
			defer wait.Done()
			if _, _, err := client.TryAcquire(context.Background(), name, leasehold.TTL(9*time.Second)); err != nil {
				t.Error(err)
			}
		}()
	}
	wait.Wait()
	most := 0
	for nth := 1; most < 25; nth++ {
		if count := len(fake.await("/v1/renew", nth).leases()); count > most {
			most = count
		}
	}
}

func TestWhatIsNotHeldNeedsNoGoroutine(t *testing.T) {
	fake := newFake(t)
	before := runtime.NumGoroutine()
	client := fake.client()
	lease, _, err := client.TryAcquire(context.Background(), resource)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	client.CloseIdleConnections()
	for limit := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before+1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, before %d\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestALeaseIsSharedByGoroutines(t *testing.T) {
	fake := newFake(t)
	client := fake.client()
	lease, ctx, err := client.Acquire(context.Background(), resource, leasehold.TTL(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for i := 0; i < 8; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for ctx.Err() == nil {
				_ = lease.Check()
				_, _ = lease.Remaining(), lease.Evicting()
				_, _ = lease.Asked()
				_ = lease.SetNote(ctx, "busy")
			}
		}()
	}
	fake.await("/v1/renew", 50)
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	wait.Wait()
}
