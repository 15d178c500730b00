//go:build cgo && linux

package main

// #include <time.h>
import "C"

import (
	"os"

	"github.com/leasehold/leasehold/clients/go/internal/clock"
)

// hasClock is whether the runner can set this driver's calendar clock.
const hasClock = true

// The runner replaces clock_gettime of libc, which Go does not call. So ask libc.
func init() {
	if os.Getenv("SERVER_CLOCK") == "" {
		return
	}
	clock.Wall = func() int64 {
		var read C.struct_timespec
		C.clock_gettime(C.CLOCK_REALTIME, &read)
		return int64(read.tv_sec)*1e9 + int64(read.tv_nsec)
	}
}
