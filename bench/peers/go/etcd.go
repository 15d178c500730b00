package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcdMutex is etcd's own mutex. Uncontended, all tasks share one session. Tasks that want the same resource need a
// session each: two mutexes of one session are the same owner.
type etcdMutex struct{ sessions []*concurrency.Session }

func newEtcdMutex(addresses []string, w work) (lock, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: addresses, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	count := 1
	if w.kind == "handover" {
		count = w.tasks
	}
	var sessions []*concurrency.Session
	for range count {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		if err != nil {
			return nil, err
		}
		sessions = append(sessions, session)
	}
	return etcdMutex{sessions}, nil
}

func (e etcdMutex) acquire(ctx context.Context, task int, resource string) (func() error, error) {
	mutex := concurrency.NewMutex(e.sessions[task%len(e.sessions)], resource)
	if err := mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return func() error { return mutex.Unlock(ctx) }, nil
}
