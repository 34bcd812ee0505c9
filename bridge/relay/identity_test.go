package relay_test

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	"forewarn/bridge/systemtest"
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
				histories, _, _ := r.Histories(t.Context(), bridge.Period{Event: a.id})
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
		histories, _, _ := r.Histories(t.Context(), bridge.Period{})
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

// The clock of a VM decides nothing: if it is hours ahead, what the others say later is still told, and the history has
// no time at which nobody could have known.
func TestAClockThatIsAheadHidesNothing(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateLatest, delivery.LateDrop} {
		t.Run(string(late), func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Late = late }))
				defer stop()
				a := eventNo(1)
				end := a.sayAs(t, imds.Vanished, ofSet("db", "db_0"), time.Now().Add(2*time.Hour))
				s.publish(end)
				pause(time.Minute)
				back := a.sayAs(t, imds.Scheduled, ofSet("db", "db_1"), time.Now())
				s.publish(back)
				pause(time.Minute)
				wantIDs(t, "told", sink.all(), end, back)
				if open := r.Status().Events; len(open) != 1 {
					t.Errorf("%d events are open, want the one that is back", len(open))
				}
				histories, _, _ := r.Histories(t.Context(), bridge.Period{})
				for _, c := range histories[0].Changes {
					if c.Time.After(time.Now()) {
						t.Errorf("%s was seen at %v; it is %v now", c.ID, c.Time, time.Now())
					}
				}
			})
		})
	}
}

// A CloudEvent with a time that can't be is a dead letter: the history and the status can be read, whatever it holds.
func TestATimeThatCantBeIsADeadLetter(t *testing.T) {
	const never = "9999-12-31T23:59:59-12:00"
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		defer stop()
		a := eventNo(1)
		good := a.sayAs(t, imds.Started, ofSet("db", "db_0"), time.Now())
		body, err := good.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var ce map[string]any
		bad := []string{"time"}
		for _, name := range []string{"notBefore", "announced", "begun", "notEarlierThan", "back", "asked", "rules"} {
			bad = append(bad, "data."+name)
		}
		values := map[string]any{ // instead of never
			"asked": map[string]any{"by": "jane", "time": never},
			"rules": []any{map[string]any{"name": "rule 1", "from": never}},
		}
		for n, name := range bad {
			if err := json.Unmarshal(body, &ce); err != nil {
				t.Fatal(err)
			}
			of := ce
			if inData, ok := strings.CutPrefix(name, "data."); ok {
				of, name = ce["data"].(map[string]any), inData
			}
			of[name] = never
			if value, ok := values[name]; ok {
				of[name] = value
			}
			changed, err := json.Marshal(ce)
			if err != nil {
				t.Fatal(err)
			}
			s.publishRaw(fmt.Sprint("forewarn.events.sub.rg.db.", n), nats.Header{"Content-Type": {"application/cloudevents+json"}},
				changed)
		}
		s.publish(good)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), good)
		histories, _, _ := r.Histories(t.Context(), bridge.Period{})
		for what, v := range map[string]any{"history": histories, "status": r.Status()} {
			if _, err := json.Marshal(v); err != nil {
				t.Errorf("the %s can't be read: %v", what, err)
			}
		}
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 100)
		if err != nil || len(list) != len(bad) {
			t.Errorf("%d dead letters, %v; want %d", len(list), err, len(bad))
		}
	})
}

// Headers have their names in any case, as other clients write them. One that is there twice is a dead letter: no two
// readers would agree on it.
func TestHeadersMayBeInAnyCase(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		defer stop()
		one := eventNo(1).say(t, imds.Scheduled, "vm-1")
		body, err := one.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		s.publishRaw(ownSubject(one), nats.Header{"content-type": {"application/cloudevents+json"}}, body)
		binary := nats.Header{"CE-SpecVersion": {"1.0"}, "Ce-Id": {"two"}, "CE-SOURCE": {"/other"},
			"ce-type": {"dev.forewarn.bridge.other"}, "CE-DataContentType": {"text/plain"}}
		s.publishRaw("forewarn.events._._._.2", binary, []byte("x"))
		binary["ce-id"] = []string{"three"}
		s.publishRaw("forewarn.events._._._.3", binary, []byte("x"))
		pause(5 * time.Second)
		if got, want := sink.all(), []string{one.ID(), "two"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10)
		if err != nil || len(list) != 1 || !strings.Contains(list[0].Error, "twice") {
			t.Errorf("dead letters %+v, %v; want the one with two ids", list, err)
		}
	})
}

// A CloudEvent with more attributes than a command could get, or with overlong ones, is a dead letter.
func TestAttributesAreBounded(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		r, stop := s.run(with(route("hook", sink), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelAll }))
		defer stop()
		publish := func(id string, more map[string]string) {
			ce := map[string]any{"specversion": "1.0", "id": id, "type": "dev.forewarn.bridge.other", "source": "/x"}
			for name, value := range more {
				ce[name] = value
			}
			body, err := json.Marshal(ce)
			if err != nil {
				t.Fatal(err)
			}
			s.publishRaw("forewarn.events._._._."+id, nats.Header{"Content-Type": {"application/cloudevents+json"}}, body)
		}
		many := map[string]string{}
		for n := range 50_000 {
			many[fmt.Sprint("a", n)] = "x"
		}
		publish("many", many)
		publish("name", map[string]string{strings.Repeat("a", 10_000): "x"})
		publish("value", map[string]string{"a": strings.Repeat("x", 10_000)})
		publish("fits", map[string]string{"a": strings.Repeat("x", 4_000), strings.Repeat("b", 60): "x"})
		pause(5 * time.Second)
		if got := sink.all(); !slices.Equal(got, []string{"fits"}) {
			t.Errorf("told %q, want what fits", got)
		}
		if list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10); err != nil || len(list) != 3 {
			t.Errorf("dead letters %+v, %v; want three", list, err)
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

// A set that tells of more events than its share loses its oldest, and the events of other sets stay. The status says it.
func TestASetFillsItsShareOfEventsOnly(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run()
		defer stop()
		of := func(n int, set string) event.Event {
			a := eventNo(n)
			a.vm = set + "_0"
			return a.sayAs(t, imds.Scheduled, ofSet(set, set+"_0"), time.Now())
		}
		first := of(1, "db")
		s.publish(first)
		const share, more = 2_000, 10
		for n := range share + more {
			s.publish(of(1000+n, "web"))
		}
		pause(time.Minute)
		open := r.Status().Events
		ofWeb := 0
		for _, e := range open {
			if e.Set == "web" {
				ofWeb++
			}
		}
		if ofWeb > share || ofWeb < share/2 || len(open) != ofWeb+1 || open[0].Known.ID != first.Subject() {
			t.Errorf("%d events of web are open, and %d in all; want at most %d, and that of db", ofWeb, len(open), share)
		}
		if last := open[len(open)-1].Known.ID; last != of(1000+share+more-1, "web").Subject() {
			t.Errorf("the newest that is open is %s", last)
		}
		const want = "the set sub/rg/web has told of more events than a relay keeps"
		if got := r.Status().Warnings; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("the warnings are %q, want one: %s", got, want)
		}
	})
}

// A set that invents VMs without end keeps nobody from hearing that a VM of another set falls silent. The status says
// that not all are watched.
func TestASetFillsItsShareOfVMsOnly(t *testing.T) {
	systemtest.LeftToGate(t)
	onStage(t, func(t *testing.T, s *stage) {
		ops := newEar()
		r, stop := s.run(with(route("ops", ops), func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }))
		defer stop()
		beat := func(set, vm string) {
			ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{"interval": 60}, ofSet(set, vm), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s.publishAs("forewarn.heartbeat.sub.rg."+set+"."+vm, ce)
		}
		const share = 2_000
		for wave := range 3 {
			for n := range share {
				beat("web", fmt.Sprintf("web_%d_%d", wave, n))
			}
			pause(10 * time.Minute)
		}
		news := ops.news()
		told := 0
		for _, one := range news {
			var n int
			fmt.Sscanf(one, "silent %d", &n)
			told += n
		}
		if told > share {
			t.Errorf("%d VMs of web are told as silent, want at most its share of %d: %.100q", told, share, news)
		}
		const want = "the set sub/rg/web has more VMs than a relay watches"
		if got := r.Status().Warnings; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("the warnings are %q, want one: %s", got, want)
		}
		beat("db", "db_0")
		pause(10 * time.Minute)
		if got, want := ops.news(), []string{"silent 1: db_0"}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}

// Nor does a VM count to the group of another one because it says so: what a set says is of its own group.
func TestAVMIsInNoGroupOfAnother(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()))
		ce := eventNo(1).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet("web", "web_0"), time.Now())
		own := ownSubject(ce)
		data := bytes.Replace(ce.Data(), []byte(`"resourceGroup":"rg"`), []byte(`"resourceGroup":"victim"`), 1)
		if err := ce.SetData("application/json", json.RawMessage(data)); err != nil {
			t.Fatal(err)
		}
		s.publishAs(own, ce)
		pause(5 * time.Second)
		st := r.Status()
		if len(st.Events) != 1 || st.Events[0].Group != "" {
			t.Errorf("the events are %+v, want one of no group", st.Events)
		}
		for _, v := range st.Relay.VMs {
			if v.Group != "" || v.Set != "web" && v.Set != "" {
				t.Errorf("the VM %s is one of %q in the group %q, want no group", v.Name, v.Set, v.Group)
			}
		}
		if len(st.Relay.VMs) == 0 {
			t.Error("there is no VM")
		}
		stop()
	})
}

// A CloudEvent of another set with the id of one of db's takes nothing from db: not its dead letter, not what the fallback
// gets, and no replay.
func TestACopiedIDTakesNothingFromItsOwner(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, spare := newRecorder(), newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		fallen := route("spare", spare)
		fallen.Filter.Only.Types = []string{"Freeze"} // so that it hears nothing by itself
		r, stop := s.run(with(route("hook", hook), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "spare", After: time.Hour}
		}), fallen)
		forged := eventNo(1).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet("web", "web_0"), time.Now())
		honest := eventNo(1).in(24*time.Hour).sayAs(t, imds.Scheduled, ofSet("db", "db_0"), time.Now())
		sources := func(when string, got []string) {
			t.Helper()
			if want := []string{forged.Source(), honest.Source()}; !slices.Equal(got, want) {
				t.Errorf("%s: %q, want one of each set", when, got)
			}
		}
		hear := func(to *[]string) func([]delivery.Delivery) (delivery.Answer, error) {
			return func(batch []delivery.Delivery) (delivery.Answer, error) {
				*to = append(*to, batch[0].Event.Source())
				return delivery.Answer{}, nil
			}
		}
		var fellBack, replayed, past []string
		spare.say(hear(&fellBack))
		s.publishAs(ownSubject(forged), forged)
		pause(time.Minute)
		s.publishAs(ownSubject(honest), honest)
		pause(time.Minute)
		sources("the fallback got", fellBack)
		hook.say(hear(&replayed))
		dead := keys(t, r, "hook")
		if key := keyOf("hook", honest); len(dead) != 2 || dead[0] != key || !strings.HasPrefix(dead[1], key+"-") {
			t.Errorf("the dead letters are %q, want %s and one that begins so", dead, key)
		}
		if again, err := r.Replay(t.Context(), dead, "", "alice"); err != nil || len(again) != 2 {
			t.Errorf("Replay = %v, %v", again, err)
		}
		pause(time.Minute)
		sources("replayed", replayed)
		hook.say(hear(&past))
		if part, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Run: "one"}); err != nil || len(part.Replayed) != 2 {
			t.Errorf("ReplayPast = %+v, %v", part, err)
		}
		pause(time.Minute)
		sources("of the past", past)
		stop()
	})
}
