package leasehold

import "time"

const (
	// A long lease is renewed this often, too, so that its holder learns of an eviction soon.
	renewEveryMax = time.Minute
	// The fixed part of the safety margin, for a short ttl.
	marginMin = 2 * time.Millisecond
	// No time of an answer counts as more, so that no sum overflows.
	longest = 10 * 365 * 24 * time.Hour
)

// sentAt is when a request was sent: read before it was written to the connection.
type sentAt struct {
	at   time.Duration
	wall int64
}

// times says when a lease is renewed, when its work must stop, and when another one may be granted.
//
// With a ttl of 30 s and a request sent at 0 s:
//
//	sent          renew                         stop          deadline   end at the server
//	 0 s           10 s                        24.7 s          29.7 s        30 s
//	 |----- ttl/3 ----|                            |---- ttl/6 ----|-- margin --|
type times struct {
	renewAt  time.Duration
	stopAt   time.Duration
	deadline time.Duration
	// The same moment as stopAt, on the calendar clock, in nanoseconds. Both are from one answer.
	wallStopAt int64
}

// given is what an answer says about a lease.
type given struct {
	ttl       time.Duration
	remaining time.Duration
	waited    time.Duration
}

// timesOf computes the times of a lease. remaining was left when the store carried out the request, which the server sent
// to it waited after it had read ours. Nothing counts from when the answer arrived: it may have been in a buffer while
// this process was stopped.
func timesOf(sent sentAt, g given) times {
	// Our clock may run slower than the server's while it waits for us.
	from := sent.at + g.waited/100*99
	margin := longer(g.ttl, g.remaining)/100 + marginMin
	deadline := from + longer(0, g.remaining-margin)
	stopAt := deadline - g.ttl/6
	// Asking again may find a grant that is some time old. Its renewal is due that much sooner.
	age := g.ttl - g.remaining
	renewAt := longer(sent.at, from+shorter(g.ttl/3, renewEveryMax)-longer(0, age))
	return times{renewAt, stopAt, deadline, sent.wall + int64(stopAt-sent.at)}
}

// laterOf merges the times of a renewal: none moves back, except that of the next renewal.
//
// The limit of the calendar clock is that of the answer whose stopAt counts, although it may be lower than before: if the
// calendar clock was fast and has been set right since, the higher one would hide that the machine sleeps.
func (t times) laterOf(other times) times {
	later := t
	if other.stopAt >= t.stopAt {
		later = other
	}
	later.renewAt, later.deadline = other.renewAt, longer(t.deadline, other.deadline)
	return later
}

// renewalTimeout is how long a renewal may take: less than a third of the ttl, so that it can be repeated in time.
func renewalTimeout(ttl time.Duration) time.Duration {
	return between(50*time.Millisecond, ttl/10*3, 10*time.Second)
}

// renewalRetry is how long after a failed renewal the next one is sent.
func renewalRetry(ttl time.Duration) time.Duration {
	return between(50*time.Millisecond, ttl/15, 2*time.Second)
}

// tombstone is how long a tombstone must last: longer than any request of the claim can be delayed.
func tombstone(ttl time.Duration) time.Duration {
	return between(3*time.Minute, 2*ttl, 48*time.Hour)
}

// fromMillis reads a time of an answer.
func fromMillis(millis uint64) time.Duration {
	if millis > uint64(longest/time.Millisecond) {
		return longest
	}
	return time.Duration(millis) * time.Millisecond
}

// toMillis rounds up: a wait of less than a millisecond is a wait.
func toMillis(d time.Duration) int64 {
	millis := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		millis++
	}
	return millis
}

// The module builds with Go 1.19, which has no min and max.

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func between(least, d, most time.Duration) time.Duration {
	return longer(least, shorter(d, most))
}
