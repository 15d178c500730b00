package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

func Example() {
	client, err := leasehold.New(server) // such as "http://localhost:7420"
	if err != nil {
		log.Fatal(err)
	}
	lease, ctx, err := client.Acquire(context.Background(), "report/42", leasehold.TTL(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	// The context ends with the lease, before anybody else is granted.
	fmt.Println("working:", ctx.Err() == nil, lease.Check() == nil)
	// Output: working: true true
}

func ExampleClient_Run() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	err = client.Run(context.Background(), "report/43", func(ctx context.Context, lease *leasehold.Lease) error {
		for page := 1; page <= 3; page++ {
			// Before each effect. It asks no server.
			if err := lease.Check(); err != nil {
				return err
			}
			fmt.Println("page", page)
		}
		return nil
	})
	if errors.Is(err, leasehold.ErrLost) {
		fmt.Println("somebody else may work on it by now:", err)
	} else if err != nil {
		log.Fatal(err)
	}
	// Output:
	// page 1
	// page 2
	// page 3
}

func ExampleClient_TryAcquire() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	lease, _, err := client.TryAcquire(ctx, "report/44", leasehold.Label("nightly"))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	_, _, err = client.TryAcquire(ctx, "report/44")
	var busy *leasehold.BusyError
	if errors.As(err, &busy) {
		fmt.Println("held for", busy.Holders[0].Label, "and worth asking again later:", busy.RetryAfter > 0)
	}
	// Output: held for nightly and worth asking again later: true
}

func ExampleSemaphore() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	// At most two of all programs use the database at the same time.
	for i := 0; i < 3; i++ {
		lease, _, err := client.TryAcquire(ctx, "db/main", leasehold.Semaphore(1, 2))
		if errors.Is(err, leasehold.ErrBusy) {
			fmt.Println("two of two are in use")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Release(ctx)
	}
	// Output: two of two are in use
}

func ExampleRead() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	read := func(ctx context.Context, lease *leasehold.Lease) error {
		_, _, err := client.TryAcquire(ctx, "document/1", leasehold.Write())
		fmt.Println("somebody reads, so nobody writes:", errors.Is(err, leasehold.ErrBusy))
		return nil
	}
	if err := client.Run(context.Background(), "document/1", read, leasehold.Read()); err != nil {
		log.Fatal(err)
	}
	// Output: somebody reads, so nobody writes: true
}

func ExampleClient_AcquireAll() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	all, ctx, err := client.AcquireAll(context.Background(), []string{"account/8", "account/7"})
	if err != nil {
		log.Fatal(err)
	}
	defer all.Release(ctx)
	for _, lease := range all.All() {
		fmt.Println(lease.Resource())
	}
	// Output:
	// account/7
	// account/8
}

// A leader is whoever holds the resource of the election. Observers follow it, and take no part.
func ExampleClient_Observe() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	lease, _, err := client.Acquire(ctx, "scheduler/eu", leasehold.Note("10.0.0.7:8080"))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	enough := errors.New("enough")
	err = client.Observe(ctx, "scheduler/eu", func(leader *leasehold.Leader) error {
		if leader == nil {
			fmt.Println("nobody leads")
			return nil
		}
		fmt.Println("the leader is at", leader.Value)
		return enough
	})
	if err != enough {
		log.Fatal(err)
	}
	// Output: the leader is at 10.0.0.7:8080
}

// The cause of the context says why the lease has ended.
func ExampleCause() {
	client, err := leasehold.New(server)
	if err != nil {
		log.Fatal(err)
	}
	lease, ctx, err := client.Acquire(context.Background(), "report/45")
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	<-ctx.Done()
	fmt.Println(leasehold.Cause(ctx))
	// Output: leasehold: the lease is released
}
