package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// A reminder that waits is out of date when its sink is told anything else about its event; one that nobody has
// overtaken is told.
func TestAReminderThatWaitsIsOvertakenOnARelay(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		a, b := eventNo(1).in(time.Hour), eventNo(2).in(time.Hour)
		var said []event.Event
		for _, x := range []azure{a, b} {
			ce, err := changeSaid(imds.Change{Kind: imds.Reminder, Event: x.event(imds.StatusScheduled), Lead: time.Hour},
				"vm-1")(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, x.say(t, imds.Scheduled, "vm-1"), ce)
		}
		s.publish(said[0], said[2])
		pause(time.Second)
		sink.say(fails(errRefused))
		s.publish(said[1], said[3])
		pause(5 * time.Second)
		started := a.say(t, imds.Started, "vm-1")
		s.publish(started)
		sink.say(nil)
		pause(10 * time.Minute)
		got := sink.all()
		slices.Sort(got[2:])
		wantIDs(t, "told", got, said[0], said[2], started, said[3])
		stop()
	})
}

// A reminder that waits stays pending when its event changes and its sink is not told of that, unless the event moves
// or begins.
func TestAReminderOutlivesAChangeThatItsSinkIsNotToldOfOnARelay(t *testing.T) {
	systemtest.Alone(t)
	for claim, tt := range map[string]struct {
		next func(t *testing.T, a azure) event.Event
		told bool
	}{
		"it is another type": {func(t *testing.T, a azure) event.Event {
			was := a
			a.typ = "Redeploy"
			return a.updated(t, was)
		}, true},
		"it moves":  {func(t *testing.T, a azure) event.Event { return a.in(90*time.Minute).updated(t, a) }, false},
		"it begins": {func(t *testing.T, a azure) event.Event { return a.say(t, imds.Started, "vm-1") }, false},
	} {
		for _, behind := range []bool{false, true} { // whether it comes after the change, of a VM that is behind
			t.Run(fmt.Sprintf("%s, the reminder comes after that: %v", claim, behind), func(t *testing.T) {
				onStage(t, func(t *testing.T, s *stage) {
					sink := newRecorder()
					sink.answer = fails(errRefused)
					r := with(route("drain", sink), latestOnly)
					r.Filter.Only.Changes = []string{"reminder"}
					_, stop := s.run(r)
					a := eventNo(1).in(time.Hour)
					reminder, err := changeSaid(imds.Change{Kind: imds.Reminder, Event: a.event(imds.StatusScheduled), Lead: time.Hour},
						"vm-1")(time.Now())
					if err != nil {
						t.Fatal(err)
					}
					s.publish(a.say(t, imds.Scheduled, "vm-1"))
					if !behind {
						s.publish(reminder)
					}
					pause(5 * time.Second)
					s.publish(tt.next(t, a))
					if behind {
						s.publish(reminder)
					}
					pause(5 * time.Second)
					sink.say(nil)
					pause(10 * time.Minute)
					if tt.told {
						wantIDs(t, "told", sink.all(), reminder)
					} else {
						wantIDs(t, "told", sink.all())
					}
					stop()
				})
			})
		}
	}
}

// A reminder that is accepted after its event began counts as accepted, and what comes next gets its receipt.
func TestAnOvertakenReminderThatIsAcceptedKeepsItsReceiptOnARelay(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		chat := newRecorder()
		var receipts []string
		chat.answer = func(batch []delivery.Delivery) (delivery.Answer, error) {
			receipts = append(receipts, string(batch[0].Receipt))
			time.Sleep(5 * time.Second)
			return delivery.Answer{Receipt: []byte("thread-1")}, nil
		}
		r := route("chat", chat)
		r.Filter.Only.Changes = []string{"reminder", "started"}
		st, stop := s.run(r)
		a := eventNo(1).in(time.Hour)
		reminder, err := changeSaid(imds.Change{Kind: imds.Reminder, Event: a.event(imds.StatusScheduled), Lead: time.Hour},
			"vm-1")(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s.publish(reminder)
		pause(time.Second)
		started := a.say(t, imds.Started, "vm-1")
		s.publish(started)
		pause(time.Minute)
		wantIDs(t, "told", chat.all(), reminder, started)
		if want := []string{"", "thread-1"}; !slices.Equal(receipts, want) {
			t.Errorf("the receipts are %q, want %q", receipts, want)
		}
		histories, _, _ := st.Histories(t.Context(), bridge.Period{})
		if len(histories) != 1 {
			t.Fatalf("the history has %d events, want 1", len(histories))
		}
		for _, c := range histories[0].Changes {
			if len(c.Deliveries) != 1 || c.Deliveries[0].State != "accepted" || c.Deliveries[0].Attempts != 1 {
				t.Errorf("of %s the history says %+v, want accepted after 1 attempt", c.ID, c.Deliveries)
			}
		}
		stop()
		_, stop = s.run(r)
		pause(time.Minute)
		wantIDs(t, "after a restart", chat.all(), reminder, started)
		stop()
	})
}
