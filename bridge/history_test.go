package bridge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// changeAt returns the CloudEvent of a change of an event, as a VM of the set web and the group prod saw it.
func changeAt(t *testing.T, id, vm string, kind imds.ChangeKind, at time.Time) event.Event {
	t.Helper()
	e, err := imds.UnmarshalEvent(fmt.Appendf(nil, `{"EventId":%q,"EventType":"Reboot","EventStatus":"Scheduled",`+
		`"ResourceType":"VirtualMachine","Resources":[%q],"NotBefore":"","EventSource":"User"}`, id, vm))
	must(t, err)
	in := cloudevent.Circumstances{Observer: imds.Observer{Name: vm, ScaleSet: "web", ResourceGroup: "prod"}, Time: at}
	if kind == imds.Vanished {
		in.End = cloudevent.End{Outcome: cloudevent.OutcomeCanceled}
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: kind, Event: e}, in)
	must(t, err)
	return ce
}

// A history is put together from CloudEvents in any order, each counted once, and the period says which events are
// shown: those whose id begins so, that name the VM, and whose last change is not older.
func TestAHistoryIsPutTogetherInAnyOrder(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	var b bridge.HistoryBuilder
	wantEqual(t, "of nothing it shows", len(b.Histories(bridge.Period{})), 0)
	about := event.New()
	about.SetID("heartbeat")
	about.SetType(cloudevent.BridgeHeartbeat)
	odd := changeAt(t, "C", "vm-2", imds.Scheduled, at)
	_ = odd.SetData(event.ApplicationJSON, []byte(`"no event"`))
	for _, ce := range []event.Event{
		changeAt(t, "B", "vm-1", imds.Scheduled, at.Add(time.Minute)),
		changeAt(t, "A", "vm-0", imds.Vanished, at.Add(time.Hour)), about, odd,
		changeAt(t, "A", "vm-0", imds.Scheduled, at),
		changeAt(t, "A", "vm-0", imds.Scheduled, at),
	} {
		b.Add(ce, []bridge.HistoryDelivery{{Route: "b"}, {Route: "a"}})
	}
	for _, tt := range []struct {
		p    bridge.Period
		want string
	}{
		{bridge.Period{}, "A B"}, {bridge.Period{Event: "a"}, "A"}, {bridge.Period{Event: "AB"}, ""},
		{bridge.Period{VM: "VM-1"}, "B"}, {bridge.Period{VM: "vm-2"}, ""}, {bridge.Period{Event: "A", VM: "vm-1"}, ""},
		{bridge.Period{Since: at.Add(time.Minute)}, "A B"}, {bridge.Period{Since: at.Add(2 * time.Minute)}, "A"},
		{bridge.Period{Since: at.Add(time.Hour)}, "A"}, {bridge.Period{Since: at.Add(time.Hour + 1)}, ""},
	} {
		var got []string
		for _, h := range b.Histories(tt.p) {
			got = append(got, h.Event)
		}
		wantEqual(t, fmt.Sprintf("%+v shows", tt.p), strings.Join(got, " "), tt.want)
	}
	h := b.Histories(bridge.Period{})[0]
	if len(h.Changes) != 2 || h.Changes[0].Change != imds.Scheduled || h.Changes[1].Change != imds.Vanished ||
		h.Outcome != cloudevent.OutcomeCanceled || h.Type != "Reboot" || h.Source != "User" || h.Set != "web" || h.Group != "prod" ||
		!slices.Equal(h.Resources, []string{"vm-0"}) || h.Changes[0].Observer != "vm-0" || !h.Changes[0].Time.Equal(at) {
		t.Errorf("the history of A is %+v", h)
	}
	if d := h.Changes[0].Deliveries; len(d) != 2 || d[0].Route != "a" || d[1].Route != "b" {
		t.Errorf("its deliveries are %+v, want those to a and b, in order", d)
	}
	wantEqual(t, "the outcome of what isn't over", b.Histories(bridge.Period{Event: "B"})[0].Outcome, "")
}

// A history names the VMs that its latest change does, in whatever order its changes are read: a dead letter that is replayed
// stands in an audit log after what is newer.
func TestAHistoryNamesTheVMsOfTheLatestChange(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	changes := []event.Event{
		changeAt(t, "A", "vm-0", imds.Scheduled, at), changeAt(t, "A", "vm-1", imds.Updated, at.Add(time.Hour)),
	}
	for range 2 {
		slices.Reverse(changes)
		var b bridge.HistoryBuilder
		for _, ce := range changes {
			b.Add(ce, nil)
		}
		wantEqual(t, "histories of vm-1", len(b.Histories(bridge.Period{VM: "vm-1"})), 1)
		wantIDs(t, b.Histories(bridge.Period{})[0].Resources, "vm-1")
	}
}

// An event that vanished and was listed again is not over, in whatever order its changes are read. When it has vanished
// again, it has the last outcome, whatever was said about it besides.
func TestAnEventThatCameBackIsNotOver(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	again := func(n int, kind imds.ChangeKind, after time.Duration) event.Event {
		ce := changeAt(t, "A", "vm-0", kind, at.Add(after))
		ce.SetID(fmt.Sprintf("%s-r%d", ce.ID(), n))
		return ce
	}
	back := []event.Event{again(1, imds.Scheduled, 0), again(1, imds.Vanished, time.Hour), again(2, imds.Scheduled, 2*time.Hour)}
	over := append(slices.Clone(back), again(2, imds.Vanished, 3*time.Hour), again(1, imds.Reminder, 4*time.Hour),
		again(1, imds.Approved, 5*time.Hour))
	for _, tt := range []struct {
		changes []event.Event
		want    cloudevent.Outcome
	}{{back[:1], ""}, {back[:2], cloudevent.OutcomeCanceled}, {back, ""}, {over, cloudevent.OutcomeCanceled}} {
		for first := range tt.changes {
			for _, reversed := range []bool{false, true} {
				list := slices.Concat(tt.changes[first:], tt.changes[:first])
				if reversed {
					slices.Reverse(list)
				}
				var b bridge.HistoryBuilder
				for _, ce := range list {
					b.Add(ce, nil)
				}
				h := b.Histories(bridge.Period{})[0]
				if h.Outcome != tt.want || len(h.Changes) != len(list) {
					t.Errorf("after %d changes, from the one with number %d, reversed %v: outcome %q of %d, want %q", len(list), first,
						reversed, h.Outcome, len(h.Changes), tt.want)
				}
				wantIn(t, "without deliveries", string(imds.CompactJSON(h)), `"deliveries":[]`)
			}
		}
	}
}

// Of the history the newest changes are shown, as many as are asked for, however far back they lie, and whether there
// are older ones. What is not about an event of Azure's doesn't count.
func TestTheNewestOfTheHistoryIsShown(t *testing.T) {
	for claim, apart := range map[string]time.Duration{"within hours": 10 * time.Minute, "over weeks": 30 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			o, err := outbox.Open(t.TempDir(), outbox.Options{})
			must(t, err)
			defer o.Close()
			var ids []string
			add := func(ce event.Event) {
				t.Helper()
				a := outbox.Addition{Message: delivery.Message{ID: ce.ID(), Type: ce.Type()}, Body: bridge.MarshalEvent(ce)}
				wait := o.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(outbox.Batch{Add: []outbox.Addition{a}}) })
				must(t, wait())
			}
			for n := range 12 {
				time.Sleep(apart)
				ids = append(ids, fmt.Sprintf("E%02d", 12-n)) // the oldest comes first, whatever its id
				add(changeAt(t, ids[n], "vm-0", imds.Scheduled, time.Now()))
				ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{}, imds.Observer{Name: "vm-0"}, time.Now())
				must(t, err)
				add(ce)
			}
			time.Sleep(time.Minute)
			for n := 1; n <= 14; n++ {
				got, more, err := bridge.RecentHistory(o, bridge.Period{}, n, time.Now())
				var shown []string
				for _, h := range got {
					shown = append(shown, h.Event)
				}
				if want := ids[max(0, 12-n):]; err != nil || !slices.Equal(shown, want) || more != (n < 12) {
					t.Errorf("%s: of 12, the newest %d are %v, and that there are more is %v: %v", claim, n, shown, more, err)
				}
			}
			if all, err := bridge.History(o, bridge.Period{}); err != nil || len(all) != 12 {
				t.Errorf("%s: the whole history has %d events, want 12: %v", claim, len(all), err)
			}
		})
	}
}
