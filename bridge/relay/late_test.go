package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// late says what becomes of a change that a newer one has overtaken.
func TestLateIsAsTheRouteSaysOnARelay(t *testing.T) {
	for _, tt := range []struct {
		late   delivery.Late
		told   int // of the three changes, the last ones
		missed int
		dead   int
	}{{delivery.LateSend, 3, 0, 0}, {delivery.LateLatest, 1, 2, 0}, {delivery.LateDrop, 1, 0, 1}} { // the end settles what has begun
		t.Run(string(tt.late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink, missed := newRecorder(), 0
				sink.answer = fails(errRefused)
				st, stop := s.run(with(route("hook", sink), func(t *bridge.Terms) { t.Late = tt.late }))
				a := eventNo(1)
				changes := []event.Event{a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1"),
					a.say(t, imds.Vanished, "vm-1")}
				for _, ce := range changes {
					s.publish(ce)
					pause(2 * time.Second)
				}
				sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
					missed += len(batch[0].Missed)
					return delivery.Answer{}, nil
				})
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), changes[3-tt.told:]...)
				list, _, err := st.List(t.Context(), relay.Selection{State: "dead"}, 10)
				if err != nil || len(list) != tt.dead || missed != tt.missed {
					t.Errorf("%d dead letters and %d missed, %v; want %d and %d", len(list), missed, err, tt.dead, tt.missed)
				}
				for _, e := range list {
					if e.Reason != delivery.ReasonLate {
						t.Errorf("%s is a dead letter, reason %s", e.ID, e.Reason)
					}
				}
				stop()
			})
		})
	}
}

// What is older than max_age becomes a dead letter once it was tried, and not before.
func TestOldDeliveriesExpireOnARelay(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		sink.answer = fails(errRefused)
		st, stop := s.run(with(route("hook", sink), func(t *bridge.Terms) { t.MaxAge = time.Hour }))
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		dead := func() (reasons []string) {
			list, _, err := st.List(t.Context(), relay.Selection{State: "dead"}, 10)
			if err != nil {
				t.Error(err)
			}
			for _, e := range list {
				reasons = append(reasons, e.Reason)
			}
			return reasons
		}
		pause(55 * time.Minute)
		if got := dead(); len(got) > 0 {
			t.Errorf("after 55 minutes: %q", got)
		}
		pause(12 * time.Minute)
		if got := dead(); !slices.Equal(got, []string{delivery.ReasonExpired}) {
			t.Errorf("after 67 minutes: %q", got)
		}
		stop()
	})
}

// A VM that saw an event first when it had begun may be quicker than those that saw it announced. What they say then is
// late: only a sink with late: send is told. An event that comes back after its end is no such case.
func TestAnOutdatedChangeIsLate(t *testing.T) {
	systemtest.LeftToGate(t)
	for _, late := range []delivery.Late{delivery.LateSend, delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				r := with(route("hook", sink), func(t *bridge.Terms) { t.Late = late })
				_, stop := s.run(r)
				a := eventNo(1).in(time.Hour)
				scheduled := a.say(t, imds.Scheduled, "vm-1")
				pause(time.Minute)
				started := a.say(t, imds.Started, "vm-2")
				s.publish(started)
				pause(time.Minute)
				stop()
				st, stop := s.run(r) // another relay knows it too
				s.publish(scheduled)
				pause(time.Minute)
				if open := st.Status().Events; len(open) != 1 || open[0].Known.Status != imds.StatusStarted {
					t.Errorf("open is %v, want it started", open)
				}
				end := a.say(t, imds.Vanished, "vm-1")
				s.publish(end)
				pause(time.Minute)
				back, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: a.event(imds.StatusScheduled)},
					cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-1", ResourceGroup: "web"}, Time: time.Now(), Repeat: 1})
				if err != nil {
					t.Fatal(err)
				}
				s.publish(back)
				pause(time.Minute)
				want, letters := []event.Event{started, end, back}, 0
				switch late {
				case delivery.LateSend:
					want = []event.Event{started, scheduled, end, back}
				case delivery.LateDrop:
					letters = 1
				}
				wantIDs(t, "told", sink.all(), want...)
				if open := st.Status().Events; len(open) != 1 {
					t.Errorf("%d events are open, want the one that came back", len(open))
				}
				list, _, err := st.List(t.Context(), relay.Selection{State: "dead"}, 10)
				if err != nil || len(list) != letters || letters > 0 && (list[0].ID != scheduled.ID() || list[0].Reason != "late") {
					t.Errorf("dead letters %v, %v; want %d", list, err, letters)
				}
				stop()
			})
		})
	}
}

// A change that is pending stays so when a relay reads it again after a later change that the sink doesn't get.
func TestAPendingChangeIsNotOutdatedWhenItIsReadAgain(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				sink.answer = fails(errRefused)
				r := with(route("hook", sink), func(t *bridge.Terms) { t.Late = late })
				r.Filter.Only.Changes = []string{"scheduled"}
				_, stop := s.run(r)
				a := eventNo(1)
				scheduled := a.say(t, imds.Scheduled, "vm-1")
				s.publish(scheduled)
				pause(2 * time.Second)
				s.publish(a.say(t, imds.Started, "vm-1"))
				pause(time.Minute) // one more failed attempt saves the record
				stop()
				sink.say(nil)
				_, stop = s.run(r)
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), scheduled)
				stop()
			})
		})
	}
}

// What is too late is nobody's business any more: it doesn't fall back.
func TestWhatIsLateDoesNotFallBackOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer = fails(errRefused)
		drop := with(route("drain", first), func(t *bridge.Terms) {
			t.Late, t.Fallback = delivery.LateDrop, delivery.Fallback{Sink: "page", After: time.Hour}
		})
		page := route("page", second)
		page.Filter.Only.Types = []string{"Preempt"}
		st, stop := s.run(drop, page)
		a := eventNo(1)
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(2 * time.Second)
		s.publish(a.say(t, imds.Started, "vm-1"))
		pause(time.Minute)
		list, _, err := st.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 1 || list[0].Reason != delivery.ReasonLate {
			t.Errorf("dead letters %v, %v; want one that is late", list, err)
		}
		wantIDs(t, "the fallback", second.attempts())
		stop()
	})
}

// That a newer change of its event overtook what a sink had failed to do, or came first, is no trouble, whether the newer
// one is tried or done by then: nothing is given up. That nothing was done before the time of the event had passed is.
func TestWhatANewerChangeOvertakesIsNotReportedAsGivenUpOnARelay(t *testing.T) {
	const givenUp = "1 dead of drain: rejected rejected: 422"
	for _, tt := range []struct {
		claim string
		then  func(s *stage, drain *recorder, scheduled, started event.Event)
		told  string
	}{
		{"it is tried", func(s *stage, _ *recorder, scheduled, started event.Event) {
			s.publish(scheduled)
			pause(5 * time.Second)
			s.publish(started)
		}, ""},
		{"it is done", func(s *stage, drain *recorder, scheduled, started event.Event) {
			s.publish(scheduled)
			pause(5 * time.Second)
			drain.say(nil)
			s.publish(started)
		}, ""},
		{"another VM told of it before", func(s *stage, _ *recorder, scheduled, started event.Event) {
			s.publish(started)
			pause(5 * time.Second)
			s.publish(scheduled)
		}, ""},
		{"none came, and its time passed", func(s *stage, _ *recorder, scheduled, _ event.Event) {
			s.publish(scheduled)
		}, "1 dead of drain: late connection refused"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				drain, o := newRecorder(), newOps()
				drain.answer = fails(fmt.Errorf("%w: 422", delivery.ErrRejected))
				people := o.route()
				people.Filter.Only.Types = []string{"Preempt"}
				st, stop := s.run(with(route("drain", drain), func(t *bridge.Terms) { t.Late = delivery.LateDrop }), people)
				s.publish(eventNo(0).say(t, imds.Scheduled, "vm-1"))
				pause(5 * time.Second) // given up and reported: the next report comes a minute later
				drain.say(fails(errRefused))
				a := eventNo(1).in(2 * time.Minute)
				scheduled := a.say(t, imds.Scheduled, "vm-1")
				pause(time.Second)
				tt.then(s, drain, scheduled, a.say(t, imds.Started, "vm-2"))
				pause(3 * time.Minute)
				list, _, err := st.List(t.Context(), relay.Selection{State: "dead"}, 10)
				if err != nil || len(list) != 2 || list[1].ID != scheduled.ID() || list[1].Reason != delivery.ReasonLate {
					t.Errorf("there are %d dead letters, %v; want the announcement as the second", len(list), err)
				} else if list[1].Overtaken != (tt.told == "") {
					t.Errorf("the letter says that it was overtaken: %v", list[1].Overtaken)
				}
				want := []string{givenUp}
				if tt.told != "" {
					want = append(want, tt.told)
				}
				if got := o.news(); !slices.Equal(got, want) {
					t.Errorf("ops heard %q, want %q", got, want)
				}
				stop()
			})
		})
	}
}

// What a sink gave back of an event isn't lost when a newer change settles what was attempted meanwhile, and it failed.
func TestTheReceiptOfAFailedReminderOutlivesIt(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var told []string
		chat := newRecorder()
		chat.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			told = append(told, strings.TrimPrefix(batch[0].Event.Type(), cloudevent.EventPrefix)+" "+string(batch[0].Receipt))
			if len(told) != 2 {
				return delivery.Answer{}, nil
			}
			pause(3 * time.Second)
			return delivery.Answer{Receipt: []byte("ts-1")}, errRefused
		}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("chat", chat)}})
		pause(2 * time.Second)
		a := eventNo(1).in(10 * time.Minute)
		s.publish(a.say(t, imds.Scheduled, "vm-1"))
		pause(time.Second)
		s.publish(a.say(t, imds.Reminder, "vm-1"))
		pause(time.Second)
		s.publish(a.say(t, imds.Started, "vm-1"))
		pause(time.Minute)
		if want := []string{"scheduled ", "reminder ", "started ts-1"}; !slices.Equal(told, want) {
			t.Errorf("it was told %q, want %q", told, want)
		}
		stop()
	})
}
