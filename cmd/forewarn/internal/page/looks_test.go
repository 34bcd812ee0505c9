package page

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/statustest"
	"forewarn/cmd/forewarn/internal/wording"
)

// A time is shown in the configured zone and in UTC, with its date unless it is today.
func TestPageTimes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		zone *time.Location
		at   time.Time
		want string
	}{
		{time.UTC, now.Add(10 * time.Minute), "04:10:00 UTC"},
		{berlin, now.Add(10 * time.Minute), "05:10:00 CET (04:10:00 UTC)"},
		{berlin, now.Add(20 * time.Hour), "Sun 22 Nov, 01:00:00 CET (00:00:00 UTC)"},
		{berlin, now.AddDate(0, -5, 0), "Sun 21 Jun, 06:00:00 CEST (04:00:00 UTC)"},
		{time.UTC, now.AddDate(1, 0, 0), "21 Nov 2027, 04:00:00 UTC"},
		{time.UTC, time.Time{}, ""},
	} {
		if got := (pageWriter{now: now, zone: tt.zone}).moment(tt.at); got.Text != tt.want {
			t.Errorf("%v in %v reads %q, want %q", tt.at, tt.zone, got.Text, tt.want)
		}
	}
}

// This VM comes first among the VMs of an event, so that it is never left out of a shortened list.
func TestPageNamesThisVMFirst(t *testing.T) {
	f := calmFacts(time.Now())
	var vms []string
	for i := range wording.ShownVMs + 5 {
		vms = append(vms, fmt.Sprint("vm-", i))
	}
	f.Status.Events[0].Event = statustest.Event(statustest.EventID("reboot"), "Reboot", "Platform", "",
		f.Status.Events[0].NotBefore, -1, append(vms, "vm-db-1")...)
	if text := shown(t, f); !strings.Contains(text, "VMs vm-db-1 (this VM) vm-0 vm-1 ") || !strings.Contains(text,
		"vm-18 and 6 more") {
		t.Errorf("the page says:\n%s\nwant this VM before the others, and how many are left out", text)
	}
}

// An event that a rule will approve starts by itself: its time is the latest, and the page says what is waited for.
func TestPageSaysWhichEventsStartByThemselves(t *testing.T) {
	f := calmFacts(time.Now())
	e := &f.Status.Events[0]
	e.Approval = `rule "drain first": it waits for sink "drain"`
	text := shown(t, f)
	if !strings.Contains(text, " at the earliest ") || !strings.Contains(text, "Not approved: rule ") || strings.Contains(text, "itself") {
		t.Errorf("of an event that no rule will approve the page says:\n%s", text)
	}
	e.Rules = []cloudevent.Rule{{Name: `rule "drain first"`, After: []string{"audit", "drain"}}}
	text = shown(t, f)
	for _, want := range []string{
		" at the latest ", `It starts by itself once audit and drain have finished (rule "drain first"), `, "Not approved yet: rule ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("of an event that a rule will approve the page says:\n%s\nwant %q", text, want)
		}
	}
}

// Of an event whose time has passed, the page doesn't say that it begins then at the latest, or is held back until then.
func TestPageSaysThatAnEventIsDue(t *testing.T) {
	now := time.Now()
	f := calmFacts(now)
	e := &f.Status.Events[0]
	e.NotBefore = now.Add(-time.Minute)
	e.Event = statustest.Event(statustest.EventID("reboot"), "Reboot", "User", "", e.NotBefore, -1, "vm-db-1")
	e.Rules = []cloudevent.Rule{{Name: "rule 1", After: []string{"drain"}}}
	text := shown(t, f)
	for _, want := range []string{"due now since ", "You can It is due and may begin at any time. To start it now, run on vm-db-1: "} {
		if !strings.Contains(text, want) {
			t.Errorf("the page says:\n%s\nwant %q", text, want)
		}
	}
	for _, phrase := range []string{"at the latest", "at the earliest", "is holding"} {
		if strings.Contains(text, phrase) {
			t.Errorf("the page says %q:\n%s", phrase, text)
		}
	}
}

// The result of an approval is shown with the event, or the reason why there is none yet.
func TestPageShowsApprovals(t *testing.T) {
	f := calmFacts(time.Now())
	f.Status.Events[0].Approval = "it waits for ops-chat"
	if text := shown(t, f); !strings.Contains(text, "Approval Not approved: it waits for ops-chat.") {
		t.Errorf("of an event that waits for its approval the page says:\n%s", text)
	}
	f.Status.Events[0].Asked = &cloudevent.Asked{By: "rule 1", Time: time.Now(), Answered: true}
	text := shown(t, f)
	for _, want := range []string{" at the latest ", "It may begin at any time: rule 1 asked Azure at ", "to start it, and Azure agreed. "} {
		if !strings.Contains(text, want) {
			t.Errorf("of an event that was approved the page says:\n%s\nwant %q", text, want)
		}
	}
	if strings.Contains(text, "forewarn approve") {
		t.Errorf("of an event that was approved the page says how to approve it:\n%s", text)
	}
}

// Bars of one type never overlap, however many events there were. All are inside the drawing, and only the newest are
// drawn.
func TestTimelineBarsDoNotOverlap(t *testing.T) {
	now := time.Now()
	var f pageFacts
	for i := range timelineBars + 30 {
		ago := 29*24*time.Hour - time.Duration(i)*3*time.Hour
		f.Histories = append(f.Histories,
			sampleHistory(now, fmt.Sprint(i), "Reboot", ago, 15*time.Minute, time.Duration(i%40)*time.Hour+16*time.Minute,
				cloudevent.OutcomeCompleted, "vm-0"))
	}
	v := pageWriter{now: now, zone: time.UTC}.timeline(f)
	if len(v.Rows) != 1 || len(v.Rows[0].Bars) != timelineBars || v.Older != "30 older events are" {
		t.Fatalf("there are %d rows and %q left out, want 1 row of %d bars and 30 older events", len(v.Rows), v.Older,
			timelineBars)
	}
	share := func(s string) float64 {
		x, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	ends := map[int]float64{}
	for i, b := range v.Rows[0].Bars {
		from, start, to := share(b.From), share(b.Start), share(b.To)
		if from < 0 || start < from || to < start || to > 100 || b.Y > v.Axis {
			t.Errorf("bar %d goes from %v over %v to %v at %d of %d", i, from, start, to, b.Y, v.Axis)
		}
		if end, ok := ends[b.Y]; ok && from < end+minBar-0.02 {
			t.Errorf("bar %d begins at %v, where another one in its lane ends at %v", i, from, end)
		}
		ends[b.Y] = to
	}
}

// Text and bars have the contrast that WCAG 2.2 requires for level AA, in both themes.
func TestPageContrast(t *testing.T) {
	css, err := pageFiles.ReadFile("assets/page.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(string(css), -1)
	if len(blocks) != 2 {
		t.Fatalf("page.css has %d sets of colours, want a light and a dark one", len(blocks))
	}
	for i, theme := range []string{"light", "dark"} {
		colours := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllStringSubmatch(blocks[i][1], -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		ratio := func(a, b string) float64 {
			x, y := colours[a], colours[b]
			if colours[a] == 0 || colours[b] == 0 {
				t.Fatalf("%s: there is no colour %s or %s", theme, a, b)
			}
			return (max(x, y) + 0.05) / (min(x, y) + 0.05)
		}
		for _, text := range []string{"text", "quiet", "link", "alarm", "warn", "good", "reboot", "redeploy", "freeze",
			"preempt", "terminate", "other"} {
			for _, ground := range []string{"ground", "card", "alarm-ground"} {
				if r := ratio(text, ground); r < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f, want at minBar 4.5", theme, text, ground, r)
				}
			}
		}
		if r := ratio("focus", "ground"); r < 3 {
			t.Errorf("%s: the focus has a contrast of %.2f, want at minBar 3", theme, r)
		}
	}
	if n := strings.Count(string(css), "#"); n > strings.Count(blocks[0][1]+blocks[1][1], "#")+strings.Count(string(css),
		"#main")+strings.Count(string(css), "#live")+strings.Count(string(css), "#summary") {
		t.Errorf("page.css has a colour that is in neither set, so its contrast is not held")
	}
}

// luminance is the relative luminance of a colour.
func luminance(t *testing.T, hex string) float64 {
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	part := func(shift uint) float64 {
		c := float64(n>>shift&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}

// The card of an event says which sinks have its latest change, which are still pending and which never will. It links
// to this VM in Azure's portal, unless the event is another VM's.
func TestPageShowsWhoWasNotifiedOfAnEvent(t *testing.T) {
	now := time.Now()
	f := sampleFacts(now)
	for i := range f.Histories {
		if changes := f.Histories[i].Changes; f.Histories[i].Event == statustest.EventID("reboot") {
			changes[len(changes)-1].Deliveries = []bridge.HistoryDelivery{
				{Route: "audit", State: outbox.StateAccepted}, {Route: "ops-chat", State: outbox.StateSuperseded},
				{Route: "mail", State: outbox.StatePending}, {Route: "runbook", State: outbox.StateDead},
			}
		}
	}
	if text := shown(t, f); !strings.Contains(text, "Delivered to audit, ops-chat; pending: mail; dead letter: runbook") {
		t.Errorf("the card does not say who was told: %s", text)
	}
	_, h := pageOf(func() pageFacts { return f })
	links := strings.Count(visit(t, h, "/").Body.String(), `<a href="https://portal.azure.com/`)
	if links != 1 {
		t.Errorf("the page has %d links to the portal, want one, in the card of this VM's reboot", links)
	}
}

// A bridge's page says in its timeline what becomes of its own VM, a relay's what becomes of all VMs of the event.
func TestTimelineOfARelayIsAboutAllVMsOfAnEvent(t *testing.T) {
	now, vm := time.Now(), statustest.Observer.Name
	history := func(begun, over time.Duration, vms ...string) bridge.EventHistory {
		return sampleHistory(now, fmt.Sprint(begun, over, vms), "Reboot", time.Hour, begun, over, cloudevent.OutcomeCompleted, vms...)
	}
	for _, tt := range []struct {
		history        bridge.EventHistory
		here, onARelay string // what it begins with
	}{
		{history(0, 0, vm, "vm-db-9"), vm + " will reboot", vm + " and vm-db-9 will reboot"},
		{history(time.Minute, 0, vm, "vm-db-9"), vm + ": reboot has begun", vm + " and vm-db-9: reboot has begun"},
		{history(time.Minute, 2*time.Minute, vm, "vm-db-9"), vm + ": reboot is over", vm + " and vm-db-9: reboot is over"},
		{history(time.Minute, 2*time.Minute, "a", "b", "c", vm), vm + ": reboot is over", "4 VMs (a, b, c …): reboot is over"},
		{history(0, 0, vm), vm + " will reboot", vm + " will reboot"},
	} {
		for _, isRelay := range []bool{false, true} {
			f, want := pageFacts{Histories: []bridge.EventHistory{tt.history}}, tt.here
			if isRelay {
				f.Status.Relay, want = &bridge.RelayStatus{}, tt.onARelay
			}
			bars := pageWriter{now: now, zone: time.UTC}.timeline(f).Histories
			if len(bars) != 1 || !strings.HasPrefix(bars[0].Headline, want) {
				t.Errorf("on a relay %t: %+v, want %q", isRelay, bars, want)
			}
		}
	}
}
