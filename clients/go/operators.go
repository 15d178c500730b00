package leasehold

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Process is a program, as it says of itself.
type Process struct {
	Host  string
	PID   uint32
	Label string
	// Subject is who the server took it for, by its token or certificate.
	Subject string
}

func (p Process) String() string {
	name := fmt.Sprintf("%d@%s", p.PID, p.Host)
	if p.Label != "" {
		name += " (" + p.Label + ")"
	}
	return printable(name)
}

// A Holder is somebody who holds a resource.
type Holder struct {
	Process
	// Token of its grant; of a shared grant, its number.
	Token   int64
	Weight  uint32
	HeldFor time.Duration
	// Remaining until it expires, unless it is renewed.
	Remaining time.Duration
	Note      string
	// Evicting: an operator evicted it at its expiry.
	Evicting bool
	// Kept closed after a release: nobody holds it.
	Kept bool
}

func (h Holder) String() string {
	return fmt.Sprintf("%v for %v more", h.Process, h.Remaining.Round(100*time.Millisecond))
}

// A ForeignLock is a lock of another program, which knows nothing of leasehold, on the same resource.
type ForeignLock struct {
	// Key in the store.
	Key string
	// Form says what it is, in the words of the store.
	Form string
	// ValueHash names it in an [Order] with [EvictForeign]. It shows nothing of the lock's value.
	ValueHash string
	// Remaining until it expires, unless NeverExpires.
	Remaining    time.Duration
	NeverExpires bool
}

func (f ForeignLock) String() string {
	until := fmt.Sprintf("for %v more", f.Remaining.Round(100*time.Millisecond))
	if f.NeverExpires {
		until = "without an expiry"
	}
	return printable(fmt.Sprintf("a lock of another program (key %s) %s", f.Key, until))
}

// A Waiter is a claim in a queue.
type Waiter struct {
	Process
	Weight uint32
	Waited time.Duration
	// Silent: it could have been granted, and did not answer.
	Silent bool
	// Foreign: it is a lock of another program.
	Foreign bool
}

// A Resource is a resource as it is now.
type Resource struct {
	Name        string
	Key         string
	Capacity    uint32
	Holders     []Holder
	HolderCount int
	// Foreign are the locks of other programs that hold it.
	Foreign     []ForeignLock
	Queue       []Waiter
	QueueLength int
	// LastToken that was granted, where the store remembers it, or 0.
	LastToken int64
	// PausedFor is how long an operator's pause lasts, or 0.
	PausedFor time.Duration
	// Unreadable says why it cannot be read. Then nothing else is known about it.
	Unreadable string
	cursor     string
}

type resourceBody struct {
	Resource    string        `json:"resource"`
	Key         string        `json:"key"`
	Capacity    uint32        `json:"capacity"`
	Holders     []holderBody  `json:"holders"`
	HolderCount int           `json:"holder_count"`
	Foreign     []foreignBody `json:"foreign"`
	Queue       []struct {
		Holder   processBody `json:"holder"`
		Weight   uint32      `json:"weight"`
		WaitedMs uint64      `json:"waited_ms"`
		Silent   bool        `json:"silent"`
		Foreign  bool        `json:"foreign"`
	} `json:"queue"`
	QueueLength int       `json:"queue_length"`
	LastToken   tokenText `json:"last_token"`
	PausedMs    uint64    `json:"paused_for_ms"`
	Unreadable  string    `json:"unreadable"`
	Cursor      string    `json:"cursor"`
}

func (b *resourceBody) read() Resource {
	resource := Resource{
		Name: b.Resource, Key: b.Key, Capacity: b.Capacity, Holders: readHolders(b.Holders), HolderCount: b.HolderCount,
		QueueLength: b.QueueLength, LastToken: b.LastToken.number(), PausedFor: fromMillis(b.PausedMs),
		Unreadable: b.Unreadable, cursor: b.Cursor,
	}
	for _, w := range b.Queue {
		resource.Queue = append(resource.Queue, Waiter{
			Process: Process(w.Holder), Weight: w.Weight, Waited: fromMillis(w.WaitedMs), Silent: w.Silent, Foreign: w.Foreign,
		})
	}
	for i := range b.Foreign {
		resource.Foreign = append(resource.Foreign, *b.Foreign[i].read())
	}
	return resource
}

// get asks for something that nobody changes by asking.
func (c *Client) get(ctx context.Context, path string, query url.Values, wait time.Duration, into interface{}) error {
	answer, err := c.transport.send(ctx, call{method: http.MethodGet, path: path, query: query, atMost: requestMax + wait})
	if err == nil {
		err = answer.read(into, query.Get("name"))
	}
	if err != nil && ctx.Err() != nil {
		return cancelled(ctx, "asking "+c.transport.server)
	}
	return err
}

// Look looks at one resource.
func (c *Client) Look(ctx context.Context, resource string) (*Resource, error) {
	return c.look(ctx, resource, "", 0)
}

// look waits for a change since the cursor, if there is one.
func (c *Client) look(ctx context.Context, resource, cursor string, wait time.Duration) (*Resource, error) {
	key, err := keyOf(resource)
	if err != nil {
		return nil, err
	}
	query := url.Values{"name": {resource}}
	if cursor != "" {
		query.Set("cursor", cursor)
		query.Set("wait_ms", strconv.FormatInt(toMillis(wait), 10))
	}
	var body resourceBody
	if err := c.get(ctx, "/v1/resource", query, wait, &body); err != nil {
		return nil, err
	}
	if body.Key != key {
		return nil, unknown("the server's answer is about another resource than "+resource, nil)
	}
	seen := body.read()
	return &seen, nil
}

// List lists the resources whose keys begin with the prefix, in the order of their keys, straight from the store.
func (c *Client) List(ctx context.Context, prefix string) ([]Resource, error) {
	var all []Resource
	query := url.Values{"limit": {"1000"}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	for {
		var page struct {
			Resources []resourceBody `json:"resources"`
			Next      string         `json:"next"`
		}
		if err := c.get(ctx, "/v1/resources", query, 0, &page); err != nil {
			return nil, err
		}
		for i := range page.Resources {
			all = append(all, page.Resources[i].read())
		}
		if page.Next == "" || page.Next == query.Get("after") {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}

// An OverviewQuery says what of the overview to list. The zero value lists what has waited longest.
type OverviewQuery struct {
	// Text that the names contain.
	Text string
	Kind string
	// Sort by "wait" (the default), "hold", "name" or "waiters".
	Sort  string
	After string
	// Limit of the page, at most 200.
	Limit int
}

// An Overview is all resources in numbers, and a page of them, as the server has sampled them.
type Overview struct {
	SampledAgo time.Duration
	Held       int
	Waiting    int
	// Stuck resources: somebody has waited for longer than a minute.
	Stuck      int
	Paused     int
	Unreadable int
	// Matched by the query.
	Matched int
	Items   []OverviewItem
	// Next is where the next page begins, or empty.
	Next string
}

// An OverviewItem is one resource of an overview.
type OverviewItem struct {
	Name        string
	Key         string
	Holders     []Holder
	HolderCount int
	QueueLength int
	OldestWait  time.Duration
	OldestHold  time.Duration
	Stuck       bool
}

type overviewBody struct {
	SampledMs  uint64 `json:"sampled_ms_ago"`
	Held       int    `json:"held"`
	Waiting    int    `json:"waiting"`
	Stuck      int    `json:"stuck"`
	Paused     int    `json:"paused"`
	Unreadable int    `json:"unreadable"`
	Matched    int    `json:"matched"`
	Items      []struct {
		Resource     string       `json:"resource"`
		Key          string       `json:"key"`
		Holders      []holderBody `json:"holders"`
		HolderCount  int          `json:"holder_count"`
		QueueLength  int          `json:"queue_length"`
		OldestWaitMs uint64       `json:"oldest_wait_ms"`
		OldestHoldMs uint64       `json:"oldest_hold_ms"`
		Stuck        bool         `json:"stuck"`
	} `json:"items"`
	Next string `json:"next"`
}

// Overview asks for what the server has sampled within the last seconds.
func (c *Client) Overview(ctx context.Context, q OverviewQuery) (*Overview, error) {
	query := url.Values{}
	for name, value := range map[string]string{"q": q.Text, "kind": q.Kind, "sort": q.Sort, "after": q.After} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	var body overviewBody
	if err := c.get(ctx, "/v1/overview", query, 0, &body); err != nil {
		return nil, err
	}
	overview := &Overview{
		SampledAgo: fromMillis(body.SampledMs), Held: body.Held, Waiting: body.Waiting, Stuck: body.Stuck, Paused: body.Paused,
		Unreadable: body.Unreadable, Matched: body.Matched, Next: body.Next,
	}
	for _, item := range body.Items {
		overview.Items = append(overview.Items, OverviewItem{
			Name: item.Resource, Key: item.Key, Holders: readHolders(item.Holders), HolderCount: item.HolderCount,
			QueueLength: item.QueueLength, OldestWait: fromMillis(item.OldestWaitMs), OldestHold: fromMillis(item.OldestHoldMs),
			Stuck: item.Stuck,
		})
	}
	return overview, nil
}

// An Action is what an operator can do.
type Action string

const (
	// Ask asks the holder to finish: see [Lease.Asked].
	Ask Action = "ask"
	// Evict ends the holder's lease at its expiry.
	Evict Action = "evict"
	// EvictNow ends the holder's lease at once: two may run.
	EvictNow Action = "evict-now"
	// EvictForeign removes the lock of another program, which the order names by its ValueHash: two may run.
	EvictForeign Action = "evict-foreign"
	// Pause grants nothing for a while.
	Pause Action = "pause"
	// Resume ends a pause.
	Resume Action = "resume"
	// Resize changes the capacity.
	Resize Action = "resize"
)

// An Order is a command of an operator.
type Order struct {
	Resource string
	Action   Action
	// Why is written to the audit trail.
	Why string
	// Token (or number) of the grant that an ask or evict is for. With Any and 0: the newest grant.
	Token int64
	Any   bool
	// Within is how much time an ask gives.
	Within time.Duration
	// Lasting is the length of a pause.
	Lasting time.Duration
	// Capacity after a resize.
	Capacity uint32
	// ValueHash of the lock that an evict-foreign is for: see [ForeignLock].
	ValueHash string
}

type orderBody struct {
	Resource  string `json:"resource"`
	Action    Action `json:"action"`
	Why       string `json:"why"`
	Token     string `json:"token,omitempty"`
	Any       bool   `json:"any,omitempty"`
	WithinMs  int64  `json:"within_ms,omitempty"`
	LastingMs int64  `json:"lasting_ms,omitempty"`
	Capacity  uint32 `json:"capacity,omitempty"`
	ValueHash string `json:"value_hash,omitempty"`
}

// Order gives an order. It needs a token with the role of an operator. An order is never sent twice: after an
// [UnavailableError] with [EffectUnknown], look before you repeat it.
//
// A [HolderChangedError] says that the grant is gone that the order names.
func (c *Client) Order(ctx context.Context, order Order) error {
	key, err := keyOf(order.Resource)
	if err != nil {
		return err
	}
	body := orderBody{
		Resource: order.Resource, Action: order.Action, Why: order.Why, Any: order.Any, WithinMs: toMillis(order.Within),
		LastingMs: toMillis(order.Lasting), Capacity: order.Capacity, ValueHash: order.ValueHash,
	}
	if order.Token != 0 {
		body.Token = strconv.FormatInt(order.Token, 10)
	}
	answer, err := c.transport.send(ctx, call{method: http.MethodPost, path: "/v1/orders", body: body, atMost: requestMax})
	var r reply
	if err == nil {
		err = answer.read(&r, order.Resource)
	}
	if err != nil {
		if ctx.Err() != nil {
			return cancelled(ctx, "giving an order for "+order.Resource)
		}
		return err
	}
	if r.Verdict != "done" || r.Key != key {
		answer.dropConnections()
		return unknown("the server's answer is about another order", nil)
	}
	return nil
}
