package leasehold_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

// firstThen answers the first requests of a path in one way, and the others in another.
func firstThen(first int32, before, after lie) lie {
	var left atomic.Int32
	left.Store(first)
	return func(a asked, w http.ResponseWriter, status int, body object) (int, object) {
		if left.Add(-1) >= 0 {
			return before(a, w, status, body)
		}
		return after(a, w, status, body)
	}
}

func truthful(_ asked, _ http.ResponseWriter, status int, body object) (int, object) {
	return status, body
}

func effect(err error) leasehold.Effect {
	var unavailable *leasehold.UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Effect
	}
	return "not unavailable"
}

// If an earlier request went unanswered, it may have been granted, whatever the last answer says.
func TestAnEarlierRequestWithoutAnAnswerMayHaveBeenGranted(t *testing.T) {
	t.Parallel()
	unavailable := problem(503, object{"kind": "unavailable", "effect": "none"})
	for name, options := range map[string][]leasehold.Option{
		"a try":  {leasehold.Wait(0)},
		"a wait": {leasehold.Wait(3 * time.Second)},
	} {
		options := options
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			fake.lie("/v1/acquire", firstThen(1, hangUp, unavailable))
			_, _, err := fake.client().Acquire(context.Background(), resource, options...)
			if got := effect(err); got != leasehold.EffectUnknown {
				t.Errorf("got %v: %v", got, err)
			}
			if len(fake.requests("/v1/acquire")) < 2 {
				t.Error("the request was not sent again")
			}
			if released := fake.await("/v1/release", 1).leases()[0]; released["bury_ms"] == nil {
				t.Errorf("got %v", released)
			}
		})
	}
}

// ADR 0095.
func TestAGrantThatComesTooLateIsReleasedAndTheClaimBeginsAnew(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	fake.lie("/v1/acquire", firstThen(2, with("remaining_ms", 0), truthful))
	lease, held, err := fake.client().Acquire(context.Background(), resource)
	if err != nil {
		t.Fatal(err)
	}
	if lease.Check() != nil || held.Err() != nil {
		t.Errorf("got %v, %v", lease.Check(), held.Err())
	}
	owners := map[interface{}]bool{}
	for _, request := range fake.requests("/v1/acquire") {
		owners[request.body["owner"]] = true
	}
	if len(owners) != 3 {
		t.Errorf("each claim draws an owner token of its own: %v", owners)
	}
	current := fake.requests("/v1/acquire")[2].body["owner"]
	for nth := 1; nth <= 2; nth++ {
		released := fake.await("/v1/release", nth).leases()[0]
		if !owners[released["owner"]] || released["owner"] == current {
			t.Errorf("got %v", released)
		}
	}
	// The new claim has left nothing behind, so its release needs no tombstone.
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	last := fake.await("/v1/release", 3).leases()[0]
	if last["owner"] != current || last["bury_ms"] != nil {
		t.Errorf("got %v", last)
	}
}

func TestAClaimWhoseGrantsAllComeTooLateIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]leasehold.Option{
		"a try":  {leasehold.Wait(0)},
		"a wait": {leasehold.Wait(300 * time.Millisecond)},
	} {
		name, options := name, options
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			fake.lie("/v1/acquire", with("remaining_ms", 0))
			_, _, err := fake.client().Acquire(context.Background(), resource, options...)
			if got := effect(err); got != leasehold.EffectNone || errors.Is(err, leasehold.ErrLost) {
				t.Errorf("got %v: %v", got, err)
			}
			// Each of them is released.
			count := len(fake.requests("/v1/acquire"))
			fake.await("/v1/release", count)
			if name == "a try" && count != 1 {
				t.Errorf("a try is not made again: %d", count)
			}
		})
	}
}

// A claim that does not stay in the queue cannot be queued.
func TestAPlaceThatNobodyAskedForIsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"a try": 0, "a wait": 300 * time.Millisecond} {
		wait := wait
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			fake.lie("/v1/acquire", func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
				answer := named(request.body)
				answer["verdict"], answer["place_ms"] = "queued", 6000
				return 202, answer
			})
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_, _, err := fake.client().Acquire(ctx, resource, leasehold.Wait(wait))
			if got := effect(err); got != leasehold.EffectUnknown {
				t.Errorf("got %v: %v", got, err)
			}
			if count := len(fake.requests("/v1/acquire")); count > 30 {
				t.Errorf("it asked %d times", count)
			}
			fake.await("/v1/release", 1)
		})
	}
}

func TestAWaitMayBeAsLongAsADurationCanBe(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	busy := func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		answer := named(request.body)
		answer["kind"], answer["effect"] = "contended", "none"
		return 423, answer
	}
	fake.lie("/v1/acquire", firstThen(2, busy, truthful))
	lease, _, err := fake.client().Acquire(context.Background(), resource,
		leasehold.Wait(math.MaxInt64), leasehold.TTL(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	if lease.Remaining() <= 0 {
		t.Errorf("got %v", lease.Remaining())
	}
	for _, request := range fake.requests("/v1/acquire") {
		if request.body["ttl_ms"].(float64) <= 0 || request.body["wait_ms"].(float64) != 30_000 {
			t.Errorf("got %v", request.body)
		}
	}
	all, _, err := fake.client().AcquireAll(context.Background(), []string{"a/1", "a/2"}, leasehold.Wait(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Release(context.Background()); err != nil {
		t.Error(err)
	}
	for _, request := range fake.requests("/v1/acquire") {
		if request.body["wait_ms"].(float64) != 30_000 {
			t.Errorf("got %v", request.body)
		}
	}
}

// A release that the server refuses for good is told, although the others succeed when they are sent again.
func TestARefusalInTheFirstRoundOfReleasesIsTold(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	client := fake.client()
	all, _, err := client.AcquireAll(context.Background(), []string{"a/1", "a/2"})
	if err != nil {
		t.Fatal(err)
	}
	fake.lie("/v1/release", firstThen(1, func(_ asked, _ http.ResponseWriter, status int, body object) (int, object) {
		entries := body["leases"].([]object)
		entries[0]["status"], entries[0]["verdict"], entries[0]["kind"] = 503, "", "unavailable"
		entries[1]["status"], entries[1]["verdict"], entries[1]["kind"] = 403, "", "denied"
		return status, body
	}, truthful))
	if err := all.Release(context.Background()); !errors.Is(err, leasehold.ErrDenied) {
		t.Errorf("got %v", err)
	}
	if count := len(fake.requests("/v1/release")); count != 2 {
		t.Errorf("got %d requests", count)
	}
}

// An operator may evict a claim whose grant has not arrived, or an earlier release may have left a tombstone.
func TestAClaimWithATombstoneBeginsAnew(t *testing.T) {
	t.Parallel()
	buried := func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		answer := named(request.body)
		answer["kind"], answer["why"], answer["effect"] = "lost", "buried", "none"
		return 410, answer
	}
	fake := newFake(t)
	fake.lie("/v1/acquire", firstThen(1, hangUp, firstThen(1, buried, truthful)))
	lease, _, err := fake.client().Acquire(context.Background(), resource)
	if err != nil {
		t.Fatal(err)
	}
	claims := fake.requests("/v1/acquire")
	old, current := claims[0].body["owner"], claims[2].body["owner"]
	if old != claims[1].body["owner"] || old == current {
		t.Errorf("got %v", claims)
	}
	// A request of the old claim may still be under way.
	if released := fake.await("/v1/release", 1).leases()[0]; released["owner"] != old || released["bury_ms"] == nil {
		t.Errorf("got %v", released)
	}
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if released := fake.await("/v1/release", 2).leases()[0]; released["owner"] != current || released["bury_ms"] != nil {
		t.Errorf("got %v", released)
	}

	// Not for ever.
	for name, wait := range map[string]time.Duration{"a try": 0, "a wait": 100 * time.Millisecond} {
		fake := newFake(t)
		fake.lie("/v1/acquire", buried)
		_, _, err := fake.client().Acquire(context.Background(), resource, leasehold.Wait(wait))
		if got := effect(err); got != leasehold.EffectNone || errors.Is(err, leasehold.ErrLost) {
			t.Errorf("%s: got %v: %v", name, got, err)
		}
		owners := map[interface{}]bool{}
		claims := fake.requests("/v1/acquire")
		for _, request := range claims {
			owners[request.body["owner"]] = true
		}
		if len(claims) < 4 || len(owners) != len(claims) {
			t.Errorf("%s: got %v", name, claims)
		}
	}
}
