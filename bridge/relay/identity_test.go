package relay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// These tests are about publishers that lie. Each set may publish under its own subjects only; here that is web, which
// tries to speak for db.

// ofSet returns a VM of a scale set.
func ofSet(set, vm string) imds.Observer {
	return imds.Observer{Name: vm, VMID: "id-" + vm, SubscriptionID: "sub", ResourceGroup: "rg", ScaleSet: set}
}

// sayAs returns the CloudEvent of a change, as a VM says it that claims to have seen it then.
func (a azure) sayAs(t *testing.T, kind imds.ChangeKind, by imds.Observer, at time.Time) event.Event {
	t.Helper()
	status := imds.StatusScheduled
	if kind == imds.Started || kind == imds.Vanished {
		status = imds.StatusStarted
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: kind, Event: a.event(status)}, cloudevent.Circumstances{Observer: by, Time: at})
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// publishAs publishes a CloudEvent on a subject, whatever it says.
func (s *stage) publishAs(subject string, ce event.Event) {
	s.Helper()
	body, err := ce.MarshalJSON()
	if err != nil {
		s.Fatal(err)
	}
	s.publishRaw(subject, nats.Header{"Content-Type": {"application/cloudevents+json"}}, body)
}

// refused returns how many dead letters there are with the reason subject; all of them are of no sink.
func (s *stage) refused(r *relay.Relay) (n int) {
	s.Helper()
	list, _, err := r.List(s.Context(), relay.Selection{State: "dead"}, 1000)
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range list {
		if e.Sink != "-" || e.Reason != delivery.ReasonSubject || !strings.Contains(e.Error, "it is not on its own subject") {
			s.Errorf("a dead letter of %q, reason %s: %s", e.Sink, e.Reason, e.Error)
			continue
		}
		n++
	}
	return n
}

// What a set says about an event of another set, whose id it knows, is about an event of its own: it ends nothing of
// the other's, keeps nothing of it from people, and is no part of its history.
func TestASetEndsNoEventOfAnother(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateSend, delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Late = late }))
				defer stop()
				a := eventNo(1)
				a.vm = "db_0"
				future := time.Date(2126, 1, 1, 0, 0, 0, 0, time.UTC)
				scheduled := a.sayAs(t, imds.Scheduled, ofSet("db", "db_0"), time.Now())
				forged := a.sayAs(t, imds.Vanished, ofSet("web", "web_0"), future)
				started := a.sayAs(t, imds.Started, ofSet("db", "db_0"), time.Now())
				s.publishAs("forewarn.events.sub.rg.db.Reboot.scheduled."+scheduled.ID(), scheduled)
				pause(5 * time.Second)
				s.publishAs("forewarn.events.sub.rg.web.Reboot.vanished."+forged.ID(), forged)
				pause(5 * time.Second)
				s.publishAs("forewarn.events.sub.rg.db.Reboot.started."+started.ID(), started)
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), scheduled, forged, started)
				if open := r.Status().Events; len(open) != 1 || open[0].Known.ID != a.id || open[0].Set != "db" {
					t.Errorf("open are %+v, want that of db", open)
				}
				histories, _ := r.Histories(bridge.Period{Event: a.id})
				var changes []int
				for _, h := range histories {
					changes = append(changes, len(h.Changes))
				}
				if slices.Sort(changes); !slices.Equal(changes, []int{1, 2}) {
					t.Errorf("the histories have %v changes, want one of web's, and two of db's", changes)
				}
				list, _, err := r.List(t.Context(), relay.Selection{Event: a.id}, 10)
				if err != nil || len(list) > 0 {
					t.Errorf("listed are %+v, %v; want nothing", list, err)
				}
			})
		})
	}
}

// A CloudEvent on the subject of another set than it comes from is a dead letter of no sink: nobody is told, it is no
// part of the status and the history, and the true one is told when it comes.
func TestACloudEventOnAnothersSubjectIsADeadLetter(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		defer stop()
		a := eventNo(1)
		a.vm = "db_0"
		ce := a.sayAs(t, imds.Started, ofSet("db", "db_0"), time.Now())
		about, err := cloudevent.WrapBridge(cloudevent.SinkBlocked, map[string]any{"sink": "x"}, ofSet("db", "db_0"), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		silent, err := cloudevent.WrapBridge(cloudevent.ObserverSilent, map[string]any{"vms": []string{"db_0"}},
			ofSet("web", "web_0"), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, on := range []string{
			"sub.rg.web", "sub.rg.web.Reboot.started." + ce.ID(), "sub.other.db.x", "other.rg.db.x", "sub.rg.d.b", "relay.x",
			"sub.rg", "sub",
		} {
			s.publishAs("forewarn.events."+on, ce)
		}
		s.publishAs("forewarn.bridge.sub.rg.web.web_0.sink_blocked.1", about)
		s.publishAs("forewarn.bridge.sub.rg.db.db_1.sink_blocked.1", about)
		s.publishAs("forewarn.bridge.relay.rg.web.web_0.1", about)
		s.publishAs("forewarn.bridge.sub.rg.web.web_0.observer_silent.1", silent)
		pause(time.Minute)
		wantIDs(t, "told of lies", sink.all())
		if n := s.refused(r); n != 12 {
			t.Errorf("%d are dead letters for their subject, want all 12", n)
		}
		histories, _ := r.Histories(bridge.Period{})
		if st := r.Status(); len(st.Events) > 0 || len(st.Relay.VMs) > 0 || len(histories) > 0 {
			t.Errorf("they count: events %v, VMs %v, histories %v", st.Events, st.Relay.VMs, histories)
		}
		s.publishAs("forewarn.events.sub.rg.db.Reboot.started."+ce.ID(), ce)
		s.publishAs("forewarn.bridge.sub.rg.db.db_0.sink_blocked.1", about)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), ce, about)
		if vms := r.Status().Relay.VMs; len(vms) != 1 || vms[0].Name != "db_0" || vms[0].Set != "db" {
			t.Errorf("the VMs are %+v, want db_0 of db", vms)
		}
	})
}

// Nothing that another set publishes in the name of a VM keeps it alive once it is silent, nor explains its silence.
func TestNobodyKeepsAnothersVMAlive(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		ops := newEar()
		_, stop := s.run(with(route("ops", ops), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }))
		defer stop()
		beat := func(subject string, by imds.Observer) {
			ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{"interval": 60}, by, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s.publishAs("forewarn.heartbeat."+subject, ce)
		}
		beat("sub.rg.db.db_0", ofSet("db", "db_0"))
		a := eventNo(1)
		a.vm = "db_0"
		for range 10 {
			beat("sub.rg.web.db_0", ofSet("db", "db_0"))
			beat("sub.rg.web.web_0", ofSet("db", "db_0"))
			beat("sub.rg.web.db_0", ofSet("web", "db_0")) // a VM of its own, with the same name
			started, err := cloudevent.WrapBridge(cloudevent.BridgeStarted, nil, ofSet("web", "db_0"), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s.publishAs("forewarn.bridge.sub.rg.web.db_0.started.1", started)
			reboot := a.sayAs(t, imds.Started, ofSet("db", "db_0"), time.Now())
			reboot.SetSource("https://management.azure.com/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Compute/" +
				"virtualMachineScaleSets/web")
			s.publishAs("forewarn.events.sub.rg.web.Reboot.started.1", reboot)
			pause(time.Minute)
		}
		if got, want := ops.news(), []string{"silent 1: db_0"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}

// Subjects of one's own can't be checked: what comes on them is told as it is.
func TestSubjectsOfOnesOwnAreTold(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.provision(relay.Retention{Subjects: []string{"azure.>", "forewarn.mine.>"}})
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		defer stop()
		one, two := eventNo(1).say(t, imds.Scheduled, "vm-1"), eventNo(2).say(t, imds.Scheduled, "vm-1")
		s.publishAs("azure.maintenance."+one.ID(), one)
		s.publishAs("forewarn.mine."+two.ID(), two)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), one, two)
	})
}
