package delivery_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

type sinkFunc func(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error)

func (f sinkFunc) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return f(ctx, batch)
}

// BenchmarkWorker drains a backlog. ns/delivery must not grow with what waits.
func BenchmarkWorker(b *testing.B) {
	for _, late := range []delivery.Late{delivery.LateSend, delivery.LateLatest} {
		for _, pending := range []int{1_000, 10_000, 50_000} {
			b.Run(fmt.Sprintf("late=%s/pending=%d", late, pending), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					q, stop := newMemory(), make(chan struct{})
					for n := range pending {
						m := &delivery.Message{Seq: uint64(n + 1), Group: fmt.Sprint("event-", n/2)}
						m.Change = []string{"scheduled", "started"}[n%2]
						q.add(delivery.Item{Message: m, NotBefore: time.Now().Add(time.Duration(n) * time.Second)})
					}
					left := pending
					sink := sinkFunc(func(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
						for _, d := range batch {
							if left -= 1 + len(d.Missed); left == 0 {
								close(stop)
							}
						}
						return delivery.Answer{}, nil
					})
					w := delivery.NewWorker(delivery.Config{Sink: sink, Queue: q, Terms: delivery.Terms{Late: late}})
					b.StartTimer()
					w.Run(b.Context(), stop, nil)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*pending), "ns/delivery")
			})
		}
	}
}
