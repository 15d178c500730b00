package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// CLOCK_BOOTTIME of linux/time.h, the same on every architecture.
const clockBootTime = 7

// bootTime reads CLOCK_BOOTTIME. Go's own monotonic clock is CLOCK_MONOTONIC, which stands still while Linux sleeps.
func bootTime() (time.Duration, bool) {
	var read syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBootTime, uintptr(unsafe.Pointer(&read)), 0)
	return time.Duration(read.Nano()), failed == 0
}
