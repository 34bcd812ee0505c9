package bridge_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	troubles "forewarn/bridge/internal/trouble"
	"forewarn/bridge/outbox"
)

// The first dead letter of a sink is reported at once, more of them together once a minute, and none are left at the
// end.
func TestDeadLettersAreReportedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, strict := &recorder{}, answering(delivery.ErrRejected)
		b := s.up(admin.trouble("admin"), strict.all("strict").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble }))
		wantTold := func(counts ...int) {
			t.Helper()
			var told []int
			for _, h := range admin.accepted() {
				letters := wantSays(t, h, map[string]any{"sink": "strict"})["deliveries"].([]any)
				wantSays(t, h, map[string]any{"count": float64(len(letters))})
				wantEqual(t, "the error", letters[0].(map[string]any)["error"], any(delivery.ErrRejected.Error()))
				told = append(told, len(letters))
			}
			if !slices.Equal(told, counts) {
				t.Errorf("told are %v dead letters, want %v", told, counts)
			}
		}
		s.notSelf("A")
		pause(2500 * time.Millisecond)
		wantTold(1) // the first at once
		for _, id := range []string{"B", "C", "D"} {
			s.notSelf(id)
			pause(2 * time.Second)
		}
		wantTold(1) // no more within a minute
		pause(time.Minute)
		wantTold(1, 3) // the others together
		wantIDs(t, admin.types(), "delivery.deadlettered", "delivery.deadlettered")
		s.notSelf("E")
		pause(2 * time.Second)
		b.end()
		wantTold(1, 3, 1) // what was left at the end
		wantIDs(t, strict.ids())
	})
}

// A crash loses no report of a dead letter, and makes no second one.
func TestDeadLettersAreReportedAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin, strict := &recorder{}, answering(delivery.ErrRejected)
		routes := []bridge.Route{admin.trouble("admin"), strict.all("strict")}
		b := s.up(routes...)
		for _, id := range []string{"A", "B", "C", "D"} {
			s.notSelf(id)
			pause(2500 * time.Millisecond)
		}
		wantIDs(t, admin.types(), "delivery.deadlettered") // of A
		letters := b.deadLetters()
		b.drop(letters[3])
		for range 2 {
			b.crash()
			b = s.start(routes...)
			pause(5 * time.Second)
		}
		wantIDs(t, admin.types(), "delivery.deadlettered", "delivery.deadlettered")
		var keys []any
		for _, h := range admin.accepted() {
			for _, d := range tellingOf(t, h.Event)["deliveries"].([]any) {
				keys = append(keys, d.(map[string]any)["key"])
			}
		}
		if want := []any{letters[0].Key, letters[1].Key, letters[2].Key}; !slices.Equal(keys, want) {
			t.Errorf("reported are %v, want %v", keys, want)
		}
	})
}

// Dead letters of an earlier run are reported when it is known whose they are, and never by another VM; also those in a
// file that comes late.
func TestDeadLettersAreReportedByTheirVM(t *testing.T) {
	for _, tt := range []struct {
		claim string
		vm    string
		late  bool
		want  []string
	}{
		{"this VM's", "", false, []string{"delivery.deadlettered"}},
		{"another VM's", "vm-1", false, nil},
		{"this VM's, in a late file", "", true, []string{"delivery.deadlettered"}},
		{"another VM's, in a late file", "vm-1", true, nil},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			image := filepath.Join(t.TempDir(), "outbox.db")
			admin := &recorder{}
			b := s.start(answering(delivery.ErrRejected).all("strict"))
			pause(1600 * time.Millisecond)
			s.reboot(idA)
			pause(600 * time.Millisecond) // it is dead, and to be reported within the second
			b.snapshot(image)
			b.end()
			copyFile(t, image, filepath.Join(s.dir, "outbox.db"))
			s.vm = tt.vm
			routes := []bridge.Route{admin.trouble("admin"), (&recorder{}).all("strict")}
			if tt.late {
				s.metadata(imdstest.Fault{Status: 503, For: 8 * time.Second})
				_, bring := s.lateFile(b, func() {}, routes...)
				pause(4 * time.Second)
				bring()
			} else {
				s.metadata(imdstest.Fault{Status: 503, For: 4 * time.Second})
				s.start(routes...)
			}
			pause(3500 * time.Millisecond)
			wantIDs(t, admin.types())
			pause(time.Minute)
			wantIDs(t, admin.types(), tt.want...)
		})
	}
}

// What somebody drops together is reported as one CloudEvent a sink, which keeps to the schema and names the first of
// many.
func TestWhatIsDroppedTogetherIsReportedTogether(t *testing.T) {
	whole, _ := schemas(t)
	bubble(t, func(t *testing.T, s *stage) {
		down, audit, count := answering(errSinkDown), &recorder{}, &counting{}
		s.opts.Meter = count
		heardAll := func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }
		b := s.up(down.all("down").With(heardAll), audit.all("audit").With(heardAll))
		for n := range 30 {
			s.reboot(fmt.Sprintf("%08d-0000-4000-8000-000000000000", n))
		}
		pause(3 * time.Second)
		drop := func(list ...outbox.Delivery) map[string]any {
			t.Helper()
			before := len(audit.accepted())
			b.drop(list...)
			pause(time.Second)
			wantIDs(t, audit.types()[before:], "delivery.dropped")
			told := audit.accepted()[before]
			must(t, breaks(t, whole, structured(t, told.Event)))
			for _, d := range tellingOf(t, told.Event)["deliveries"].([]any) {
				d := d.(map[string]any)
				if _, has := d["error"]; has == (d["attempts"] == 0.0) {
					t.Errorf("of one that was dropped it tells %v, want an error if it was tried", d)
				}
			}
			return wantSays(t, told, map[string]any{"count": float64(len(list)), "by": "root", "event": nil})
		}
		pending := b.Outbox.List(outbox.Selection{Route: "down"})
		for _, d := range pending[:2] { // the first is about the bridge
			listed := drop(d)["deliveries"].([]any)
			wantEqual(t, "the key", listed[0].(map[string]any)["key"], any(d.Key))
		}
		many := drop(pending[2:]...)
		wantEqual(t, "listed of 29", len(many["deliveries"].([]any)), troubles.ListedDead)
		wantEqual(t, "CloudEvents about drops that were counted", count.of("committed")[cloudevent.DeliveryDropped], 3)
	})
}

// A crash never loses the report of a drop: what leaves the outbox and the CloudEvent about it reach the disk together.
func TestADropAndItsReportReachTheDiskTogether(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		heardAll := func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }
		down, audit := answering(errSinkDown), &recorder{}
		var b *running
		image := filepath.Join(t.TempDir(), "outbox.db")
		s.logged = func(words string) {
			if words == "delivery dropped" {
				b.snapshot(image)
			}
		}
		b = s.up(down.all("down"), audit.all("audit").With(heardAll))
		s.reboot(idA)
		pause(3 * time.Second)
		b.drop(b.Outbox.List(outbox.Selection{Route: "down"})[0])
		b.end()
		left := stored(t, filepath.Dir(image))
		wantIDs(t, pendingIDs(left, "down"))
		isReport := func(d outbox.Delivery) bool { return d.Type == cloudevent.DeliveryDropped }
		wantEqual(t, "the report is kept", slices.ContainsFunc(left.List(outbox.Selection{Route: "audit"}), isReport), true)
	})
}

// While the endpoint has not answered yet, what is pending for a sink that was removed a day ago becomes a dead letter,
// and nothing else is tidied up.
func TestARemovedSinksBacklogEndsWithoutAnAnswerOfTheEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down := answering(errSinkDown)
		b := s.start(down.all("down"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.reload()
		pause(time.Second)
		b.end()
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(24 * time.Hour)
		b = s.start()
		pause(15 * time.Second) // the backlog waits for the name of this VM
		wantEqual(t, "pending", b.Outbox.Totals().Pending, 0)
		wantEqual(t, "dead letters", b.Outbox.Totals().Dead, 1)
	})
}
