package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

func repeats(x *bridge.Terms) { x.Repeat = time.Minute }

// times returns n times the same CloudEvent.
func times(n int, ce event.Event) []event.Event { return slices.Repeat([]event.Event{ce}, n) }

// A relay repeats what is open too: the latest change that the sink has accepted, whichever VMs published it. Nothing comes
// after the end, and the history has each change once.
func TestARelayRepeatsWhatIsOpen(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(with(route("alerts", sink), repeats))
		a := eventNo(1).in(2 * time.Hour)
		announced := a.say(t, imds.Scheduled, "vm-1")
		s.publish(announced, a.say(t, imds.Scheduled, "vm-2"))
		pause(3*time.Minute + 10*time.Second)
		want := times(4, announced)
		wantIDs(t, "at once and each minute", sink.all(), want...)
		if got := r.Status().Sinks[0].Delivered; got != 1 {
			t.Errorf("%d are delivered, want no repeat among them", got)
		}

		moved := a.in(time.Hour).updated(t, a)
		s.publish(moved)
		pause(2 * time.Minute)
		want = append(want, times(3, moved)...)
		wantIDs(t, "what is the latest", sink.all(), want...)

		over := a.say(t, imds.Vanished, "vm-1")
		s.publish(over, a.say(t, imds.Vanished, "vm-2"))
		pause(10 * time.Minute)
		wantIDs(t, "the end", sink.all(), append(want, over)...)
		lives, _, _ := r.Histories(t.Context(), bridge.Period{})
		for _, change := range lives[0].Changes {
			if len(change.Deliveries) != 1 || change.Deliveries[0].Attempts != 1 {
				t.Errorf("the history says %+v, want one delivery", change)
			}
		}
		stop()
	})
}

// A relay that takes a sink over goes on with the repeats, those about what another relay has delivered included. One that
// doesn't hold the sink's lease repeats nothing.
func TestOneRelayRepeatsWhatIsOpen(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sinks := []*recorder{newRecorder(), newRecorder()}
		_, stop := s.run(with(route("alerts", sinks[0]), repeats))
		_, stopOther := s.start(relay.Options{
			Routes: []bridge.Route{with(route("alerts", sinks[1]), repeats)}, Name: "relay-2",
		})
		a, b := eventNo(1).in(2*time.Hour), eventNo(2).in(2*time.Hour)
		said := []event.Event{a.say(t, imds.Scheduled, "vm-1"), b.say(t, imds.Scheduled, "vm-1")}
		s.publish(said...)
		pause(2*time.Minute + 10*time.Second)
		wantIDs(t, "of the first relay", sinks[0].all(), slices.Repeat(said, 3)...)
		wantIDs(t, "of the second, which waits", sinks[1].all())

		stop()
		pause(20 * time.Second)
		over := b.say(t, imds.Vanished, "vm-1")
		s.publish(over)
		pause(2*time.Minute + 10*time.Second)
		wantIDs(t, "of the second, which took over", sinks[1].all(), append([]event.Event{over}, times(2, said[0])...)...)
		stopOther()
	})
}

// What the sink isn't told, hasn't accepted, or accepted about an event that is over isn't repeated.
func TestARelayRepeatsOnlyWhatItsSinkHasAccepted(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		alerts := with(route("alerts", sink), repeats)
		alerts.Filter.Only.Types = []string{"Reboot"}
		alerts.Filter.Only.Changes = []string{"scheduled", "vanished"}
		_, stop := s.run(alerts)
		refused, over, begun, dead := eventNo(1), eventNo(2), eventNo(3), eventNo(4)
		refused.typ = "Redeploy"
		told := []event.Event{over.say(t, imds.Scheduled, "vm-1"), begun.say(t, imds.Scheduled, "vm-1"),
			over.say(t, imds.Vanished, "vm-1")}
		for _, ce := range told {
			s.publish(ce)
			pause(time.Second)
		}
		s.publish(begun.say(t, imds.Started, "vm-1"), refused.say(t, imds.Scheduled, "vm-1"))
		pause(5 * time.Minute)
		wantIDs(t, "told", sink.all(), told...)

		sink.say(fails(fmt.Errorf("%w: 400", delivery.ErrRejected)))
		s.publish(dead.say(t, imds.Scheduled, "vm-1"))
		pause(time.Second)
		sink.say(nil)
		pause(5 * time.Minute)
		wantIDs(t, "told, after one that it refused", sink.all(), told...)
		stop()
	})
}

// What the sink accepted only when somebody had it replayed is repeated too.
func TestARelayRepeatsWhatWasReplayed(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(with(route("alerts", sink), repeats))
		ce := eventNo(1).in(2*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Second)
		sink.say(nil)
		if _, err := r.Replay(t.Context(), keys(t, r, "alerts"), "", "alice"); err != nil {
			t.Fatal(err)
		}
		pause(3*time.Minute + 10*time.Second)
		wantIDs(t, "at once and each minute", sink.all(), times(4, ce)...)
		over := eventNo(1).say(t, imds.Vanished, "vm-1")
		s.publish(over)
		pause(3 * time.Minute)
		wantIDs(t, "the end", sink.all(), append(times(4, ce), over)...)
		stop()
	})
}

// What comes once more of an older change, from a VM that publishes late, changes neither what is repeated to a sink that
// gets both changes as a fallback, nor what a new sink is told, nor the status.
func TestACopyOfAnOlderChangeMovesNothingBack(t *testing.T) {
	for claim, failure := range map[string]error{
		"the fallback has both already": fmt.Errorf("%w: 400", delivery.ErrRejected),
		"the fallback gets both later":  errors.New("503"),
	} {
		t.Run(claim, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				chat, page, late := newRecorder(), newRecorder(), newRecorder()
				chat.answer = fails(failure)
				main := with(route("chat", chat), func(t *bridge.Terms) {
					t.Fallback = delivery.Fallback{Sink: "page", After: 20 * time.Second}
				})
				pager := with(route("page", page), repeats)
				pager.Filter.Only.Changes = []string{"scheduled", "vanished"}
				r, stop := s.run(main, pager)
				a := eventNo(1).in(2 * time.Hour)
				moved, again := a.in(3*time.Hour), a.in(4*time.Hour)
				older, newest := moved.updated(t, a), again.updated(t, moved)
				for _, ce := range []event.Event{a.say(t, imds.Scheduled, "vm-1"), older, newest, older} {
					s.publish(ce)
					pause(2 * time.Second)
				}
				pause(2 * time.Minute)
				all := page.all()
				if last := all[len(all)-1]; last != newest.ID() {
					t.Errorf("%s is repeated, want the newest, %s", last, newest.ID())
				}
				if open := r.Status().Events; len(open) != 1 || !open[0].NotBefore.Equal(again.notBefore) {
					t.Errorf("the status has %+v, want NotBefore %v", open, again.notBefore)
				}
				r.Reload([]bridge.Route{main, pager, route("late", late)}, bridge.SettingsInfo{})
				pause(10 * time.Second)
				wantIDs(t, "a sink that comes then is told", late.all(), newest)
				stop()
			})
		})
	}
}

// What came of an approval is repeated instead of the change before it, if the sink has accepted that: until the event
// changes, whatever else is told of it, and by a relay that takes over.
func TestARelayRepeatsWhatCameOfAnApproval(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		alerts, page := newRecorder(), newRecorder()
		pager := with(route("page", page), repeats)
		pager.Filter.Only.Changes = []string{"scheduled", "updated", "started", "vanished"}
		routes := []bridge.Route{with(route("alerts", alerts), repeats), pager}
		_, stop := s.run(routes...)
		repeated := func(when string, r *recorder, want event.Event) {
			t.Helper()
			n := len(r.all())
			pause(2*time.Minute + 5*time.Second)
			wantIDs(t, when, r.all()[n:], times(2, want)...)
		}
		a := eventNo(1).in(2 * time.Hour)
		moved := a.in(3 * time.Hour)
		first, withheld := a.say(t, imds.Scheduled, "vm-1"), a.answer(t, 1)
		s.publish(first, withheld)
		pause(10 * time.Second)
		repeated("what came of the approval", alerts, withheld)
		repeated("to one that doesn't hear of approvals", page, first)
		s.publish(a.say(t, imds.Scheduled, "vm-2"), a.say(t, imds.Reminder, "vm-1"))
		pause(10 * time.Second)
		repeated("after another VM's copy and a reminder", alerts, withheld)
		stop()
		_, stop = s.run(routes...)
		pause(20 * time.Second)
		repeated("by the relay that took over", alerts, withheld)
		second := moved.updated(t, a)
		s.publish(second, a.say(t, imds.Scheduled, "vm-3"))
		pause(10 * time.Second)
		repeated("the next change", alerts, second)
		again := moved.answer(t, 2)
		s.publish(again)
		pause(10 * time.Second)
		repeated("what came of its approval", alerts, again)
		begun := moved.say(t, imds.Started, "vm-1")
		s.publish(begun, moved.answer(t, 3))
		pause(10 * time.Second)
		repeated("once it has begun, not what a VM says late of its approval", alerts, begun)
		stop()
	})
}

// The sink that takes over for another repeats what came of the approval as that one would.
func TestAFallbackRepeatsWhatCameOfAnApproval(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		chat, page := newRecorder(), newRecorder()
		chat.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		main := with(route("chat", chat), func(t *bridge.Terms) { t.Fallback.Sink = "page" })
		pager := with(route("page", page), repeats)
		pager.Filter.Only.Changes = []string{"scheduled", "vanished"}
		_, stop := s.run(main, pager)
		a := eventNo(1).in(2 * time.Hour)
		first, withheld := a.say(t, imds.Scheduled, "vm-1"), a.answer(t, 1)
		s.publish(first, withheld)
		pause(2*time.Minute + 10*time.Second)
		wantIDs(t, "at once and each minute", page.all(), append([]event.Event{first}, times(3, withheld)...)...)
		stop()
		_, stop = s.run(main, pager)
		n := len(page.all())
		pause(2*time.Minute + 20*time.Second)
		wantIDs(t, "by the relay that took over", page.all()[n:], times(2, withheld)...)
		stop()
	})
}
