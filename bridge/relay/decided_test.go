package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// What a sink's filter accepted stays accepted while it is pending: a reload that narrows the filter or its changes, or a
// takeover at a time at which it would refuse, takes nothing away.
func TestWhatWasAcceptedIsDelivered(t *testing.T) {
	when := func(text string) bridge.Filter {
		parsed, err := bridge.ParseWhen(text)
		if err != nil {
			t.Fatal(err)
		}
		return bridge.Filter{Only: bridge.Only{VMs: "all"}, When: parsed}
	}
	changes := func(all ...string) bridge.Filter { return bridge.Filter{Only: bridge.Only{VMs: "all", Changes: all}} }
	early := when(`now() < date("2000-01-01T00:01:00Z")`)
	for what, filter := range map[string]struct {
		before, after bridge.Filter
		takeover      bool
	}{
		"a reload narrows the filter":      {when(`true`), when(`azeventtype == "Preempt"`), false},
		"a reload narrows the changes":     {changes(), changes("started"), false},
		"another relay has narrower ones":  {changes(), changes("started"), true},
		"a takeover comes when it refuses": {early, early, true},
	} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				of := func(f bridge.Filter) bridge.Route {
					r := route("hook", sink)
					r.Filter = f
					return r
				}
				r, stop := s.run(of(filter.before))
				if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "work", By: "alice"}, 3*time.Minute); err != nil {
					t.Fatal(err)
				}
				ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
				s.publish(ce)
				pause(2 * time.Minute)
				if filter.takeover {
					stop()
					_, stop = s.run(of(filter.after))
				} else {
					r.Reload([]bridge.Route{of(filter.after)}, bridge.SettingsInfo{})
				}
				pause(2 * time.Minute)
				wantIDs(t, "told", sink.all(), ce)
				stop()
			})
		})
	}
}

// What waits for a fallback is settled when the fallback gets the same by itself meanwhile: its filter takes it now, and
// another VM says it too. It is told that once, and nothing counts as pending for good.
func TestWhatAFallbackGetsByItselfDoesNotWaitForGood(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, second := newRecorder(), newRecorder()
		hook.answer, second.answer = fails(errRefused), fails(errRefused)
		main := with(route("hook", hook), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "second", After: time.Minute}
		})
		narrow, wide := route("second", second), route("second", second)
		narrow.Filter.Only.Types = []string{"Preempt"}
		r, stop := s.run(main, narrow)
		a := eventNo(1).in(24 * time.Hour)
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(2 * time.Minute)
		r.Reload([]bridge.Route{main, wide}, bridge.SettingsInfo{})
		pause(2 * time.Second)
		copied := a.say(t, imds.Scheduled, "vm-2")
		s.publish(copied)
		pause(2 * time.Second)
		stop()
		second.say(nil)
		r, stop = s.run(main, wide)
		pause(10 * time.Minute)
		wantIDs(t, "told", second.all(), copied)
		lives, _, err := r.Histories(t.Context(), bridge.Period{})
		if err != nil || len(lives) != 1 {
			t.Fatalf("the history is %+v, %v; want one event", lives, err)
		}
		want := []string{"hook pending", "second accepted", "second superseded"}
		if got := sorted(told(lives[0].Changes[0])); !slices.Equal(got, want) {
			t.Errorf("the history says %q, want %q", got, want)
		}
		stop()
	})
}

// While records can't be read, or requests for messages aren't answered, nothing is told, and the relay is never ready; it
// says so once. When they can, all is told.
func TestARelayThatCannotReadIsNotReady(t *testing.T) {
	for what, lost := range map[string]string{"records": "$KV.FOREWARN_records.record.hook", "messages": requestsLost} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				var log systemtest.Log
				sink, wire := newRecorder(), &cable{}
				r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Connect: s.over(wire),
					Log: log.Logger()})
				pause(2 * time.Second)
				wire.fail(lost)
				ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
				s.publish(ce)
				pause(10 * time.Second)
				ready := 0
				for range 290 {
					pause(time.Second)
					if r.Status().Ready {
						ready++
					}
				}
				if ready > 0 || len(sink.all()) > 0 {
					t.Errorf("in %d of 290 samples it is ready; told %q", ready, sink.all())
				}
				if n := log.Count("the stream can't be read on, trying again"); n != 1 {
					t.Errorf("it is logged %d times, want once", n)
				}
				wire.fail("")
				pause(20 * time.Second)
				wantIDs(t, "told", sink.all(), ce)
				if st := r.Status(); !st.Ready {
					t.Errorf("then it isn't ready, because of %q", st.Reasons)
				}
				stop()
			})
		})
	}
}

// A takeover announces nothing that is over, however many records it has to read and however slowly: it speaks when it has
// read all that there was. What is urgent doesn't wait for that.
func TestATakeoverCatchesUpBeforeItSpeaks(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		latest := with(route("hook", sink), func(t *bridge.Terms) { t.Late = delivery.LateLatest })
		_, stop := s.run(latest)
		stop()
		var scheduled, ends []event.Event
		for n := range 400 {
			a := eventNo(n).in(24 * time.Hour)
			scheduled = append(scheduled, a.say(t, imds.Scheduled, "vm-1"))
			ends = append(ends, a.say(t, imds.Vanished, "vm-1"))
		}
		s.publish(scheduled...)
		soon := eventNo(900)
		soon.typ, soon.notBefore = "Preempt", time.Now().Add(10*time.Minute)
		urgent := soon.say(t, imds.Scheduled, "vm-1")
		s.publish(urgent)
		s.publish(ends...)
		wire := &cable{latency: 20 * time.Millisecond}
		_, stop = s.start(relay.Options{Routes: []bridge.Route{latest}, Connect: s.over(wire)})
		pause(5 * time.Minute)
		announced := 0
		for _, id := range sink.all() {
			if strings.HasSuffix(id, "-scheduled") && id != urgent.ID() {
				announced++
			}
		}
		if announced > 0 || len(sink.all()) != 401 {
			t.Errorf("%d that are over were announced, of %d messages", announced, len(sink.all()))
		}
		if at := slices.Index(sink.all(), urgent.ID()); at > 0 {
			t.Errorf("what is urgent came as number %d", at+1)
		}
		stop()
	})
}

// Also before a relay has read all that there was, a sink is told of an event in order: a change that is urgent doesn't
// overtake an older one that is not.
func TestWhatIsUrgentOvertakesNothingOfItsEventAtATakeover(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		stop()
		a := eventNo(900).in(time.Hour)
		scheduled, updated := a.say(t, imds.Scheduled, "vm-1"), a.in(10*time.Minute).updated(t, a)
		s.publish(scheduled, updated)
		var others []event.Event
		for n := range 600 {
			others = append(others, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(others...)
		_, stop = s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Connect: s.over(&cable{latency: 20 * time.Millisecond})})
		pause(time.Minute)
		if told := sink.all(); len(told) != 602 {
			t.Errorf("%d were told, want 602", len(told))
		} else {
			wantIDs(t, "told first", told[:2], scheduled, updated)
		}
		stop()
	})
}

// A relay that takes a sink over doesn't go back in an event's life: a change is not urgent any more once the relay before
// has taken in a newer one, which it may have told without getting an answer. The other messages are more than a relay reads
// at once.
func TestATakeoverTellsNothingOlderOfAnEventThanBefore(t *testing.T) {
	over := func(t *testing.T, a azure) event.Event { return a.say(t, imds.Vanished, "vm-1") }
	putOff := func(t *testing.T, a azure) event.Event { return a.in(3*time.Hour).updated(t, a) }
	for name, tt := range map[string]struct {
		newer   func(*testing.T, azure) event.Event
		between bool // the others come between the event's changes, otherwise after them
	}{
		"it is over, as it reads later":   {over, true},
		"it is put off, as it reads soon": {putOff, false},
	} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				a := eventNo(900).in(10 * time.Minute)
				announced, newer := a.say(t, imds.Scheduled, "vm-1"), tt.newer(t, a)
				var others []event.Event
				for n := range 600 {
					others = append(others, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
				}
				sink := newRecorder()
				sink.answer = func(batch []delivery.Delivery) (answer delivery.Answer, err error) {
					if batch[0].Event.Subject() == announced.Subject() {
						err = errRefused
					}
					return answer, err
				}
				hook := with(route("hook", sink), latestOnly)
				_, stop := s.run(hook)
				s.publish(announced)
				if tt.between {
					s.publish(others...)
				}
				s.publish(newer)
				pause(time.Minute)
				stop()
				if !tt.between {
					s.publish(others...)
				}
				before := len(sink.attempts())
				_, stop = s.start(relay.Options{Routes: []bridge.Route{hook}, Connect: s.over(&cable{latency: 20 * time.Millisecond})})
				pause(time.Minute)
				after := sink.attempts()[before:]
				if slices.Contains(after, announced.ID()) || !slices.Contains(after, newer.ID()) {
					t.Errorf("it begins with %q", after[:min(3, len(after))])
				}
				stop()
			})
		})
	}
}

// A sink stops after 32 deliveries whose records aren't written, exec after one, so that another relay repeats no more.
func TestASinkStopsWhileNothingIsPutOnRecord(t *testing.T) {
	systemtest.Alone(t)
	for most, durable := range map[int]bool{32: false, 1: true} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				first, second := newRecorder(), newRecorder()
				of := func(sink delivery.Sink) bridge.Route {
					return with(route("hook", sink), func(terms *bridge.Terms) { terms.Durable = durable })
				}
				wire := &cable{}
				_, stop := s.start(relay.Options{Routes: []bridge.Route{of(first)}, Connect: s.over(wire)})
				pause(2 * time.Second)
				wire.fail("$KV.FOREWARN_records.record.hook.")
				wire.fail(`"state":"accepted"`) // records can be read
				var all []event.Event
				for n := range 60 {
					all = append(all, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
				}
				s.publish(all...)
				pause(30 * time.Minute)
				if n := len(first.all()); n != most {
					t.Errorf("it told %d, want it to stop after %d", n, most)
				}
				wire.fail("hangs")
				_, stopOther := s.start(relay.Options{Name: "relay-2", Routes: []bridge.Route{of(second)}})
				pause(5 * time.Minute)
				told := count(append(first.all(), second.all()...))
				repeated := 0
				for _, n := range told {
					if n > 1 {
						repeated++
					}
				}
				if len(told) != len(all) || repeated > most {
					t.Errorf("%d of %d were told, %d of them twice; want at most %d", len(told), len(all), repeated, most)
				}
				stop()
				stopOther()
			})
		})
	}
}

// A stream that was made again while the buckets stayed is read from its end, with the latest message of each open event:
// what was published in the meantime and is over is told to nobody. The log doesn't promise more.
func TestAStreamThatIsMadeAgainIsReadFromItsEnd(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		told := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(told)
		pause(time.Second)
		stop()
		s.remake("FOREWARN")
		over, open := eventNo(2), eventNo(3).in(24*time.Hour)
		left := open.say(t, imds.Scheduled, "vm-1")
		s.publish(over.say(t, imds.Scheduled, "vm-1"), over.say(t, imds.Vanished, "vm-1"), told, left)
		_, stop = s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Log: log.Logger()})
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), told, left)
		if log.Count("the stream was made again") != 1 || log.Count("told twice") > 0 {
			t.Error("the log doesn't say that the stream was made again, or promises that nothing is told twice")
		}
		stop()
	})
}
