// Package clock has the two clocks of a lease.
//
// Now counts the time that the machine sleeps, where the platform has such a clock: a lease ends at the server while a
// laptop is closed. Wall is the calendar clock, a second watch for platforms without one.
package clock

import "time"

var started = time.Now()

// Now is the time on a clock that never goes back. Only differences between two readings mean something.
func Now() time.Duration {
	if now, ok := bootTime(); ok {
		return now
	}
	return time.Since(started)
}

// Wall is the time of the calendar clock, which somebody may set, in nanoseconds since 1970.
//
// A variable, because the runner of the stories gives its drivers a calendar clock of their own, by replacing functions
// of libc, which Go does not call.
var Wall = func() int64 { return time.Now().UnixNano() }
