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
		told := func() (counts []int) {
			for _, h := range admin.accepted() {
				data := tellingOf(t, h.Event)
				letters := data["deliveries"].([]any)
				if data["sink"] != "strict" || len(letters) != int(data["count"].(float64)) ||
					letters[0].(map[string]any)["error"] != delivery.ErrRejected.Error() {
					t.Errorf("it says %v", data)
				}
				counts = append(counts, int(data["count"].(float64)))
			}
			return counts
		}
		s.notSelf("A")
		pause(2500 * time.Millisecond)
		if got := told(); !slices.Equal(got, []int{1}) {
			t.Errorf("told %v, want the first at once", got)
		}
		for _, id := range []string{"B", "C", "D"} {
			s.notSelf(id)
			pause(2 * time.Second)
		}
		if got := told(); !slices.Equal(got, []int{1}) {
			t.Errorf("told %v, want no more within a minute", got)
		}
		pause(time.Minute)
		if got := told(); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("told %v, want the others together", got)
		}
		wantIDs(t, admin.types(), "delivery.deadlettered", "delivery.deadlettered")
		s.notSelf("E")
		pause(2 * time.Second)
		b.end()
		if got := told(); !slices.Equal(got, []int{1, 3, 1}) {
			t.Errorf("told %v, want what was left at the end", got)
		}
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
		b.end()
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

// Dead letters of an earlier run are reported when it is known whose they are, and never by another VM.
func TestDeadLettersAreReportedByTheirVM(t *testing.T) {
	for vm, want := range map[string][]string{"": {"delivery.deadlettered"}, "vm-1": {}} {
		bubble(t, func(t *testing.T, s *stage) {
			image := filepath.Join(t.TempDir(), "outbox.db")
			strict, admin := answering(delivery.ErrRejected), &recorder{}
			b := s.start(strict.all("strict"))
			pause(1600 * time.Millisecond)
			s.reboot(idA)
			pause(600 * time.Millisecond) // it is dead, and to be reported within the second
			b.snapshot(image)
			b.end()
			copyFile(t, image, filepath.Join(s.dir, "outbox.db"))
			s.vm = vm
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 3 * time.Second})
			strict.say(nil)
			b = s.start(admin.trouble("admin"), strict.all("strict"))
			pause(2500 * time.Millisecond)
			wantIDs(t, admin.types())
			pause(time.Minute)
			b.end()
			wantIDs(t, admin.types(), want...)
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
		b := s.up(down.all("down").With(heardAll), audit.all("audit").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		for n := range 30 {
			s.reboot(fmt.Sprintf("%08d-0000-4000-8000-000000000000", n))
		}
		pause(3 * time.Second)
		drop := func(list []outbox.Delivery) map[string]any {
			t.Helper()
			before := len(audit.accepted())
			var keys []string
			for _, d := range list {
				keys = append(keys, d.Key)
			}
			if _, err := b.Drop(keys, "root"); err != nil {
				t.Fatal(err)
			}
			pause(time.Second)
			told := audit.accepted()[before:]
			if len(told) != 1 || told[0].Event.Type() != cloudevent.DeliveryDropped {
				t.Fatalf("told %s, want one CloudEvent", idsOf(told))
			}
			if err := breaks(t, whole, structured(t, told[0].Event)); err != nil {
				t.Errorf("it breaks the contract: %v\n%s", err, told[0].Event.Data())
			}
			data := tellingOf(t, told[0].Event)
			for _, d := range data["deliveries"].([]any) {
				d := d.(map[string]any)
				if _, has := d["error"]; has == (d["attempts"] == 0.0) {
					t.Errorf("of one that was dropped it tells %v, want an error if it was tried", d)
				}
			}
			return data
		}
		pending := b.Outbox.List(outbox.Selection{Route: "down"})
		for _, d := range pending[:2] { // the first is about the bridge
			one := drop([]outbox.Delivery{d})
			if list, _ := one["deliveries"].([]any); len(list) != 1 || list[0].(map[string]any)["key"] != d.Key || one["by"] != "root" ||
				one["count"] != 1.0 || one["event"] != nil {
				t.Errorf("of one it tells %v", one)
			}
		}
		many := drop(pending[2:])
		if list, _ := many["deliveries"].([]any); many["count"] != 29.0 || len(list) != troubles.ListedDead {
			t.Errorf("of 29 it tells %v", many)
		}
		wantEqual(t, "the meter was told of CloudEvents about drops", count.of("committed")[cloudevent.DeliveryDropped], 3)
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
		if list := left.List(outbox.Selection{Route: "down"}); len(list) > 0 {
			t.Fatalf("%s is pending although it was dropped", list[0].Key)
		}
		reported := false
		for _, d := range left.List(outbox.Selection{Route: "audit"}) {
			reported = reported || d.Type == cloudevent.DeliveryDropped
		}
		if !reported {
			t.Error("a crash after the drop would lose the report of it")
		}
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
		if st := b.Outbox.Totals(); st.Pending != 0 || st.Dead != 1 {
			t.Errorf("%d are pending and %d are dead letters, want 0 and 1", st.Pending, st.Dead)
		}
	})
}
