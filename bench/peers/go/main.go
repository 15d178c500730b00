// The peers that are written in Go, and the leasehold client. bench/peers/README.md has the protocol.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pauseAfterError keeps a peer that fails at once from spinning.
const pauseAfterError = time.Millisecond

// tasksMax is the factor of the process in the number of a holder.
const tasksMax = 100_000

// lock is what the works need of a library. acquire waits in the way of the library and returns the release; after an
// error it is called again.
type lock interface {
	acquire(ctx context.Context, task int, resource string) (release func() error, err error)
}

type measured struct {
	Done      uint64   `json:"done"`
	TookNs    int64    `json:"took_ns"`
	Errors    uint64   `json:"errors"`
	Latencies []int64  `json:"latencies_ns,omitempty"`
	Grants    []uint64 `json:"grants,omitempty"`
}

type work struct {
	kind    string
	tasks   int
	hold    time.Duration
	prefix  string
	process int
}

func main() {
	words := map[string]string{}
	for _, word := range os.Args[1:] {
		if name, value, found := strings.Cut(word, "="); found {
			words[name] = value
		}
	}
	if err := serve(words); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(words map[string]string) error {
	tasks, err := strconv.Atoi(words["tasks"])
	if err != nil {
		return err
	}
	holdUs, err := strconv.Atoi(words["hold_us"])
	if err != nil {
		return err
	}
	process, err := strconv.Atoi(words["process"])
	if err != nil {
		return err
	}
	w := work{words["work"], tasks, time.Duration(holdUs) * time.Microsecond, words["prefix"], process}
	addresses := strings.Split(words["address"], ",")
	var l lock
	switch words["lock"] {
	case "redsync":
		l = newRedsync(addresses)
	case "redislock":
		l = newRedislock(addresses[0])
	case "leasehold":
		if l, err = newLeases(words["url"]); err != nil {
			return err
		}
	case "etcd-mutex":
		if l, err = newEtcdMutex(addresses, w); err != nil {
			return err
		}
	default:
		return fmt.Errorf("there is no lock called %q", words["lock"])
	}
	var run func(time.Duration) measured
	switch w.kind {
	case "pair":
		// One pair before "ready": the connections are made, and a lock that does not work at all says why.
		release, err := l.acquire(context.Background(), 0, fmt.Sprintf("%s-check-%d", w.prefix, w.process))
		if err != nil {
			return err
		}
		if err := release(); err != nil {
			return err
		}
		run = func(lasting time.Duration) measured { return w.pairs(l, lasting) }
	case "handover":
		run = func(lasting time.Duration) measured { return w.handovers(l, lasting) }
	default:
		return fmt.Errorf("this program has no work called %q", w.kind)
	}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		millis, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(input.Text(), "go ")))
		if err != nil {
			return err
		}
		started := time.Now()
		result := run(time.Duration(millis) * time.Millisecond)
		result.TookNs = time.Since(started).Nanoseconds()
		line, err := json.Marshal(result)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return input.Err()
}

// all runs the tasks side by side and adds up what they measured.
func (w work) all(task func(number int, m *measured)) measured {
	each := make([]measured, w.tasks)
	var running sync.WaitGroup
	for number := range w.tasks {
		running.Add(1)
		go func() {
			defer running.Done()
			task(number, &each[number])
		}()
	}
	running.Wait()
	var sum measured
	for _, m := range each {
		sum.Done += m.Done
		sum.Errors += m.Errors
		sum.Latencies = append(sum.Latencies, m.Latencies...)
		sum.Grants = append(sum.Grants, m.Grants...)
	}
	return sum
}

func (w work) pairs(l lock, lasting time.Duration) measured {
	until := time.Now().Add(lasting)
	ctx := context.Background()
	return w.all(func(task int, m *measured) {
		name := fmt.Sprintf("%s-%d-%d", w.prefix, w.process, task)
		for {
			started := time.Now()
			if !started.Before(until) {
				return
			}
			release, err := l.acquire(ctx, task, name)
			if err == nil {
				err = release()
			}
			if err != nil {
				failed(m, err)
				continue
			}
			m.Done++
			m.Latencies = append(m.Latencies, time.Since(started).Nanoseconds())
		}
	})
}

func (w work) handovers(l lock, lasting time.Duration) measured {
	until := time.Now().Add(lasting)
	ctx := context.Background()
	return w.all(func(task int, m *measured) {
		for time.Now().Before(until) {
			release, err := l.acquire(ctx, task, w.prefix)
			if err != nil {
				failed(m, err)
				continue
			}
			grantedAt := time.Now()
			if w.hold > 0 {
				time.Sleep(w.hold)
			}
			if err := release(); err != nil {
				failed(m, err)
				continue
			}
			if grantedAt.Before(until) {
				m.Done++
				m.Grants = append(m.Grants, uint64(grantedAt.UnixNano()), uint64(w.process*tasksMax+task))
			}
		}
	})
}

func failed(m *measured, err error) {
	m.Errors++
	fmt.Fprintln(os.Stderr, err)
	time.Sleep(pauseAfterError)
}
