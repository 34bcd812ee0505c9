package cloudevent

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imds"
)

// The id of a change is the event and the change, and how often it was told. The content of an update counts, however
// it was written, and as anybody can compute it.
func TestSameChangeAlwaysHasTheSameID(t *testing.T) {
	raw := `{"EventId":"` + strings.ToLower(idC) + `","EventStatus":"Scheduled","DurationInSeconds":5,` +
		`"NotBefore":"Mon, 11 Apr 2022 22:26:58 GMT","Description":"<a & b>","New":{"b":2,"a":[1.50,true]}}`
	canonical := `{"Description":"<a & b>","DurationInSeconds":5,"EventId":"` + idC + `","EventStatus":"Scheduled",` +
		`"New":{"a":[1.50,true],"b":2},"NotBefore":"2022-04-11T22:26:58Z"}`
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(canonical)))[:8]
	e := azureEvent(t, raw)
	for want, c := range map[string]imds.Change{
		idC + "-scheduled": scheduled(e), idC + "-started": started(e), idC + "-vanished": vanished(e),
		idC + "-updated-" + hash: updated(e, e, "New"),
	} {
		for repeat, suffix := range map[int]string{0: "", 1: "-r2", 2: "-r3", 10: "-r11"} {
			if got := said(t, c, Circumstances{Repeat: repeat}).ID(); got != want+suffix {
				t.Errorf("id of %s told %d times before = %s, want %s", c.Kind, repeat, got, want+suffix)
			}
		}
	}
	for _, same := range []string{
		`{"New":{"a":[1.50,true],"b":2},"DurationInSeconds":5,"Description":"\u003ca \u0026 b\u003e",` +
			`"EventStatus":"Scheduled","NotBefore":"2022-04-12T00:26:58+02:00","EventId":"` + idC + `"}`,
		strings.ReplaceAll(raw, `,"`, " ,\n\""),
		strings.Replace(raw, "Mon", "Fri", 1),
	} {
		if got := azureEvent(t, same).Hash(); got != hash {
			t.Errorf("hash of %s = %s, want %s", same, got, hash)
		}
	}
	for was, is := range map[string]string{
		`<a`: `<A`, `:26:`: `:27:`, `1.50`: `1.5`, `"b":2`: `"b":null`, `,"DurationInSeconds":5`: ``,
	} {
		if other := strings.Replace(raw, was, is, 1); azureEvent(t, other).Hash() == hash {
			t.Errorf("hash of %s is that of other content", other)
		}
	}
}

// An id holds only letters, digits and hyphens, whatever Azure or the host's name hold.
func TestIDsAreTokens(t *testing.T) {
	plain := regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	long := strings.Repeat("x", 300)
	for _, odd := range []string{"a.b", "a/b c", "ü", "🙂", "\x00", "..", "*", ">", "a\u0130b", long, "٣"} {
		e := azureEvent(t, string(imds.CompactJSON(map[string]string{"EventId": odd})))
		for _, c := range []imds.Change{scheduled(e), updated(e, e), started(e), vanished(e)} {
			if id := ChangeID(c); !plain.MatchString(id) {
				t.Errorf("id of %q is %q", odd, id)
			}
		}
		for _, o := range []imds.Observer{{Name: odd}, {VMID: odd}} {
			ce, err := WrapBridge(SinkBlocked, nil, o, commitTime)
			if err != nil || !plain.MatchString(ce.ID()) {
				t.Errorf("id of the bridge on %q is %q, %v", odd, ce.ID(), err)
			}
		}
	}
}

// What is said about the bridge has an id of its VM, what happened and when, to the nanosecond; its source is the VM.
func TestIDAboutTheBridgeHoldsWhoWhatAndWhen(t *testing.T) {
	east := time.FixedZone("", 5*60*60+30*60)
	const what = "-imds-unavailable-20261121T035529123456789Z"
	for _, tt := range []struct {
		who             imds.Observer
		id, source, sub string
	}{
		{web0, web0.VMID + what, "https://management.azure.com" + web0.ResourceID, "web_0"},
		{imds.Observer{Name: "host-0"}, "host-0" + what, "urn:forewarn:host-0", "host-0"},
		{imds.Observer{}, "unknown" + what, "urn:forewarn:unknown", ""},
	} {
		ce, err := WrapBridge(IMDSUnavailable, nil, tt.who, commitTime.In(east))
		if err != nil {
			t.Fatal(err)
		}
		if ce.ID() != tt.id || ce.Source() != tt.source || ce.Subject() != tt.sub || ce.Time() != commitTime {
			t.Errorf("id %s, source %s, subject %q, time %v, want %s, %s, %q, %v",
				ce.ID(), ce.Source(), ce.Subject(), ce.Time(), tt.id, tt.source, tt.sub, commitTime)
		}
	}
	round, _ := WrapBridge(BridgeTest, nil, imds.Observer{}, commitTime.Truncate(time.Second))
	if want := "unknown-test-20261121T035529000000000Z"; round.ID() != want {
		t.Errorf("id at a whole second = %s, want %s", round.ID(), want)
	}
}

// The severity of a change is that of the first rule that fits.
func TestSeverityIsThatOfTheFirstRule(t *testing.T) {
	for _, tt := range []struct {
		kind        imds.ChangeKind
		typ, source string
		duration    int
		want        string
	}{
		{imds.Vanished, "Preempt", "Platform", -1, "INFO 9"},
		{imds.Vanished, "New", "", -1, "INFO 9"},
		{imds.Scheduled, "Preempt", "Platform", -1, "ERROR 17"},
		{imds.Started, "Preempt", "User", -1, "ERROR 17"},
		{imds.Scheduled, "Terminate", "User", -1, "WARN 13"},
		{imds.Started, "Terminate", "Platform", -1, "WARN 13"},
		{imds.Scheduled, "Reboot", "User", -1, "INFO 9"},
		{imds.Started, "Redeploy", "User", -1, "INFO 9"},
		{imds.Scheduled, "Freeze", "User", -1, "INFO 9"},
		{imds.Updated, "New", "User", -1, "INFO 9"},
		{imds.Scheduled, "Reboot", "Platform", -1, "ERROR 17"},
		{imds.Updated, "Reboot", "", -1, "ERROR 17"},
		{imds.Started, "Redeploy", "Platform", 5, "ERROR 17"},
		{imds.Scheduled, "Freeze", "Platform", 0, "INFO 9"},
		{imds.Scheduled, "Freeze", "Platform", 10, "INFO 9"},
		{imds.Scheduled, "Freeze", "Platform", 11, "WARN 13"},
		{imds.Scheduled, "Freeze", "Platform", -1, "WARN 13"},
		{imds.Scheduled, "New", "Platform", 5, "WARN 13"},
		{imds.Scheduled, "", "", -1, "WARN 13"},
	} {
		e := reboot(t, "EventType", `"`+tt.typ+`"`, "EventSource", `"`+tt.source+`"`,
			"DurationInSeconds", strconv.Itoa(tt.duration))
		x := said(t, imds.Change{Kind: tt.kind, Event: e, Previous: &e}, Circumstances{}).Extensions()
		if got := fmt.Sprint(x["severitytext"], " ", x["severitynumber"]); got != tt.want {
			t.Errorf("%s %s by %q for %d s is %s, want %s", tt.kind, tt.typ, tt.source, tt.duration, got, tt.want)
		}
	}
}

// The source is the scale set, so that all its VMs say the same; else the VM; else a name.
func TestSourceIsTheSetElseTheVMElseAName(t *testing.T) {
	const azure = "https://management.azure.com"
	odd, halfSet := vm0, web0
	odd.ResourceID = "/subscriptions/s/resourceGroups/a (b)/providers/Microsoft.Compute/virtualMachines/ü%"
	halfSet.SubscriptionID = ""
	fixed := Circumstances{Observer: web0, Source: azure + "/subscriptions/s/availabilitySets/x"}
	for _, tt := range []struct {
		claim string
		in    Circumstances
		want  string
	}{
		{"a set", Circumstances{Observer: web0}, azure + prod + "virtualMachineScaleSets/web"},
		{"a VM", Circumstances{Observer: vm0}, azure + vm0.ResourceID},
		{"a set of which too little is known", Circumstances{Observer: halfSet}, azure + web0.ResourceID},
		{"odd characters", Circumstances{Observer: odd},
			azure + "/subscriptions/s/resourceGroups/a%20%28b%29/providers/Microsoft.Compute/virtualMachines/%C3%BC%25"},
		{"a name alone", Circumstances{Observer: imds.Observer{Name: "vm 0"}, Host: "host-0"}, "urn:forewarn:vm%200"},
		{"a host alone", Circumstances{Host: "host-0"}, "urn:forewarn:host-0"},
		{"nothing", Circumstances{}, "urn:forewarn:unknown"},
		{"what the settings fix", fixed, fixed.Source},
	} {
		if got := said(t, scheduled(reboot(t)), tt.in).Source(); got != tt.want {
			t.Errorf("source of %s = %s, want %s", tt.claim, got, tt.want)
		}
	}
}

// attributesOf returns the attributes of an event that the observer sees.
func attributesOf(t *testing.T, e imds.Event, o imds.Observer) map[string]any {
	t.Helper()
	return said(t, scheduled(e), Circumstances{Observer: o}).Extensions()
}

// An attribute has no control characters, and at most 1 KiB.
func TestAttributesAreCleanAndShort(t *testing.T) {
	ü := func(n int) string { return strings.Repeat("ü", n) }
	for _, tt := range []struct{ sent, want string }{
		{`Re\nboot`, "Re boot"}, {`\u0000Reboot\u007f`, "Reboot"}, {`a\u0085b`, "a b"}, {`\ud800x`, "\ufffdx"},
		{`a\ufffeb\ufdd0c`, "a b c"}, {`<ü> \"100%\"`, `<ü> "100%"`}, {ü(600), ü(512)}, {"x" + ü(600), "x" + ü(511)},
	} {
		if got := attributesOf(t, reboot(t, "EventType", `"`+tt.sent+`"`), vm0)["azeventtype"]; got != tt.want {
			t.Errorf("azeventtype of %.40q = %.40q, want %.40q", tt.sent, got, tt.want)
		}
	}
	if got := attributesOf(t, reboot(t, "EventType", `"\u0000\n"`), vm0)["azeventtype"]; got != nil {
		t.Errorf("azeventtype of control characters alone = %q, want none", got)
	}
	if got := attributesOf(t, reboot(t), imds.Observer{Name: "a\nb"})["observer"]; got != "a b" {
		t.Errorf("observer = %q, want %q", got, "a b")
	}
}

// A list of names is cut between two of them, because half a name would be another VM's. A single one is cut at a rune.
func TestAListOfNamesIsCutBetweenTwo(t *testing.T) {
	a, ü := func(n int) string { return strings.Repeat("a", n) }, func(n int) string { return strings.Repeat("ü", n) }
	for _, tt := range []struct {
		claim string
		names []string
		want  string
	}{
		{"what fits is whole", []string{a(511), a(512)}, a(511) + "," + a(512)},
		{"what does not fit is left out", []string{a(511), a(513)}, a(511)},
		{"a name that ends at the limit is whole", []string{a(1024), "b"}, a(1024)},
		{"many are cut between two", slices.Repeat([]string{"vm-10"}, 1000), strings.Repeat("vm-10,", 169) + "vm-10"},
		{"a single one is cut at a rune", []string{ü(513)}, ü(512)},
		{"a single one is cut at a rune before the limit", []string{"x" + ü(513)}, "x" + ü(511)},
	} {
		got := attributesOf(t, reboot(t, "Resources", string(imds.CompactJSON(tt.names))), vm0)["azresources"]
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.claim, got, tt.want)
		}
	}
}
