// Export does its work under a lease. If another program holds it, it says who, and exits with 75.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

func main() {
	client, err := leasehold.New(os.Getenv("LEASEHOLD_URL"))
	if err != nil {
		log.Fatal(err)
	}
	export := func(ctx context.Context, lease *leasehold.Lease) error {
		if err := lease.Check(); err != nil { // before each effect
			return err
		}
		fmt.Println("exported with token", lease.Token())
		return nil
	}
	err = client.Run(context.Background(), "report/42", export, leasehold.TTL(30*time.Second), leasehold.Wait(time.Second))
	switch {
	case errors.Is(err, leasehold.ErrBusy):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(75)
	case err != nil:
		log.Fatal(err)
	}
}
