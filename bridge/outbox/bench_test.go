package outbox_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// wave is one batch of n deliveries at the routes, of n/len(routes) CloudEvents of about 1 KiB.
func wave(o *box, n int, routes ...string) outbox.Batch {
	now := time.Now()
	b := outbox.Batch{Groups: map[string]*outbox.Group{}, Marks: map[string]outbox.Mark{}}
	filler := bytes.Repeat([]byte("x"), 900)
	for i := range n / len(routes) {
		group := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
		a := outbox.Addition{NotBefore: now.Add(time.Hour), Message: delivery.Message{Seq: o.reserve(now),
			ID: group + "-scheduled", Type: "dev.forewarn.scheduledevent.scheduled", Group: group, Change: "scheduled",
			AzureType: "Reboot"}}
		a.Body = fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"urn:test","type":"t","data":{"x":%q}}`, a.ID,
			filler)
		a.To = routes
		b.Add = append(b.Add, a)
		b.Groups[group] = &outbox.Group{State: fmt.Appendf(nil, "%q", filler[:200]), Latest: a.Seq, CloudEvent: a.Body}
		b.Marks[a.ID] = outbox.Mark{Times: 1, Group: group, At: now}
	}
	return b
}

var benchRoutes = []string{"a", "b", "c", "d", "e"}

// BenchmarkCommit adds deliveries in one batch, and settles them one by one as a worker does. to-1000 is the least time
// of a delivery, both together, over that among 1,000.
func BenchmarkCommit(b *testing.B) {
	for _, routes := range []int{1, 5} {
		least := map[int]float64{}
		for _, n := range []int{1_000, 10_000, 50_000} {
			b.Run(fmt.Sprintf("routes=%d/deliveries=%d", routes, n), func(b *testing.B) {
				var committed, settled time.Duration
				for b.Loop() {
					round := committed + settled
					o := open(b, b.TempDir(), outbox.Options{})
					batch := wave(o, n, benchRoutes[:routes]...)
					began := time.Now()
					o.apply(batch)
					committed += time.Since(began)
					began = time.Now()
					for _, name := range benchRoutes[:routes] {
						q := o.Queue(name)
						for _, i := range q.Changes().Pending {
							q.Report(delivery.Report{Now: began, Accepted: []*delivery.Item{i},
								Answer: delivery.Answer{Status: "204 No Content"}})
						}
					}
					settled += time.Since(began)
					o.Close()
					if t := float64(committed+settled-round) / float64(n); least[n] == 0 || t < least[n] {
						least[n] = t
					}
				}
				per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(b.N*n) }
				b.ReportMetric(per(committed), "µs/commit")
				b.ReportMetric(per(settled), "µs/settle")
				b.ReportMetric(least[n]/least[1_000], "to-1000")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkMemory is what 50,000 deliveries of 10,000 CloudEvents need: while they are committed, at rest, and while
// they are loaded.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		dir := b.TempDir()
		o := open(b, dir, outbox.Options{})
		peak := watch(func() { o.apply(wave(o, 50_000, benchRoutes...)) })
		b.ReportMetric(peak, "MiB/commit")
		b.ReportMetric(heap(), "MiB/rest")
		o.Close()
		o = nil
		runtime.GC()
		peak = watch(func() { o = open(b, dir, outbox.Options{}) })
		b.ReportMetric(peak, "MiB/load")
		b.ReportMetric(heap(), "MiB/loaded")
		runtime.KeepAlive(o)
	}
}

// heap returns the size of the heap in use, in MiB.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// watch returns the peak of the memory that the heap took from the system while f ran.
func watch(f func()) (peak float64) {
	done, ended := make(chan struct{}), make(chan float64)
	go func() {
		var most uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc+m.StackInuse)
			select {
			case <-done:
				ended <- float64(most) / (1 << 20)
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	return <-ended
}
