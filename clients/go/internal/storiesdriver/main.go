// The driver of this client for the stories that every client must tell: see crates/stories/README.md.
//
// It reads commands from standard input, one JSON object on each line, and writes answers and events to standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

type object map[string]interface{}

type command struct {
	ID        int             `json:"id"`
	Do        string          `json:"do"`
	Client    string          `json:"client"`
	URL       string          `json:"url"`
	Token     string          `json:"token"`
	Any       bool            `json:"any"`
	Lease     string          `json:"lease"`
	Observer  string          `json:"observer"`
	Resource  string          `json:"resource"`
	Resources []string        `json:"resources"`
	TTLMs     int64           `json:"ttl_ms"`
	WaitMs    int64           `json:"wait_ms"`
	Share     json.RawMessage `json:"share"`
	Note      *string         `json:"note"`
	Label     *string         `json:"label"`
	Of        int             `json:"of"`
	Body      string          `json:"body"`
	Prefix    string          `json:"prefix"`
	Action    string          `json:"action"`
	Why       string          `json:"why"`
}

// held is one lease or several, under one name.
type held interface {
	Check() error
	Release(context.Context) error
}

// driver has what the runner has named.
type driver struct {
	out *json.Encoder

	mu       sync.Mutex
	clients  map[string]*leasehold.Client
	leases   map[string]held
	commands map[int]context.CancelFunc
	// Closed to let the body of a scope go on.
	finish map[string]chan struct{}
}

func main() {
	d := &driver{
		out:      json.NewEncoder(os.Stdout),
		clients:  map[string]*leasehold.Client{},
		leases:   map[string]held{},
		commands: map[int]context.CancelFunc{},
		finish:   map[string]chan struct{}{},
	}
	cannot := object{
		"fork":  "a Go program has many threads and cannot fork without exec",
		"block": "goroutines have no event loop that one of them could block",
	}
	if !hasClock {
		cannot["wall_clock"] = "Go asks the kernel for the time, and this driver was built without cgo"
	}
	d.write(object{"hello": "go", "cannot": cannot})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "not a command:", err)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.commands[c.ID] = cancel
		d.mu.Unlock()
		go d.answer(ctx, c)
	}
}

func (d *driver) write(line object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.out.Encode(line); err != nil {
		os.Exit(1) // the runner is gone
	}
}

func (d *driver) answer(ctx context.Context, c command) {
	done, err := d.do(ctx, c)
	if err != nil {
		d.write(object{"id": c.ID, "error": errorObject(err)})
		return
	}
	if done == nil {
		done = object{}
	}
	d.write(object{"id": c.ID, "ok": done})
}
