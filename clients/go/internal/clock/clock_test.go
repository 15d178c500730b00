package clock

import (
	"runtime"
	"testing"
	"time"
)

func TestTheClockGoesForward(t *testing.T) {
	if _, ok := bootTime(); !ok && runtime.GOOS == "linux" {
		t.Error("Linux has a clock that counts sleep")
	}
	before, started := Now(), time.Now()
	time.Sleep(20 * time.Millisecond)
	passed, real := Now()-before, time.Since(started)
	if passed < 20*time.Millisecond || passed > real+time.Millisecond {
		t.Errorf("%v passed, and the clock says %v", real, passed)
	}
}

func BenchmarkNow(b *testing.B) {
	for i := 0; i < b.N; i++ {
		Now()
	}
}
