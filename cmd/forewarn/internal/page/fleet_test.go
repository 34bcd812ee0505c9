package page

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chromedp/chromedp"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
)

// A fakeRelay is a relay of 1,000 VMs in 20 sets.
type fakeRelay struct {
	status    bridge.Status
	histories []bridge.EventHistory
	dead      []relay.Entry
}

func (r *fakeRelay) Status() bridge.Status { return r.status }
func (r *fakeRelay) Reasons() []string     { return r.status.Reasons }
func (r *fakeRelay) Alive() error          { return nil }
func (r *fakeRelay) Histories(context.Context, bridge.Period) ([]bridge.EventHistory, bool, error) {
	return r.histories, false, nil
}
func (r *fakeRelay) List(context.Context, relay.Selection, int) ([]relay.Entry, int, error) {
	return r.dead, 0, nil
}

func newFakeRelay() *fakeRelay {
	now := time.Now().UTC()
	r := &fakeRelay{status: bridge.Status{
		Version: "test", StartedAt: now.Add(-50 * time.Hour), Ready: true,
		Settings: bridge.SettingsInfo{Hash: "5f0b1c2d", LoadedAt: now},
		Relay: &bridge.RelayStatus{Name: "relay-1", Stream: "FOREWARN",
			Relays: []bridge.RelayPeer{{Name: "relay-1"}, {Name: "relay-2"}}},
		Sinks: []bridge.SinkStatus{{Name: "ops-chat", Kind: "slack", State: bridge.SinkOK, Delivered: 4711, LastAccepted: now},
			{Name: "ops-mail", Kind: "email", State: bridge.SinkStandby, Relay: "relay-2"}},
	}}
	for set := range 20 {
		name := fmt.Sprintf("web-%02d", set)
		first := len(r.status.Relay.VMs)
		for n := range 50 {
			r.status.Relay.VMs = append(r.status.Relay.VMs, bridge.FleetVM{
				Name: fmt.Sprintf("%s_%d", name, n), Set: name, Group: "rg-prod", LastHeard: now.Add(-time.Duration(n) * time.Second),
				Silent: set == 3 && n == 7, Stopped: set == 4 && n == 1,
			})
		}
		for n := range 5 {
			e, h := fakeEvent(now, name, set, n)
			if r.histories = append(r.histories, h); n == 0 && set < 3 {
				r.status.Events = append(r.status.Events,
					bridge.EventStatus{Event: e.Raw, Known: e, NotBefore: e.NotBefore, Set: name, Group: "rg-prod"})
				r.status.Relay.VMs[first].Events, r.status.Relay.VMs[first].NotBefore = []string{e.ID}, e.NotBefore
			}
		}
	}
	slices.SortStableFunc(r.histories, func(a, b bridge.EventHistory) int {
		return a.Changes[0].Time.Compare(b.Changes[0].Time)
	})
	need := func(v bridge.FleetVM) int { return 2*len(v.Events) + boolToInt(v.Silent) + boolToInt(v.Stopped) }
	slices.SortStableFunc(r.status.Relay.VMs, func(a, b bridge.FleetVM) int { return need(b) - need(a) })
	r.status.Outbox.DeadLetters = 1
	r.dead = []relay.Entry{{
		Key: "ops-chat/602D9444-D2CD-49C7-8624-8643E7171297-scheduled", Sink: "ops-chat", State: outbox.StateDead, Reason: delivery.ReasonRejected, DeadSince: now,
		Item: delivery.Item{Message: &delivery.Message{ID: "x", Group: "602D9444", AzureType: "Reboot", Change: "scheduled"}},
	}}
	return r
}

// fakeEvent is the event of that number of a set; all but the first are over.
func fakeEvent(now time.Time, set string, nth, n int) (imds.Event, bridge.EventHistory) {
	id := fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", nth, n)
	e, err := imds.UnmarshalEvent(fmt.Appendf(nil, `{"EventId":%q,"EventType":%q,"Resources":["%s_%d"],`+
		`"EventStatus":"Scheduled","NotBefore":%q,"EventSource":"Platform"}`, id,
		[]string{"Reboot", "Freeze", "Redeploy"}[n%3], set, n, now.Add(time.Hour).Format("Mon, 02 Jan 2006 15:04:05 GMT")))
	if err != nil {
		panic(err) // the test is wrong
	}
	at := now.AddDate(0, 0, -5*n).Add(-time.Duration(nth) * time.Hour)
	h := bridge.EventHistory{Event: id, Type: e.Type, Source: e.Source, Resources: e.Resources, Set: set, Group: "rg-prod",
		Changes: []bridge.HistoryChange{{ID: id + "-scheduled", Change: imds.Scheduled, Time: at}}}
	if n > 0 {
		h.Changes = append(h.Changes, bridge.HistoryChange{ID: id + "-started", Change: imds.Started, Time: at.Add(time.Hour)},
			bridge.HistoryChange{ID: id + "-vanished", Change: imds.Vanished, Time: at.Add(2 * time.Hour)})
	}
	return e, h
}

func serveFleet(t *testing.T) (*fakeRelay, string) {
	t.Helper()
	r := newFakeRelay()
	s := httptest.NewServer(RelayHandler(r, NewMetrics().Handler(r.Status), "127.0.0.1"))
	t.Cleanup(s.Close)
	return r, s.URL
}

func body(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return string(text)
}

// A page with a set or group in its address shows only its VMs, events and timeline, whose rows are sets. So do its
// updates.
func TestFleetPageShowsOneSet(t *testing.T) {
	t.Parallel()
	_, url := serveFleet(t)
	all, one := body(t, url), body(t, url+"/?set=WEB-03")
	for _, tt := range []struct {
		text     string
		all, one bool
	}{
		{">web-03_7 <", true, true}, {">web-04_1 <", true, false}, {">silent<", true, true}, {">stopped<", true, false},
		{`<a href="/?set=web-03">web-03</a>`, true, true}, {`<a href="/?group=rg-prod">rg-prod</a>`, true, true},
		{"Only set WEB-03.", false, true}, {">web-03, 5 events<", true, true}, {">web-00, 5 events<", true, false},
		{"ops-chat/602D9444-D2CD-49C7-8624-8643E7171297-scheduled", true, true}, {"1000 VMs", true, false}, {"50 VMs", false, true},
		{`id="event-00000000-0000-4000-8000-000000000000"`, true, false},
	} {
		if got := strings.Contains(all, tt.text); got != tt.all {
			t.Errorf("the whole page has %q: %v, want %v", tt.text, got, tt.all)
		}
		if got := strings.Contains(one, tt.text); got != tt.one {
			t.Errorf("the page of one set has %q: %v, want %v", tt.text, got, tt.one)
		}
	}
	if none := body(t, url+"/?group=other"); strings.Contains(none, "web-") {
		t.Error("the page of a group that there isn't shows VMs")
	}
	if hostile := body(t, url+"/?set=%3Cscript%3E"); strings.Contains(hostile, "set <script>") {
		t.Error("what stands in the address becomes part of the page")
	}
	resp, err := http.Get(url + "/events?set=web-03")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := make([]byte, 20_000)
	if _, err := io.ReadFull(resp.Body, begin); err != nil {
		t.Fatal(err)
	}
	if text := string(begin); !strings.Contains(text, "web-03_") || strings.Contains(text, "web-04_") {
		t.Errorf("the news of one set's page: %.500s", text)
	}
}

// Of many open events the page shows ten as cards, and the others in a table by set and type, of at most 50 rows.
func TestFleetPageShowsManyEventsInATable(t *testing.T) {
	t.Parallel()
	r := newFakeRelay()
	r.status.Events = nil
	for set := range 60 {
		for n := range 20 {
			e, _ := fakeEvent(time.Now().UTC(), fmt.Sprintf("web-%02d", set), set, n)
			r.status.Events = append(r.status.Events,
				bridge.EventStatus{Event: e.Raw, Known: e, NotBefore: e.NotBefore, Set: fmt.Sprintf("web-%02d", set), Group: "rg-prod"})
		}
	}
	h := RelayHandler(r, http.NotFoundHandler(), "")
	text := visit(t, h, "/").Body.String()
	if cards, rows := strings.Count(text, `<article class="event`), strings.Count(text, `data-label="The next at"`); cards != 10 || rows != 50 {
		t.Errorf("the page has %d cards and %d rows, want 10 and 50", cards, rows)
	}
	for _, want := range []string{
		`<a href="/?group=rg-prod&amp;set=web-07">web-07</a></td><td role="cell" data-label="Events">`, "more: <code>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// However many ask for parts of a large fleet, the relay is asked once for all of them.
func TestFleetPageAsksTheRelayOnceForAllFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowRelay{fakeRelay: newFakeRelay()}
		h := RelayHandler(slow, http.NotFoundHandler(), "")
		var all sync.WaitGroup
		for n := range 60 {
			all.Go(func() { visit(t, h, fmt.Sprintf("/?set=web-%02d", n)) })
		}
		all.Wait()
		if n := slow.asked.Load(); n != 1 {
			t.Errorf("the relay was asked %d times, want once", n)
		}
		time.Sleep(time.Second)
	})
}

// A health check doesn't wait for a relay to look at all VMs: 100,000 of them would take longer than Kubernetes waits.
func TestReadinessDoesNotLookAtTheFleet(t *testing.T) {
	slow := &slowRelay{fakeRelay: newFakeRelay()}
	h := RelayHandler(slow, http.NotFoundHandler(), "")
	if w := visit(t, h, "/readyz"); w.Code != http.StatusOK {
		t.Errorf("a relay that is ready answers %d: %s", w.Code, w.Body)
	}
	slow.status.Reasons = []string{"the sink ops-chat is blocked"}
	h = RelayHandler(slow, http.NotFoundHandler(), "")
	if w := visit(t, h, "/readyz"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "the sink ops-chat is blocked\n" {
		t.Errorf("one that isn't answers %d: %s", w.Code, w.Body)
	}
	if n := slow.asked.Load(); n != 0 {
		t.Errorf("the relay was asked for all that it knows %d times", n)
	}
}

// A slowRelay takes a while to say how it is.
type slowRelay struct {
	*fakeRelay
	asked atomic.Int32
}

func (r *slowRelay) Status() bridge.Status {
	r.asked.Add(1)
	time.Sleep(300 * time.Millisecond)
	return r.fakeRelay.Status()
}

// The metrics of a relay have the labels set and vm, for at most 1,000 VMs. They disappear with the VM.
func TestFleetMetricsHaveSetAndVM(t *testing.T) {
	t.Parallel()
	r, url := serveFleet(t)
	text := body(t, url+"/metrics")
	for _, want := range []string{
		`forewarn_fleet_vms{set="web-03"} 50`, `forewarn_fleet_vms_silent{set="web-03"} 1`,
		`forewarn_fleet_vms_silent{set="web-04"} 0`,
		`forewarn_fleet_vm_last_heard_timestamp_seconds{set="web-03",vm="web-03_7"} `,
		`forewarn_fleet_vm_not_before_timestamp_seconds{set="web-00",vm="web-00_0"} `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for n := range 500 {
		r.status.Relay.VMs = append(r.status.Relay.VMs, bridge.FleetVM{Name: fmt.Sprint("more_", n), Set: fmt.Sprint("more-", n)})
	}
	series := string(exposition(statusFamilies(r.status)))
	if n := strings.Count(series, "forewarn_fleet_vm_last_heard_timestamp_seconds{"); n != 1000 {
		t.Errorf("%d VMs have a series, want 1,000 of 1,500", n)
	}
	r.status.Relay.VMs = nil
	if text := string(exposition(statusFamilies(r.status))); strings.Contains(text, "web-03") {
		t.Error("VMs that are forgotten have series")
	}
}

// A page of 1,000 VMs fits a phone and a desktop.
func TestFleetPageFitsTheScreen(t *testing.T) {
	_, url := serveFleet(t)
	b := browse(t)
	for name, width := range map[string]int64{"phone": 390, "desktop": 1440} {
		for what, query := range map[string]string{"all": "/", "one": "/?set=web-03"} {
			b.do(chromedp.Navigate(url + query))
			b.until("the VMs", `document.querySelector('#vms table') !== null`)
			b.shot("fleet-"+name+"-"+what, width, "light")
			overflow := ask[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`)
			if overflow > 0 {
				t.Errorf("%s, %s: the page is %d px wider than the screen", name, what, overflow)
			}
		}
	}
}
