package relay_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// At the bound a sink that accepts nothing loses the oldest that isn't urgent, for each that comes: that becomes a dead
// letter. It is said once in the log, in the status, and to the other sinks. What comes when the sink accepts again is told.
func TestUnsettledIsBounded(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		hook, other := newRecorder(), newRecorder()
		hook.answer = fails(errRefused)
		trouble := with(route("other", other), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble })
		trouble.Filter.Only.Types = []string{"Preempt"}
		r, stop := s.start(relay.Options{
			Routes: []bridge.Route{route("hook", hook), trouble}, MaxUnsettled: 10,
			Log: log.Logger(),
		})
		pause(2 * time.Second)
		var all []event.Event
		for n := range 40 {
			all = append(all, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(all...)
		pause(time.Minute)
		st := r.Status()
		want := "the sink hook: 10 deliveries are unsettled, so the oldest that isn't urgent becomes a dead letter for each " +
			"that comes: 30 so far"
		if st.Ready || !slices.Contains(st.Reasons, want) || st.Sinks[0].Pending > 10 {
			t.Errorf("%d are pending, reasons %q, want %q", st.Sinks[0].Pending, st.Reasons, want)
		}
		letters, _, err := r.List(t.Context(), relay.Selection{State: "dead", Sink: "hook"}, 100)
		if err != nil || len(letters) != 30 || letters[0].Reason != delivery.ReasonOverflow || letters[0].ID != all[0].ID() {
			t.Errorf("%d dead letters, the first is %+v, %v; want the 30 oldest", len(letters), letters[:min(1, len(letters))], err)
		}
		if n := log.Count("too much is unsettled"); n != 1 {
			t.Errorf("it is logged %d times, want once", n)
		}
		if n := len(other.all()); n == 0 || n > 3 {
			t.Errorf("the other sink heard of it %d times, want a message or two", n)
		}
		hook.say(nil)
		pause(3 * time.Minute)
		more := eventNo(99).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(more)
		pause(2 * time.Minute)
		wantIDs(t, "told", sorted(hook.all()), append(slices.Clone(all[30:]), more)...)
		if st := r.Status(); !st.Ready {
			t.Errorf("it isn't ready, because of %q", st.Reasons)
		}
		stop()
	})
}

// A relay that stops just when it gives up a delivery has the next one not tell it: it is a dead letter, and on record.
func TestWhatIsGivenUpAtAStopIsNotTold(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, wire := newRecorder(), &cable{}
		sink.answer = fails(errRefused)
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, MaxUnsettled: 10, Connect: s.over(wire)})
		pause(2 * time.Second)
		var all []event.Event
		for n := range 11 {
			all = append(all, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(all...)
		pause(4500 * time.Millisecond)
		wire.slow(time.Second)
		pause(time.Second)
		stop()
		sink.say(nil)
		r, stop := s.run(route("hook", sink))
		pause(time.Minute)
		wantIDs(t, "told", sorted(sink.all()), all[1:]...)
		if dead := keys(t, r, "hook"); !slices.Equal(dead, []string{keyOf("hook", all[0])}) {
			t.Errorf("dead letters are %q, want that of %s", dead, all[0].ID())
		}
		stop()
	})
}

// A set that publishes more than its share loses its own oldest, urgent or not, and none of another set's. It is said which
// set that is.
func TestASetTakesNoRoomFromAnother(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		hook := newRecorder()
		hook.answer = fails(errRefused)
		r, stop := s.start(relay.Options{
			Routes: []bridge.Route{route("hook", hook)}, MaxUnsettled: 20, Log: log.Logger(),
		})
		pause(2 * time.Second)
		var few []event.Event
		for n := range 3 {
			few = append(few, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(few...)
		for n := range 40 {
			a := eventNo(100 + n).in(5 * time.Minute)
			a.vm = "vm-9"
			s.publish(a.say(t, imds.Scheduled, "vm-9"))
		}
		pause(time.Minute)
		letters, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 100)
		for _, l := range letters {
			if slices.ContainsFunc(few, func(ce event.Event) bool { return ce.ID() == l.ID }) {
				t.Errorf("%s is a dead letter, of the set that published little", l.ID)
			}
		}
		if err != nil || len(letters) < 20 {
			t.Errorf("%d dead letters, %v; want those of the other set", len(letters), err)
		}
		const set = "_/web/vm-9"
		if reasons := strings.Join(r.Status().Reasons, " "); !strings.Contains(reasons, "first those of "+set) {
			t.Errorf("the status says %q, want it to name %s", reasons, set)
		}
		if n := log.Count("set=" + set); n != 1 {
			t.Errorf("the set is logged %d times, want once", n)
		}
		hook.say(nil)
		pause(6 * time.Minute)
		for _, ce := range few {
			if !slices.Contains(hook.all(), ce.ID()) {
				t.Errorf("%s is never told", ce.ID())
			}
		}
		stop()
	})
}

// At the bound the older change of an event goes before the newer one, although the older one said that it is urgent:
// what is told once the sink is back is how things are.
func TestTheNewestChangeOfAnEventStaysAtTheBound(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(errRefused)
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, MaxUnsettled: 10})
		pause(2 * time.Second)
		older := eventNo(0).in(10*time.Minute).say(t, imds.Scheduled, "vm-1")
		s.publish(older, eventNo(0).in(24*time.Hour).say(t, imds.Updated, "vm-1"))
		for n := range 9 {
			s.publish(eventNo(1+n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		pause(time.Minute)
		letters, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 100)
		if err != nil || len(letters) != 1 || letters[0].ID != older.ID() {
			t.Errorf("the dead letters are %+v, %v; want %s", letters, err, older.ID())
		}
		stop()
	})
}

// Nothing urgent waits behind a bound: not while a sink is dead whose fallback works, and not under a mute of all else.
func TestNothingUrgentWaitsBehindABound(t *testing.T) {
	for name, muted := range map[string]bool{"dead, with a fallback": false, "muted": true} {
		t.Run(name, func(t *testing.T) {
			if muted {
				systemtest.Alone(t)
			}
			onStage(t, func(t *testing.T, s *stage) {
				chat, mail := newRecorder(), newRecorder()
				hook, told := route("chat", chat), mail
				if muted {
					told = chat
				} else {
					chat.answer = fails(errRefused)
					hook.Terms.Fallback = delivery.Fallback{Sink: "mail", After: time.Minute}
				}
				spare := route("mail", mail)
				spare.Filter.Only.Types = []string{"Terminate"}
				r, stop := s.start(relay.Options{Routes: []bridge.Route{hook, spare}, MaxUnsettled: 10})
				pause(2 * time.Second)
				if muted {
					if _, err := r.Mute(delivery.Mute{Sink: "chat", Reason: "work", By: "alice"}, 24*time.Hour); err != nil {
						t.Fatal(err)
					}
				}
				for n := range 20 {
					s.publish(eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
				}
				pause(10 * time.Minute)
				soon := eventNo(50).in(20 * time.Minute)
				soon.typ = "Preempt"
				soon.notBefore = time.Now().Add(5 * time.Minute)
				urgent := soon.say(t, imds.Scheduled, "vm-1")
				s.publish(urgent)
				pause(2 * time.Minute)
				if !slices.Contains(told.all(), urgent.ID()) {
					t.Errorf("the Preempt isn't told; chat tried %d, mail heard %d", len(chat.attempts()), len(mail.all()))
				}
				if !muted {
					letters, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 100)
					if err != nil || len(letters) > 10 {
						t.Errorf("%d dead letters, %v; want none of what the fallback had", len(letters), err)
					}
				}
				stop()
			})
		})
	}
}

// At the bound what is given up isn't attempted any more, also while it takes a while to keep it. If it can't be kept, it
// is pending as before.
func TestWhatIsGivenUpIsNotToldUnlessItCannotBeKept(t *testing.T) {
	for name, lost := range map[string]bool{"kept": false, "not kept": true} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				const letter = "PUB forewarn_dead."
				retry, down := 7*time.Second, true // it is given up 5 s after the bound is reached
				hook, keeping := newRecorder(), 0
				hook.answer = func([]delivery.Delivery) (delivery.Answer, error) {
					if !down {
						return delivery.Answer{}, nil
					}
					down = false
					return delivery.Answer{}, &delivery.RetryAfter{After: retry, Err: errRefused}
				}
				wire := &cable{hears: func(sent []byte) {
					if bytes.Contains(sent, []byte(letter)) {
						keeping++
						time.Sleep(3 * time.Second)
					}
				}}
				if lost {
					wire.fail(letter)
				}
				r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, MaxUnsettled: 10, Connect: s.over(wire)})
				pause(2 * time.Second)
				var all []event.Event
				for n := range 11 {
					all = append(all, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
				}
				s.publish(all...)
				pause(time.Minute)
				if keeping != 1 {
					t.Errorf("it tried to keep %d deliveries, want one", keeping)
				}
				told, want := all, []string(nil)
				if !lost {
					told, want = all[1:], []string{keyOf("hook", all[0])}
				}
				wantIDs(t, "told", sorted(hook.all()), told...)
				if dead := keys(t, r, "hook"); !slices.Equal(dead, want) {
					t.Errorf("the dead letters are %q, want %q", dead, want)
				}
				stop()
			})
		})
	}
}

// A backlog that is larger than the bound is told whole and in order by a sink that works.
func TestABacklogBeyondTheBoundIsTold(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		var all []event.Event
		for n := range 50 {
			all = append(all, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(all...)
		slow := route("hook", sink)
		sink.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			time.Sleep(2 * time.Second)
			return delivery.Answer{}, nil
		}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{slow}, MaxUnsettled: 10, From: time.Now().Add(-time.Hour)})
		pause(10 * time.Minute)
		wantIDs(t, "told", sorted(sink.all()), all...)
		stop()
	})
}

// An event of another set that begins soon doesn't wait behind the backlog of a set that has most of the room, also where
// the sink works, but slowly. Nor does one that comes later. Nothing is given up for what the sink isn't told of, and all
// that is given up is a dead letter.
func TestNothingUrgentWaitsBehindTheBacklogOfAnotherSet(t *testing.T) {
	for name, only := range map[string][]string{"it gets it": nil, "it gets none": {"Reboot"}} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				var log systemtest.Log
				sink := newRecorder()
				sink.answer = func([]delivery.Delivery) (delivery.Answer, error) {
					time.Sleep(2 * time.Second)
					return delivery.Answer{}, nil
				}
				slow := route("hook", sink)
				slow.Filter.Only.Types = only
				r, stop := s.start(relay.Options{Routes: []bridge.Route{slow}, MaxUnsettled: 10,
					Log: log.Logger()})
				pause(2 * time.Second)
				const flood = 200
				for n := range flood {
					a := eventNo(n).in(24 * time.Hour)
					a.vm = "vm-1"
					s.publish(a.say(t, imds.Scheduled, "vm-1"))
				}
				for n := range 2 {
					soon := eventNo(900 + n).in(30 * time.Second)
					soon.typ, soon.vm = "Preempt", "vm-2"
					urgent := soon.say(t, imds.Scheduled, "vm-2")
					s.publish(urgent)
					pause(10 * time.Second)
					if told := slices.Contains(sink.all(), urgent.ID()); told != (only == nil) {
						t.Errorf("after 10 s it is told of Preempt %d: %v", n, told)
					}
				}
				pause(10 * time.Minute)
				letters, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 1000)
				want := flood
				if only == nil {
					want += 2
				}
				if err != nil || len(letters)+len(sink.all()) != want || (len(letters) > 0) != (only == nil) {
					t.Errorf("%d are told, %d dead letters, %v; want %d in all", len(sink.all()), len(letters), err, want)
				}
				if n := log.Count("too much is unsettled"); n > 1 || n != log.Count("there is room again") {
					t.Errorf("it is logged %d times, want once, and that it is over as often", n)
				}
				if st := r.Status(); !st.Ready {
					t.Errorf("it is not ready at the end: %.300q", st.Reasons)
				}
				stop()
			})
		})
	}
}

// Bodies beyond what may be in memory are read again: those of the set that has most there. Of one that has few, all stay.
func TestCloudEventsAreReadAgainWhenThereIsNoRoomForThem(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		const most = 64 // MiB
		sink, wire, read := newRecorder(), &cable{}, &systemtest.Log{}
		wire.hears = func(sent []byte) {
			for asked := range bytes.SplitSeq(sent, []byte("STREAM.MSG.GET.FOREWARN ")) {
				if _, rest, found := bytes.Cut(asked, []byte(`{"seq":`)); found {
					seq, _, _ := bytes.Cut(rest, []byte("}"))
					fmt.Fprintf(read, "seq=%s;", seq)
				}
			}
		}
		sink.answer = fails(errRefused)
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Connect: s.over(wire)})
		var all []event.Event
		say := func(set string, change func(*event.Event)) {
			ce := eventNo(len(all)).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet(set, set+"_0"), time.Now())
			change(&ce)
			all = append(all, ce)
			s.publishAs(ownSubject(ce), ce)
		}
		small := func(*event.Event) {}
		say("db", small)
		for range 80 {
			say("web", pad)
		}
		say("db", pad) // larger than what is left
		say("web", small)
		pause(time.Minute)
		sink.say(nil)
		pause(15 * time.Minute)
		wantIDs(t, "told", sorted(sink.all()), all...)
		n := 0
		for seq := range len(all) {
			if read.Count(fmt.Sprintf("seq=%d;", 1+seq)) > 0 {
				n++
			}
		}
		if least := 80 - most; n < least || n > 2*least {
			t.Errorf("%d were read again, want about the %d that there is no room for", n, least)
		}
		if read.Count("seq=1;") > 0 || read.Count("seq=82;") > 0 {
			t.Error("one of db was read again, although web has most in memory")
		}
		stop()
	})
}

// What a sink remembers of one event is bounded too, so that it can be written: of thousands of changes that a mute holds
// back, the oldest become dead letters, and the relay goes on.
func TestAnEventOfThousandsOfPendingChangesIsBounded(t *testing.T) {
	systemtest.Alone(t)
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "work", By: "alice"}, 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		const changes = 2500
		for n := range changes {
			ce.SetID(fmt.Sprintf("%s%04d", strings.Repeat("a", 196), n))
			body, err := ce.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			msg := &nats.Msg{Subject: ownSubject(ce), Data: body, Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}}
			if _, err := s.js.PublishMsgAsync(msg); err != nil {
				t.Fatal(err)
			}
		}
		<-s.js.PublishAsyncComplete()
		pause(5 * time.Minute)
		st := r.Status()
		for _, why := range st.Reasons {
			if strings.Contains(why, "can't be recorded") {
				t.Errorf("a reason is %q", why)
			}
		}
		letters, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, changes)
		if err != nil || len(letters) != changes-1000 || st.Sinks[0].Pending != 1000 {
			t.Errorf("%d are pending, %d dead letters, %v; want 1000 and %d", st.Sinks[0].Pending, len(letters), err, changes-1000)
		}
		stop()
	})
}

// What is superseded while it is attempted, and accepted after all, makes room once.
func TestWhatIsSupersededDuringItsAttemptMakesRoomOnce(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			time.Sleep(2 * time.Second)
			return delivery.Answer{}, nil
		}
		drain := route("drain", sink)
		drain.Terms.Late = delivery.LateDrop
		r, stop := s.start(relay.Options{Routes: []bridge.Route{drain}, MaxUnsettled: 10})
		defer stop()
		pause(2 * time.Second)
		for n := range 8 {
			e := eventNo(n).in(time.Hour)
			s.publish(e.say(t, imds.Scheduled, "vm-1"))
			pause(time.Second) // it is attempted, and its event ends
			s.publish(e.say(t, imds.Vanished, "vm-1"))
			pause(9 * time.Second)
		}
		if n := len(sink.all()); n != 16 {
			t.Fatalf("%d are told, want both changes of each event", n)
		}
		sink.answer = fails(errDown)
		most := 0
		for n := range 30 {
			s.publish(eventNo(100+n).in(time.Hour).say(t, imds.Scheduled, "vm-1"))
			pause(time.Second)
			most = max(most, r.Status().Sinks[0].Pending)
		}
		if most > 10 {
			t.Errorf("%d are pending, the bound is 10", most)
		}
	})
}
