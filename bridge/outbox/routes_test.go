package outbox_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// Removed routes keep their backlog for a day. A route that returns takes it over.
func TestRemovedRoutesKeepTheirBacklogForADay(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		// then sets the routes a and b, of which these are new or return, and lets hours pass.
		then := func(wantAdded, wantBack []string, hours time.Duration) {
			t.Helper()
			added, back := o.newRoutes("a", "b")
			want(t, "new routes", added, wantAdded...)
			want(t, "routes that return", back, wantBack...)
			o.routesAre("a", "b")
			time.Sleep(hours * time.Hour)
			o.maintain()
		}
		then([]string{"a", "b"}, nil, 0)
		o.add("A", "scheduled", "a", "b")
		then(nil, nil, 0)
		o.routesAre("a")
		time.Sleep(23 * time.Hour)
		o.maintain()
		want(t, "pending for b after 23 hours", o.pending("b"), "A-scheduled")
		then(nil, []string{"b"}, 25)
		want(t, "pending for b, which is there", o.pending("b"), "A-scheduled")

		o.routesAre("a")
		time.Sleep(25 * time.Hour)
		o.maintain()
		want(t, "pending for b after 25 hours", o.pending("b"))
		dead := o.List(outbox.Selection{Route: "b"})
		if len(dead) != 1 || dead[0].Reason != delivery.ReasonRemoved {
			t.Fatalf("the dead letters are %+v, want one of a removed route", dead)
		}
		if _, err := o.replay("", dead[0].Key); err == nil {
			t.Error("it was replayed to a route that isn't there")
		}
		o.restart()
		then([]string{"b"}, nil, 0)
	})
}

// A route with a backlog that was never in the settings counts as removed: its backlog is given up a day later. One
// without a backlog is not known.
func TestBacklogOfAnUnknownRouteIsGivenUp(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		known := func() []string { return slices.Sorted(maps.Keys(o.Stats())) }
		o.add("A", "scheduled", "typo")
		o.Queue("idle")
		o.routesAre("a")
		want(t, "routes", known(), "a", "typo")
		if gone := o.Stats()["typo"].Gone; !gone.Equal(time.Now()) {
			t.Errorf("it is gone since %v, want now", gone)
		}
		time.Sleep(24 * time.Hour)
		o.maintain()
		want(t, "pending after a day", o.pending("typo"), "A-scheduled")
		time.Sleep(time.Second)
		o.maintain()
		want(t, "pending after more than a day", o.pending("typo"))
		if d := o.List(outbox.Selection{})[0]; d.State != outbox.StateDead || d.Reason != delivery.ReasonRemoved {
			t.Errorf("it is %s because of %s, want a dead letter of a removed route", d.State, d.Reason)
		}
		want(t, "routes then", known(), "a", "typo")
		_, err := o.drop(o.keys(outbox.Selection{})...)
		must(t, err)
		want(t, "routes once nothing of it is left", known(), "a")
	})
}

// A fallback that delivers only the latest doesn't get a change once it has told something newer about that event: that
// would be out of date. One that delivers every change does, and so does one that still has the newer one to tell.
func TestFallbackTellsNothingOlderThanItHasTold(t *testing.T) {
	for _, tt := range []struct {
		claim string
		late  delivery.Late
		told  bool
		want  []string
	}{
		{"it has told the newer one", delivery.LateLatest, true, nil},
		{"it is still to tell the newer one", delivery.LateLatest, false, []string{"E-scheduled", "E-started"}},
		{"it delivers every change", delivery.LateSend, true, []string{"E-scheduled"}},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.setRoutes(outbox.Route{Name: "a", Fallback: "b"}, outbox.Route{Name: "b", Late: tt.late})
			o.add("E", "scheduled", "a")
			o.add("E", "started", "a", "b")
			if tt.told {
				o.accept("b")
			}
			a := o.reader("a")
			a.Report(delivery.Report{Now: time.Now(), FellBack: a.items(), Error: "down"})
			want(t, tt.claim+": pending for the fallback", o.pending("b"), tt.want...)
		})
	}
}

// A fallback gets what its route couldn't deliver, once. A delivery that is itself a fallback doesn't fall back again.
func TestFallbackGetsADeliveryOnce(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.setRoutes(
			outbox.Route{Name: "a", Fallback: "b"},
			outbox.Route{Name: "b", Fallback: "c"},
			outbox.Route{Name: "c", Fallback: "a"},
		)
		for _, group := range []string{"FELL-BACK", "LATE", "EXPIRED", "PENDING"} {
			o.add(group, "scheduled", "a")
		}
		o.add("ACCEPTED", "scheduled", "a", "b")
		o.accept("b")
		a, b := o.reader("a"), o.reader("b")
		items := a.items()
		a.Report(delivery.Report{Now: time.Now(), Failed: items, Error: "down", FellBack: items[:1]})
		a.Report(delivery.Report{Now: time.Now(), Dead: items[1:2], Reason: delivery.ReasonLate})
		a.Report(delivery.Report{Now: time.Now(), Dead: items[2:3], Reason: delivery.ReasonExpired, Error: "too old"})
		a.reject(items[4]) // b has accepted it
		want(t, "pending for b", o.pending("b"), "FELL-BACK-scheduled", "EXPIRED-scheduled")
		instead := b.items()
		for n, why := range []string{"down", "too old"} {
			equal(t, "b has "+instead[n].ID+" for", *instead[n].FallbackFor, delivery.FallbackFor{Sink: "a", Error: why})
		}
		expired := o.List(outbox.Selection{Group: "EXPIRED", State: outbox.StateDead})[0]
		equal(t, "attempts until it expired", expired.Attempts, 2)
		equal(t, "why it expired", expired.Error, "too old")
		late := o.List(outbox.Selection{Group: "LATE"})[0]
		equal(t, "attempts until it was late", late.Attempts, 1)
		equal(t, "why it was not there before", late.Error, "down")

		fell := a.items()[0]
		equal(t, "what a still has fell back", fell.FellBack, true)
		equal(t, "its attempts", fell.Attempts, 1)
		a.Report(delivery.Report{Now: time.Now(), Dead: []*delivery.Item{fell}, Reason: delivery.ReasonExpired})
		b.reject(instead...)
		want(t, "pending for b then", o.pending("b"))
		want(t, "pending for c", o.pending("c"))
		want(t, "dead for b", o.dead("b"), "FELL-BACK-scheduled", "EXPIRED-scheduled")
	})
}

// The oldest pending delivery is the one that waits for longest, whatever its number: what is replayed waits from then
// on.
func TestTheOldestIsWhatWaitsForLongest(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.routesAre("hook")
		o.add("A", "scheduled", "hook")
		o.reject("hook")
		time.Sleep(time.Hour)
		since := time.Now()
		o.add("B", "scheduled", "hook")
		time.Sleep(time.Hour)
		o.replayAll()
		o.routesAre()
		if got := o.Stats()["hook"].Oldest; !got.Equal(since) {
			t.Errorf("the oldest is pending since %v, want %v", got, since)
		}
	})
}
