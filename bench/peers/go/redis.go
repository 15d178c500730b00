package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

const ttl = 30 * time.Second

// redsyncLock is redsync with its defaults, one pool for each server: 32 tries, 50 to 250 ms apart.
type redsyncLock struct{ locks *redsync.Redsync }

func newRedsync(addresses []string) lock {
	var pools []redis.Pool
	for _, address := range addresses {
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{Addr: address})))
	}
	return redsyncLock{redsync.New(pools...)}
}

func (r redsyncLock) acquire(ctx context.Context, _ int, resource string) (func() error, error) {
	mutex := r.locks.NewMutex(resource, redsync.WithExpiry(ttl))
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		released, err := mutex.UnlockContext(ctx)
		// With servers down, redsync reports their errors although a majority has released.
		if released {
			return nil
		}
		return errors.Join(errors.New(resource+" was not held"), err)
	}, nil
}

// redislockLock is redislock as its README shows it: tries again every 100 ms.
type redislockLock struct{ locks *redislock.Client }

func newRedislock(address string) lock {
	return redislockLock{redislock.New(goredislib.NewClient(&goredislib.Options{Addr: address}))}
}

func (r redislockLock) acquire(ctx context.Context, _ int, resource string) (func() error, error) {
	retry := redislock.LinearBackoff(100 * time.Millisecond)
	held, err := r.locks.Obtain(ctx, resource, ttl, &redislock.Options{RetryStrategy: retry})
	if err != nil {
		return nil, err
	}
	return func() error { return held.Release(ctx) }, nil
}
