package bridge_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// A counting Meter remembers what it was told, in words, and how often.
type counting struct {
	mu   sync.Mutex
	n    map[string]int
	lags []time.Duration
	took map[string]time.Duration // the last attempt, by sink
}

func (c *counting) add(n int, words ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n, c.took = map[string]int{}, map[string]time.Duration{}
	}
	if n != 0 {
		c.n[strings.TrimSpace(fmt.Sprintln(words...))] += n
	}
}

func (c *counting) Polled(class imds.PollClass)    { c.add(1, "polled", class) }
func (c *counting) Committed(ceType string)        { c.add(1, "committed", ceType) }
func (c *counting) Superseded(sink string, n int)  { c.add(n, sink, "superseded") }
func (c *counting) Failed(sink, reason string)     { c.add(1, sink, reason) }
func (c *counting) Forgot(what string, number int) { c.add(number, "forgot", what) }

func (c *counting) Accepted(sink string, lag time.Duration) {
	c.add(1, sink, "accepted")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lags = append(c.lags, lag)
}

func (c *counting) Attempted(sink string, took time.Duration) {
	c.add(1, sink, "attempted")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took[sink] = took
}

// of returns the counts whose words begin with the prefix, without it.
func (c *counting) of(prefix string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := map[string]int{}
	for words, n := range c.n {
		if rest, ok := strings.CutPrefix(words, prefix+" "); ok {
			list[rest] = n
		}
	}
	return list
}

func (c *counting) want(t *testing.T, prefix string, want map[string]int) {
	t.Helper()
	if got := c.of(prefix); !maps.Equal(got, want) {
		t.Errorf("of %s the meter was told %v, want %v", prefix, got, want)
	}
}

// The meter counts each attempt, each delivery that it got accepted or left to be tried again and why, and each dead
// letter, once.
func TestTheMeterCountsEveryAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		m := &counting{}
		s.opts.Meter = m
		s.up(
			(&recorder{}).all("well"),
			answering(errRefused).all("refusing"),
			answering(&delivery.RetryAfter{After: time.Hour, Err: errSinkDown}).all("busy"),
			answering(errHang).all("hanging"),
			answering(errSinkDown).all("down"),
			answering(delivery.ErrRejected).all("strict"),
			answering(errHang).all("old").With(func(t *bridge.Terms) { t.MaxAge = time.Second }),
		)
		s.reboot(idA)
		pause(500 * time.Millisecond) // until the poll: every first attempt is over but those that hang
		m.want(t, "well", map[string]int{"attempted": 1, "accepted": 1})
		m.want(t, "refusing", map[string]int{"attempted": 1, delivery.FailedBlocked: 1})
		m.want(t, "busy", map[string]int{"attempted": 1, delivery.FailedRateLimited: 1})
		m.want(t, "strict", map[string]int{"attempted": 1, delivery.ReasonRejected: 1})
		m.want(t, "hanging", map[string]int{})
		pause(10 * time.Second)
		m.want(t, "old", map[string]int{"attempted": 1, delivery.FailedTimeout: 1, delivery.ReasonExpired: 1})
		m.want(t, "hanging", map[string]int{"attempted": 1, delivery.FailedTimeout: 1})
		down := m.of("down")
		wantWithin(t, "attempts at the one that is down", down["attempted"], 2, 20)
		wantEqual(t, "failures of it", down[delivery.FailedAgain], down["attempted"])
		wantEqual(t, "the attempt that hung", m.took["hanging"], 10*time.Second)
	})
}

// The lag counts from when a delivery was due to the answer that accepted it, through all attempts.
func TestTheLagCountsFromWhenADeliveryWasDue(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		m := &counting{}
		s.opts.Meter = m
		e := answering(errHang)
		s.up(e.all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		e.say(nil)
		pause(30 * time.Second)
		wantEqual(t, "lags", len(m.lags), 1)
		wantWithin(t, "the lag, with the wait after the first attempt", m.lags[0], 10*time.Second, 20*time.Second)
	})
}

// A batch that is rejected is no loss yet, because its deliveries are tried one by one; what one message stood for is
// counted apart from what was delivered.
func TestTheMeterTellsBatchesFromDeliveries(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		m := &counting{}
		s.opts.Meter = m
		batches, latest := answering(errSinkDown), answering(errSinkDown)
		s.up(
			batches.all("batches").With(func(t *bridge.Terms) { t.Batch = 10 }),
			latest.all("latest").With(func(t *bridge.Terms) { t.Late = delivery.LateLatest }),
		)
		s.reboot(idA)
		pause(1500 * time.Millisecond)
		s.azure.Start(idA)
		pause(10 * time.Minute)
		before := m.of("batches")[delivery.FailedAgain]
		batches.say(func(d delivery.Delivery) error {
			if strings.HasSuffix(d.Event.ID(), "scheduled") {
				return delivery.ErrRejected
			}
			return nil
		})
		latest.say(nil)
		pause(10 * time.Minute)
		got := m.of("batches")
		wantEqual(t, "rejected", got[delivery.ReasonRejected], 1)
		wantEqual(t, "accepted", got["accepted"], 1)
		wantEqual(t, "to be tried again", got[delivery.FailedAgain], before+2)
		wantEqual(t, "accepted of the latest", m.of("latest")["accepted"], 1)
		wantEqual(t, "superseded", m.of("latest")["superseded"], 1)
	})
}

// What waits for the lead of its route is not pending before, and its lag counts from then. The status says when it is sent.
func TestWhatWaitsForItsTimeIsNotLate(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		m := &counting{}
		s.opts.Meter = m
		b := s.up((&recorder{}).all("a").With(func(t *bridge.Terms) { t.Lead = 5 * time.Minute }))
		s.reboot(idA) // in 15 minutes
		pause(9 * time.Minute)
		sink := b.sink("a")
		wantEqual(t, "pending", sink.Pending, 0)
		wantEqual(t, "it waits", sink.WaitsFor, delivery.WaitsForLead)
		wantEqual(t, "it is sent in", time.Until(sink.NextAttempt).Round(time.Minute), time.Minute)
		pause(2 * time.Minute)
		wantEqual(t, "lags", len(m.lags), 1)
		wantWithin(t, "the lag", m.lags[0], 0, time.Minute)
	})
}

// The meter counts each answer of the endpoint by its class, and each CloudEvent once, however many sinks get it.
func TestTheMeterCountsPollsAndCloudEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		m := &counting{}
		s.opts.Meter = m
		turns := 0
		s.opts.Turned = func() { turns++ }
		b := s.up((&recorder{}).all("a"), (&recorder{}).all("b"))
		s.reboot(idA)
		pause(time.Second)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(time.Minute)
		s.azure.ClearFaults()
		s.azure.End(idA)
		pause(20 * time.Second)
		b.end()
		polls := m.of("polled")
		sum := 0
		for _, class := range []imds.PollClass{imds.PollDocument, imds.PollUnchanged, imds.PollRetry} {
			wantWithin(t, "polls of a class", polls[fmt.Sprint(class)], 1, 100)
			sum += polls[fmt.Sprint(class)]
		}
		wantEqual(t, "polls", sum, s.polls())
		wantWithin(t, "turns of their loop", turns, sum, 2*sum)
		m.want(t, "committed", map[string]int{
			cloudevent.EventPrefix + "scheduled": 1, cloudevent.EventPrefix + "vanished": 1,
			cloudevent.BridgeStarted: 1, cloudevent.BridgeStopping: 1,
		})
	})
}

// What is forgotten for want of room is counted: dead letters, and history while the disk fails.
func TestTheMeterCountsWhatIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		m := &counting{}
		s.opts.Meter = m
		s.bounds = outbox.Bounds{Dead: 2, InMemory: 1}
		s.up(answering(delivery.ErrRejected).all("strict"))
		for i := range 5 {
			s.reboot(fmt.Sprintf("AAAAAAAA-0000-4000-8000-00000000001%d", i))
		}
		pause(5 * time.Second)
		m.want(t, "forgot", map[string]int{outbox.ForgotDeadLetter: 3})
	})
}

// Every reason and every type of CloudEvent stands once in the list from which series are made.
func TestSeriesAreNamedOnce(t *testing.T) {
	for _, list := range [][]string{cloudevent.Types, bridge.FailureReasons} {
		if sorted := slices.Compact(slices.Sorted(slices.Values(list))); len(sorted) != len(list) {
			t.Errorf("%q has something twice", list)
		}
	}
}
