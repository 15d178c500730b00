package leasehold_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

// seenAs answers what is seen of a resource.
func seenAs(fields object) lie {
	return func(_ asked, _ http.ResponseWriter, _ int, _ object) (int, object) {
		body := object{"resource": resource, "key": resource, "cursor": "1"}
		for field, value := range fields {
			body[field] = value
		}
		return 200, body
	}
}

func ledBy(token, note string) lie {
	return seenAs(object{"holders": []object{{"holder": object{"host": "a", "pid": 1}, "token": token, "note": note}}})
}

// While nothing is known, nobody is told that nobody leads.
func TestAnObserverIsToldOnlyWhatIsKnown(t *testing.T) {
	t.Parallel()
	corrupt := problem(500, object{"kind": "corrupt", "effect": "none"})
	for name, unknown := range map[string]lie{
		"no answer":   hangUp,
		"unavailable": problem(503, object{"kind": "unavailable", "effect": "none"}),
		"corrupt":     corrupt,
		"unreadable":  seenAs(object{"unreadable": "the key has another type"}),
		"of another":  seenAs(object{"key": "report/43"}),
	} {
		unknown := unknown
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake(t)
			fake.lie("/v1/resource", firstThen(2, unknown, firstThen(1, ledBy("7", "a:1"),
				firstThen(2, unknown, firstThen(1, ledBy("7", "a:1"), ledBy("8", "b:1"))))))
			var told []leasehold.Leader
			enough := errors.New("enough")
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
			defer cancel()
			err := fake.client().Observe(ctx, resource, func(leader *leasehold.Leader) error {
				if leader == nil {
					return errors.New("told that nobody leads")
				}
				told = append(told, *leader)
				if leader.Token == 8 {
					return enough
				}
				return nil
			})
			if err != enough {
				t.Fatalf("got %v", err)
			}
			if len(told) != 2 || told[0].Token != 7 || told[0].Value != "a:1" || told[1].Value != "b:1" {
				t.Errorf("got %v", told)
			}
		})
	}
}

func TestAnObserverEndsIfAskingAgainDoesNotHelp(t *testing.T) {
	t.Parallel()
	fake := newFake(t)
	never := func(*leasehold.Leader) error { return errors.New("told") }
	for name, test := range map[string]struct {
		how      lie
		resource string
		want     error
	}{
		"denied":          {problem(403, object{"kind": "denied", "effect": "none"}), resource, leasehold.ErrDenied},
		"without a token": {problem(401, object{"kind": "unauthenticated", "effect": "none"}), resource, leasehold.ErrDenied},
		"invalid":         {problem(422, object{"kind": "invalid", "effect": "none"}), resource, leasehold.ErrInvalid},
		"no resource":     {nil, "report", leasehold.ErrInvalid},
	} {
		fake.lie("/v1/resource", test.how)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
		if err := fake.client().Observe(ctx, test.resource, never); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v", name, err)
		}
		cancel()
	}
	// The observer's own end.
	fake.lie("/v1/resource", hangUp)
	ctx, cancel := context.WithCancel(context.Background())
	before := len(fake.requests("/v1/resource"))
	go func() {
		fake.await("/v1/resource", before+2)
		cancel()
	}()
	if err := fake.client().Observe(ctx, resource, never); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
