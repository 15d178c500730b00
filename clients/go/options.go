package leasehold

import (
	"fmt"
	"time"
)

// DefaultTTL of a lease.
const DefaultTTL = 30 * time.Second

// forever is a wait that only the context ends.
const forever = time.Duration(-1)

// An Option is for acquiring.
type Option func(*request)

type request struct {
	ttl   time.Duration
	wait  time.Duration
	share interface{}
	note  *string
	label string
}

// TTL is how long the lease lasts if this process dies; as long as it lives, the lease is renewed in the background. Others
// wait for that long after a crash, and the program has a sixth of it to stop after a loss. The default is [DefaultTTL].
func TTL(ttl time.Duration) Option { return func(r *request) { r.ttl = ttl } }

// Wait is how long to wait at most while others hold the lease; 0 is a try. Without it only the context limits the wait.
func Wait(wait time.Duration) Option {
	return func(r *request) { r.wait = between(0, wait, longest) }
}

// Read acquires a read-write lock for reading: many may read.
func Read() Option { return func(r *request) { r.share = "read" } }

// Write acquires a read-write lock for writing: nobody else may read or write.
func Write() Option { return func(r *request) { r.share = "write" } }

// Semaphore acquires a weight of a capacity. All who use the resource must say the same capacity.
func Semaphore(weight, capacity uint32) Option {
	return func(r *request) { r.share = shareParts{weight, capacity} }
}

// Note is what others can read while the lease is held: the address of a leader, a progress. See [Lease.SetNote].
func Note(note string) Option { return func(r *request) { r.note = &note } }

// Label says what the lease is for, to people who look at who holds it.
func Label(label string) Option { return func(r *request) { r.label = label } }

func (c *Client) newRequest(options []Option) (request, error) {
	r := request{ttl: DefaultTTL, wait: forever, label: c.config.label}
	for _, option := range options {
		option(&r)
	}
	r.ttl = shorter(r.ttl, longest)
	if r.ttl < time.Millisecond {
		return r, &InvalidError{Kind: "invalid", Message: fmt.Sprintf("a ttl of %v is too short: give a few seconds", r.ttl)}
	}
	if parts, ok := r.share.(shareParts); ok && (parts.Weight < 1 || parts.Weight > parts.Capacity) {
		message := fmt.Sprintf("weight %d with capacity %d: the weight must be from 1 to the capacity", parts.Weight, parts.Capacity)
		return r, &InvalidError{Kind: "invalid", Message: message}
	}
	return r, nil
}
