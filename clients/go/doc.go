// Package leasehold acquires leases: locks that end by themselves if their holder dies. They are kept by a server,
// `leasehold serve`, in SQLite, Redis, PostgreSQL, etcd or ZooKeeper.
//
//	client, err := leasehold.New("http://localhost:7420")
//	…
//	lease, ctx, err := client.Acquire(ctx, "report/42", leasehold.TTL(30*time.Second))
//	if err != nil {
//		return err
//	}
//	defer lease.Release(ctx)
//
// # What holds
//
// As long as the context of a lease has not ended and [Lease.Check] returns nil, nobody else holds the resource, as far as the
// store keeps its promise. The context ends a sixth of the ttl before anybody else can be granted: by this machine's clock,
// also if the server cannot be reached. That sixth is the time that the work has to stop.
//
// A program can be stopped between a check and an effect: by its garbage collector, its virtual machine, a signal. If a write
// must not happen twice, send the token with it ([Lease.Token], [Lease.Pass]) and let the database refuse lower tokens: that is
// a fence.
//
// # Names
//
// A resource is [namespace:]kind/id: "report/42", "acme:order/7". An id may be any text of up to 256 bytes.
//
// # Connections
//
// Claims that wait have a connection each, over HTTP/1.1. Renewals and releases have connections of their own.
package leasehold
