package page

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// A cached result is computed once while it is valid, and is not kept in memory afterwards.
func TestCachedResultIsDroppedWhenItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		computed := 0
		get := cached(time.Second, func() *[1 << 10]byte {
			computed++
			return new([1 << 10]byte)
		})
		var last weak.Pointer[[1 << 10]byte]
		for range 10 {
			last = weak.Make(get())
			time.Sleep(300 * time.Millisecond)
		}
		if computed != 3 {
			t.Errorf("in three seconds it was computed %d times, want 3", computed)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		runtime.GC()
		if last.Value() != nil {
			t.Error("it is still in memory")
		}
		if get() == nil {
			t.Error("it is not computed anew")
		}
	})
}
