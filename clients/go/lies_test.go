package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

const resource = "report/42"

// Answers that must not be taken for grants.
func grantsThatAreNone() map[string]lie {
	another := "0123456789abcdef0123456789abcdef"
	return map[string]lie{
		"of another resource":        with("key", "report/43"),
		"of no resource":             with("key", nil),
		"of another owner":           with("owner_hash", another),
		"of no owner":                with("owner_hash", nil),
		"without a token":            with("token", nil),
		"with a token that is none":  with("token", "x"),
		"with a pass of another":     with("pass", "7 "+another+" "+resource),
		"without a pass":             with("pass", nil),
		"with a token as a number":   with("token", 7),
		"with a negative time":       with("remaining_ms", -1),
		"that is over":               with("remaining_ms", 0),
		"with an unknown verdict":    with("verdict", "perhaps"),
		"of another store":           header("Leasehold-Store", "0000000000000000"),
		"of no store":                header("Leasehold-Store", ""),
		"of no leasehold server":     header("Leasehold-Api", ""),
		"of a server of the future":  header("Leasehold-Api", "2.0"),
		"of another request":         header("Leasehold-Request", "1"),
		"with the status of a queue": func(_ asked, _ http.ResponseWriter, _ int, b object) (int, object) { return 202, b },
		"with a status of its own":   func(_ asked, _ http.ResponseWriter, _ int, b object) (int, object) { return 207, b },
		"cut": func(_ asked, w http.ResponseWriter, _ int, _ object) (int, object) {
			w.Header().Set("Content-Length", "500")
			fmt.Fprint(w, `{"verdict":"granted",`)
			return 0, nil
		},
		"not JSON": func(_ asked, w http.ResponseWriter, _ int, _ object) (int, object) {
			fmt.Fprint(w, "<html>")
			return 0, nil
		},
		"elsewhere": func(_ asked, w http.ResponseWriter, _ int, b object) (int, object) {
			w.Header().Set("Location", "/v1/acquire?again")
			return 307, b
		},
		"no answer":              hangUp,
		"an error of a proxy":    problem(502, object{}),
		"contended, for another": problem(423, object{"kind": "contended", "effect": "none", "key": "report/43"}),
		"contended, for nobody":  problem(423, object{"kind": "contended", "effect": "none"}),
		"lost, for nobody":       problem(410, object{"kind": "lost", "why": "buried", "effect": "none"}),
	}
}

func TestAGrantThatDoesNotAnswerTheQuestionIsNone(t *testing.T) {
	t.Parallel()
	for name, how := range grantsThatAreNone() {
		name, how := name, how
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			client := fake.client()
			// The client knows the store.
			first, _, err := client.TryAcquire(context.Background(), "report/1")
			if err != nil {
				t.Fatal(err)
			}
			fake.lie("/v1/acquire", how)
			lease, _, err := client.TryAcquire(context.Background(), resource, leasehold.TTL(10*time.Second))
			var unavailable *leasehold.UnavailableError
			isUnknown := errors.As(err, &unavailable) && unavailable.Effect == leasehold.EffectUnknown
			// After another store has answered, nothing more is sent there.
			isStore := strings.HasPrefix(name, "of another store") && errors.Is(err, leasehold.ErrUnavailable)
			// It is released before the error is returned, so nothing of it is left.
			isOver := name == "that is over" && errors.As(err, &unavailable) && unavailable.Effect == leasehold.EffectNone
			if lease != nil || !isUnknown && !isOver && !isStore {
				t.Fatalf("got %v, %v", lease, err)
			}
			// What it may have left is cleared away, with a tombstone for requests that are still on their way.
			released := fake.await("/v1/release", 1).leases()[0]
			claim := fake.requests("/v1/acquire")[1].body
			if released["owner"] != claim["owner"] || released["resource"] != resource || released["bury_ms"].(float64) < 180_000 {
				t.Errorf("got %v for %v", released, claim)
			}
			if err := first.Check(); err != nil {
				t.Errorf("the other lease has nothing to do with it: %v", err)
			}
		})
	}
}

func TestARequestIsRepeatedWithTheSameOwnerToken(t *testing.T) {
	fake := newFake(t)
	var left atomic.Int32
	left.Store(3)
	fake.lie("/v1/acquire", func(a asked, w http.ResponseWriter, status int, body object) (int, object) {
		if left.Add(-1) >= 0 {
			return hangUp(a, w, status, body)
		}
		return status, body
	})
	client := fake.client()
	lease, _, err := client.Acquire(context.Background(), resource)
	if err != nil {
		t.Fatal(err)
	}
	claims := fake.requests("/v1/acquire")
	for _, claim := range claims {
		if claim.body["owner"] != claims[0].body["owner"] {
			t.Errorf("another owner token: %v", claim)
		}
	}
	// One of its requests went unanswered, so the release leaves a tombstone.
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if released := fake.await("/v1/release", 1).leases()[0]; released["bury_ms"] == nil {
		t.Errorf("got %v", released)
	}
	// Without doubt there is none.
	lease, _, err = client.Acquire(context.Background(), resource)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if released := fake.await("/v1/release", 2).leases()[0]; released["bury_ms"] != nil {
		t.Errorf("got %v", released)
	}
}

func TestATryIsRepeatedOnce(t *testing.T) {
	fake := newFake(t)
	var left atomic.Int32
	left.Store(1)
	fake.lie("/v1/acquire", func(a asked, w http.ResponseWriter, status int, body object) (int, object) {
		if left.Add(-1) >= 0 {
			return hangUp(a, w, status, body)
		}
		return status, body
	})
	client := fake.client()
	if _, _, err := client.TryAcquire(context.Background(), resource); err != nil {
		t.Fatal(err)
	}
	claims := fake.requests("/v1/acquire")
	if len(claims) != 2 || claims[0].body["owner"] != claims[1].body["owner"] {
		t.Errorf("got %v", claims)
	}
	left.Store(2)
	if _, _, err := client.TryAcquire(context.Background(), resource); !errors.Is(err, leasehold.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if claims := fake.requests("/v1/acquire"); len(claims) != 4 {
		t.Errorf("got %v", claims)
	}
}

func TestAServerThatClaimsToHaveWaitedForLongerThanItDidProlongsNothing(t *testing.T) {
	fake := newFake(t)
	fake.lie("/v1/acquire", func(_ asked, _ http.ResponseWriter, status int, body object) (int, object) {
		body["waited_ms"], body["ttl_ms"], body["remaining_ms"] = 1e15, 1e15, 1e15
		return status, body
	})
	lease, _, err := fake.client().TryAcquire(context.Background(), resource, leasehold.TTL(6*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if lease.TTL() != 6*time.Second || lease.Remaining() > 6*time.Second {
		t.Errorf("got %v and %v", lease.TTL(), lease.Remaining())
	}
}

// The clock ends a lease whatever is said of its renewal.
func TestRenewalsThatAreNone(t *testing.T) {
	t.Parallel()
	lies := map[string]lie{
		"of another key":        withEntry(object{"key": "report/43"}),
		"of another owner":      withEntry(object{"owner_hash": "0123456789abcdef0123456789abcdef"}),
		"of another store":      header("Leasehold-Store", "0000000000000000"),
		"another's loss":        withEntry(object{"key": "report/43", "status": 410, "verdict": "gone", "kind": "lost", "why": "evicted"}),
		"with nothing left":     withEntry(object{"remaining_ms": 0}),
		"unavailable":           withEntry(object{"status": 503, "verdict": "", "kind": "unavailable", "effect": "unknown"}),
		"with no entries":       with("leases", []object{}),
		"with an entry too few": with("leases", nil),
		"denied":                problem(403, object{"kind": "denied", "effect": "none"}),
		"no answer":             hangUp,
	}
	for name, how := range lies {
		name, how := name, how
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			fake.lie("/v1/renew", how)
			lease, ctx, err := fake.client().TryAcquire(context.Background(), resource, leasehold.TTL(6*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			awaitEnd(t, ctx)
			var lost *leasehold.LostError
			if !errors.As(leasehold.Cause(ctx), &lost) || lost.Why != leasehold.Expired {
				t.Errorf("got %v", leasehold.Cause(ctx))
			}
			if len(fake.requests("/v1/renew")) < 2 {
				t.Error("a renewal that fails is repeated")
			}
			if err := lease.Check(); !errors.Is(err, leasehold.ErrLost) {
				t.Errorf("got %v", err)
			}
			// Nobody is told before the work has ended; then the server is, and nobody waits for it.
			if len(fake.requests("/v1/release")) != 0 {
				t.Error("it was released while the work may go on")
			}
			if err := lease.Release(context.Background()); err != nil {
				t.Errorf("got %v", err)
			}
			fake.await("/v1/release", 1)
		})
	}
}

func TestALossThatTheServerTellsEndsTheLeaseAtOnce(t *testing.T) {
	t.Parallel()
	lost := func(why string) object {
		return object{"status": 410, "verdict": "gone", "kind": "lost", "why": why}
	}
	lies := map[string]struct {
		entry object
		why   leasehold.Why
	}{
		"not there":     {lost("not_there"), leasehold.NotThere},
		"evicted":       {lost("evicted"), leasehold.Evicted},
		"buried":        {lost("buried"), leasehold.Buried},
		"queued":        {object{"status": 202, "verdict": "queued"}, leasehold.NotThere},
		"another grant": {object{"grant": "8"}, leasehold.NotThere},
	}
	for name, told := range lies {
		told := told
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			fake.lie("/v1/renew", withEntry(told.entry))
			_, ctx, err := fake.client().TryAcquire(context.Background(), resource, leasehold.TTL(6*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			awaitEnd(t, ctx)
			var lost *leasehold.LostError
			if !errors.As(leasehold.Cause(ctx), &lost) || lost.Why != told.why {
				t.Errorf("got %v", leasehold.Cause(ctx))
			}
		})
	}
}

func TestALeaseIsRenewedByTheTTLThatWasGiven(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	fake.lie("/v1/acquire", func(_ asked, _ http.ResponseWriter, status int, body object) (int, object) {
		body["ttl_ms"], body["remaining_ms"] = 6000, 6000
		return status, body
	})
	lease, _, err := fake.client().TryAcquire(context.Background(), resource, leasehold.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	fake.await("/v1/renew", 2)
	if err := lease.Check(); err != nil {
		t.Error(err)
	}
}

func TestNothingIsWrittenWithoutAConnection(t *testing.T) {
	client, err := leasehold.New("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = client.TryAcquire(context.Background(), resource)
	var unavailable *leasehold.UnavailableError
	if !errors.As(err, &unavailable) || unavailable.Effect != leasehold.EffectNone {
		t.Errorf("got %v", err)
	}
	_, _, err = client.Acquire(context.Background(), resource, leasehold.Wait(300*time.Millisecond))
	if !errors.Is(err, leasehold.ErrUnavailable) || errors.Is(err, leasehold.ErrTimedOut) {
		t.Errorf("nobody is known to hold it: %v", err)
	}
}

func TestAnOrderIsNeverRepeated(t *testing.T) {
	fake := newFake(t)
	fake.lie("/v1/orders", hangUp)
	order := leasehold.Order{Resource: resource, Action: leasehold.Evict, Token: 7, Why: "it hangs"}
	err := fake.client().Order(context.Background(), order)
	var unavailable *leasehold.UnavailableError
	if !errors.As(err, &unavailable) || unavailable.Effect != leasehold.EffectUnknown {
		t.Errorf("got %v", err)
	}
	if got := fake.requests("/v1/orders"); len(got) != 1 || got[0].body["token"] != "7" {
		t.Errorf("got %v", got)
	}
	fake.lie("/v1/orders", problem(412, object{"kind": "not_that_one", "effect": "none", "key": resource, "token": "8"}))
	var changed *leasehold.HolderChangedError
	if err := fake.client().Order(context.Background(), order); !errors.As(err, &changed) || changed.Token != 8 {
		t.Errorf("got %v", err)
	}
	fake.lie("/v1/orders", problem(412, object{"kind": "not_that_one", "effect": "none", "key": resource}))
	err = fake.client().Order(context.Background(), order)
	if !errors.As(err, &changed) || changed.Token != 0 || !strings.HasSuffix(err.Error(), "the server names no newer one") {
		t.Errorf("got %v", err)
	}
}

// The lock of another program is seen, and an operator removes it by the hash of its value.
func TestTheLockOfAnotherProgram(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	lock := object{"key": "report:42", "form": "a string", "value_hash": "00112233445566ff", "remaining_ms": 1500}
	fake.lie("/v1/acquire", func(request asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		answer := named(request.body)
		answer["kind"], answer["effect"], answer["holders"], answer["foreign"] = "contended", "none", []object{}, lock
		return 423, answer
	})
	client := fake.client()
	_, _, err := client.TryAcquire(context.Background(), resource)
	var busy *leasehold.BusyError
	want := leasehold.ForeignLock{
		Key: "report:42", Form: "a string", ValueHash: "00112233445566ff", Remaining: 1500 * time.Millisecond,
	}
	if !errors.As(err, &busy) || busy.Foreign == nil || *busy.Foreign != want {
		t.Fatalf("got %+v", err)
	}
	if !strings.HasSuffix(err.Error(), "is held by a lock of another program (key report:42) for 1.5s more") {
		t.Errorf("got %v", err)
	}
	fake.lie("/v1/resource", func(_ asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		forever := object{"key": "report:\x1b42", "form": "a string", "value_hash": "00112233445566ff", "remaining_ms": nil}
		waiter := object{"holder": object{"host": "a", "pid": 1}, "weight": 1, "foreign": true}
		return 200, object{
			"resource": resource, "key": resource, "holders": []object{}, "foreign": []object{lock, forever}, "queue": []object{waiter},
		}
	})
	seen, err := client.Look(context.Background(), resource)
	if err != nil || len(seen.Foreign) != 2 || seen.Foreign[0] != want || !seen.Foreign[1].NeverExpires || !seen.Queue[0].Foreign {
		t.Fatalf("got %+v, %v", seen, err)
	}
	if text := seen.Foreign[1].String(); text != "a lock of another program (key report: 42) without an expiry" {
		t.Errorf("got %q", text)
	}
	fake.lie("/v1/orders", func(_ asked, _ http.ResponseWriter, status int, _ object) (int, object) {
		return status, object{"verdict": "done", "key": resource}
	})
	err = client.Order(context.Background(), leasehold.Order{
		Resource: resource, Action: leasehold.EvictForeign, ValueHash: busy.Foreign.ValueHash, Why: "its program is gone",
	})
	if err != nil {
		t.Fatal(err)
	}
	sent := fake.requests("/v1/orders")[0].body
	if sent["action"] != "evict-foreign" || sent["value_hash"] != "00112233445566ff" || sent["token"] != nil {
		t.Errorf("got %v", sent)
	}
}

func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	secret := "lh_0123456789abcdef_secret"
	client := fake.client(leasehold.WithToken(secret))
	lease, _, err := client.TryAcquire(context.Background(), resource)
	if err != nil {
		t.Fatal(err)
	}
	owner := fake.requests("/v1/acquire")[0].body["owner"].(string)
	fake.lie("/v1/acquire", hangUp)
	fake.lie("/v1/release", hangUp)
	_, _, failed := client.TryAcquire(context.Background(), resource)
	released := lease.Release(context.Background())
	_, address := leasehold.New("http://:" + secret + "@127.0.0.1:1?x")
	_, unparsed := leasehold.New("http://:" + secret + "@127.0.0.1:port")
	if failed == nil || released == nil || address == nil || unparsed == nil {
		t.Fatal("they fail")
	}
	var addresses []error
	for _, format := range []string{
		"app:%s@127.0.0.1", "http://%s@127.0.0.1:1", "http://127.0.0.1:1?token=%s", "http://127.0.0.1:1#%s", "//:%s@127.0.0.1",
		"https:%s", "http:///%s", "ftp://:%s@127.0.0.1/%[1]s",
	} {
		_, err := leasehold.New(fmt.Sprintf(format, secret))
		if !errors.Is(err, leasehold.ErrInvalid) {
			t.Errorf("%s: got %v", format, err)
		}
		addresses = append(addresses, err)
	}
	type wrapped struct {
		Lease  *leasehold.Lease
		client *leasehold.Client
	}
	for _, value := range []interface{}{
		lease, client, wrapped{lease, client}, &wrapped{lease, client}, failed, released, address, unparsed, addresses,
	} {
		for _, verb := range []string{"%v", "%+v", "%#v"} {
			if text := fmt.Sprintf(verb, value); strings.Contains(text, owner) || strings.Contains(text, secret) {
				t.Errorf("%s of %T has a secret: %s", verb, value, text)
			}
		}
	}
}
