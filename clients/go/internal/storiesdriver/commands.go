package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

var errBody = errors.New("the error of the program")

func (d *driver) do(ctx context.Context, c command) (object, error) {
	switch c.Do {
	case "connect":
		return nil, d.connect(c)
	case "acquire":
		return d.acquire(ctx, c)
	case "acquire_all":
		return d.acquireAll(ctx, c)
	case "cancel":
		d.mu.Lock()
		cancel := d.commands[c.Of]
		d.mu.Unlock()
		cancel()
		return nil, nil
	case "check":
		return nil, d.lease(c).Check()
	case "note":
		return nil, d.lease(c).(*leasehold.Lease).SetNote(ctx, *c.Note)
	case "release":
		return nil, d.lease(c).Release(ctx)
	case "scope":
		return nil, d.scope(ctx, c)
	case "finish":
		d.mu.Lock()
		close(d.finish[c.Lease])
		d.mu.Unlock()
		return nil, nil
	case "observe":
		go d.observe(c)
		return nil, nil
	case "names":
		return d.names(ctx, c)
	case "overview":
		overview, err := d.client(c).Overview(ctx, leasehold.OverviewQuery{})
		if err != nil {
			return nil, err
		}
		return object{"held": overview.Held, "waiting": overview.Waiting}, nil
	case "order":
		return nil, d.order(ctx, c)
	}
	return nil, fmt.Errorf("the driver knows no command %q", c.Do)
}

func (d *driver) client(c command) *leasehold.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clients[c.Client]
}

func (d *driver) lease(c command) held {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leases[c.Lease]
}

func (d *driver) connect(c command) error {
	var options []leasehold.ClientOption
	if c.Token != "" {
		options = append(options, leasehold.WithToken(c.Token))
	}
	client, err := leasehold.New(c.URL, options...)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clients[c.Client] = client
	return nil
}

func options(c command) []leasehold.Option {
	millis := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	options := []leasehold.Option{leasehold.TTL(millis(c.TTLMs)), leasehold.Wait(millis(c.WaitMs))}
	if c.Note != nil {
		options = append(options, leasehold.Note(*c.Note))
	}
	if c.Label != nil {
		options = append(options, leasehold.Label(*c.Label))
	}
	var parts struct{ Weight, Capacity uint32 }
	switch {
	case string(c.Share) == `"read"`:
		options = append(options, leasehold.Read())
	case string(c.Share) == `"write"`:
		options = append(options, leasehold.Write())
	case json.Unmarshal(c.Share, &parts) == nil:
		options = append(options, leasehold.Semaphore(parts.Weight, parts.Capacity))
	}
	return options
}

// keep remembers a lease, and says when it is lost.
func (d *driver) keep(name string, lease held, ctx context.Context) {
	d.mu.Lock()
	d.leases[name] = lease
	d.mu.Unlock()
	go func() {
		<-ctx.Done()
		var lost *leasehold.LostError
		if errors.As(leasehold.Cause(ctx), &lost) {
			d.write(object{"event": "lost", "lease": name, "why": lost.Why})
		}
	}()
}

func grant(lease *leasehold.Lease) object {
	if lease.Pass() == "" {
		return object{"resource": lease.Resource(), "number": strconv.FormatInt(lease.Number(), 10)}
	}
	return object{"resource": lease.Resource(), "token": strconv.FormatInt(lease.Token(), 10), "pass": lease.Pass()}
}

func (d *driver) acquire(ctx context.Context, c command) (object, error) {
	lease, ctx, err := d.client(c).Acquire(ctx, c.Resource, options(c)...)
	if err != nil {
		return nil, err
	}
	d.keep(c.Lease, lease, ctx)
	return grant(lease), nil
}

func (d *driver) acquireAll(ctx context.Context, c command) (object, error) {
	all, ctx, err := d.client(c).AcquireAll(ctx, c.Resources, options(c)...)
	if err != nil {
		return nil, err
	}
	d.keep(c.Lease, all, ctx)
	var leases []object
	for _, lease := range all.All() {
		leases = append(leases, grant(lease))
	}
	return object{"leases": leases}, nil
}

func (d *driver) scope(ctx context.Context, c command) error {
	finish := make(chan struct{})
	d.mu.Lock()
	d.finish[c.Lease] = finish
	d.mu.Unlock()
	return d.client(c).Run(ctx, c.Resource, func(ctx context.Context, lease *leasehold.Lease) error {
		d.keep(c.Lease, lease, ctx)
		d.write(object{"event": "entered", "lease": c.Lease, "token": strconv.FormatInt(lease.Token(), 10)})
		switch c.Body {
		case "return":
			return nil
		case "raise":
			return errBody
		}
		select {
		case <-ctx.Done():
			d.write(object{"event": "stopped", "lease": c.Lease})
			return ctx.Err()
		case <-finish:
			return errBody
		}
	}, options(c)...)
}

func (d *driver) observe(c command) {
	err := d.client(c).Observe(context.Background(), c.Resource, func(leader *leasehold.Leader) error {
		event := object{"event": "leader", "observer": c.Observer, "token": nil, "value": nil}
		if leader != nil {
			event["token"], event["value"] = strconv.FormatInt(leader.Token, 10), leader.Value
		}
		d.write(event)
		return nil
	})
	d.write(object{"event": "observer_failed", "observer": c.Observer, "error": errorObject(err)})
}

func (d *driver) names(ctx context.Context, c command) (object, error) {
	resources, err := d.client(c).List(ctx, c.Prefix)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, resource := range resources {
		names = append(names, resource.Name)
	}
	return object{"names": names}, nil
}

func (d *driver) order(ctx context.Context, c command) error {
	order := leasehold.Order{Resource: c.Resource, Action: leasehold.Action(c.Action), Why: c.Why, Any: c.Any}
	if c.Token != "" {
		token, err := strconv.ParseInt(c.Token, 10, 64)
		if err != nil {
			return err
		}
		order.Token = token
	}
	if order.Action == leasehold.Pause {
		order.Lasting = time.Minute
	}
	return d.client(c).Order(ctx, order)
}

func errorObject(err error) object {
	told := object{"message": err.Error()}
	var busy *leasehold.BusyError
	var lost *leasehold.LostError
	var unavailable *leasehold.UnavailableError
	switch {
	case errors.Is(err, errBody):
		told["kind"] = "body"
	case errors.As(err, &busy):
		told["kind"], told["retry_after_ms"] = "busy", busy.RetryAfter.Milliseconds()
		if errors.Is(err, leasehold.ErrTimedOut) {
			told["kind"] = "timed_out"
		}
		holders := []object{}
		for _, holder := range busy.Holders {
			token := strconv.FormatInt(holder.Token, 10)
			holders = append(holders, object{"host": holder.Host, "pid": holder.PID, "label": holder.Label, "token": token})
		}
		told["holders"] = holders
	case errors.As(err, &lost):
		told["kind"], told["why"] = "lost", lost.Why
	case errors.As(err, &unavailable):
		told["kind"], told["effect"] = "unavailable", unavailable.Effect
	case errors.Is(err, leasehold.ErrDenied):
		told["kind"] = "denied"
	case errors.Is(err, leasehold.ErrInvalid):
		told["kind"] = "invalid"
	case errors.Is(err, context.Canceled):
		told["kind"] = "cancelled"
	default:
		told["kind"] = "other"
	}
	return told
}
