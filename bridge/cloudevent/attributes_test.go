package cloudevent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/types"

	"forewarn/bridge/imds"
)

// The id of a change is the event and the change. The content of an update counts, however it was written, and as
// anybody can compute it.
func TestSameChangeAlwaysHasTheSameID(t *testing.T) {
	raw := `{"EventId":"c7061bac-afdc-4513-b24b-aa5f13a16123","EventStatus":"Scheduled","NotBefore":"Mon, 11 Apr 2022 22:26:58 GMT",` +
		`"Description":"<a & b>","New":{"b":2,"a":[1.50,true]},"DurationInSeconds":5}`
	canonical := `{"Description":"<a & b>","DurationInSeconds":5,"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123","EventStatus":"Scheduled",` +
		`"New":{"a":[1.50,true],"b":2},"NotBefore":"2022-04-11T22:26:58Z"}`
	sum := sha256.Sum256([]byte(canonical))
	hash := hex.EncodeToString(sum[:])[:8]
	const id = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
	e := azureEvent(t, raw)
	for kind, want := range map[imds.ChangeKind]string{
		imds.Scheduled: id + "-scheduled", imds.Started: id + "-started", imds.Vanished: id + "-vanished", imds.Updated: id + "-updated-" + hash,
	} {
		if got := ChangeID(imds.Change{Kind: kind, Event: e}); got != want {
			t.Errorf("id of %s = %s, want %s", kind, got, want)
		}
		for repeat, suffix := range map[int]string{0: "", 1: "-r2", 2: "-r3", 10: "-r11"} {
			ce := said(t, imds.Change{Kind: kind, Event: e, Previous: &e, Fields: []string{"New"}}, Circumstances{Observer: web0, Repeat: repeat})
			if ce.ID() != want+suffix {
				t.Errorf("id of %s told %d times before = %s, want %s", kind, repeat, ce.ID(), want+suffix)
			}
		}
	}
	for _, same := range []string{
		`{"New":{"a":[1.50,true],"b":2},"DurationInSeconds":5,"Description":"\u003ca \u0026 b\u003e","EventStatus":"Scheduled",` +
			`"NotBefore":"2022-04-12T00:26:58+02:00","EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123"}`,
		strings.ReplaceAll(raw, `,"`, " ,\n\""),
		strings.Replace(raw, "Mon", "Fri", 1),
	} {
		if got := azureEvent(t, same).Hash(); got != hash {
			t.Errorf("hash of %s = %s, want %s", same, got, hash)
		}
	}
	for _, other := range []string{
		strings.Replace(raw, `<a`, `<A`, 1), strings.Replace(raw, `:26:`, `:27:`, 1), strings.Replace(raw, `1.50`, `1.5`, 1),
		strings.Replace(raw, `"b":2`, `"b":null`, 1), strings.Replace(raw, `,"DurationInSeconds":5`, ``, 1),
	} {
		if got := azureEvent(t, other).Hash(); got == hash {
			t.Errorf("hash of %s is that of other content", other)
		}
	}
}

// An id holds only letters, digits and hyphens, whatever Azure or the host's name hold.
func TestIDsAreTokens(t *testing.T) {
	plain := regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	for _, odd := range []string{"a.b", "a/b c", "ü", "🙂", "\x00", "..", "*", ">", "a\u0130b", strings.Repeat("x", 300), "٣"} {
		raw, _ := json.Marshal(odd)
		e := azureEvent(t, `{"EventId":`+string(raw)+`}`)
		for _, kind := range []imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished} {
			if id := ChangeID(imds.Change{Kind: kind, Event: e}); !plain.MatchString(id) {
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
	for _, tt := range []struct {
		who             imds.Observer
		id, source, sub string
	}{
		{web0, "02aab8a4-74ef-476e-8182-f6d2ba4166a6-imds-unavailable-20261121T035529123456789Z", "https://management.azure.com" + web0.ResourceID, "web_0"},
		{imds.Observer{Name: "host-0"}, "host-0-imds-unavailable-20261121T035529123456789Z", "urn:forewarn:host-0", "host-0"},
		{imds.Observer{}, "unknown-imds-unavailable-20261121T035529123456789Z", "urn:forewarn:unknown", ""},
	} {
		ce, err := WrapBridge(IMDSUnavailable, nil, tt.who, commitTime.In(east))
		if err != nil {
			t.Fatal(err)
		}
		if ce.ID() != tt.id || ce.Source() != tt.source || ce.Subject() != tt.sub || ce.Time() != commitTime {
			t.Errorf("id %s, source %s, subject %q, time %v, want %s, %s, %q, %v", ce.ID(), ce.Source(), ce.Subject(), ce.Time(), tt.id, tt.source, tt.sub, commitTime)
		}
	}
	round, _ := WrapBridge(BridgeTest, nil, imds.Observer{}, commitTime.Truncate(time.Second))
	if want := "unknown-test-20261121T035529000000000Z"; round.ID() != want {
		t.Errorf("id at a whole second = %s, want %s", round.ID(), want)
	}
}

// The severity is that of the first rule that fits.
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
		e := azureEvent(t, fmt.Sprintf(`{"EventId":"A","EventType":%q,"EventSource":%q,"DurationInSeconds":%d}`, tt.typ, tt.source, tt.duration))
		x := said(t, imds.Change{Kind: tt.kind, Event: e, Previous: &e}, Circumstances{}).Extensions()
		if got := fmt.Sprint(x["severitytext"], " ", x["severitynumber"]); got != tt.want {
			t.Errorf("%s %s by %q for %d s is %s, want %s", tt.kind, tt.typ, tt.source, tt.duration, got, tt.want)
		}
	}
	for _, typ := range []string{
		BridgeStarted, BridgeStopping, BridgeTest, BridgeHeartbeat, IMDSUnavailable, IMDSRecovered, OutboxUnwritable,
		OutboxWritable, SinkBlocked, SinkRecovered, DeliveryDeadLettered, DeliveryDropped, SettingsLoaded, ChainHead, ObserverSilent, ObserverBack,
	} {
		want := "INFO 9"
		if typ == ObserverSilent {
			want = "WARN 13"
		}
		if slices.Contains([]string{SinkBlocked, DeliveryDeadLettered, IMDSUnavailable, OutboxUnwritable}, typ) {
			want = "ERROR 17"
		}
		ce, err := WrapBridge(typ, nil, vm0, commitTime)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(ce.Extensions()["severitytext"], " ", ce.Extensions()["severitynumber"]); got != want {
			t.Errorf("%s is %s, want %s", typ, got, want)
		}
	}
}

// The source is the scale set, so that all its VMs say the same; else the VM; else a name.
func TestSourceIsTheSetElseTheVMElseAName(t *testing.T) {
	odd := vm0
	odd.ResourceID = "/subscriptions/s/resourceGroups/a (b)/providers/Microsoft.Compute/virtualMachines/ü%"
	halfSet := web0
	halfSet.SubscriptionID = ""
	for _, tt := range []struct {
		claim string
		in    Circumstances
		want  string
	}{
		{"a set", Circumstances{Observer: web0}, "https://management.azure.com/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod/providers/Microsoft.Compute/virtualMachineScaleSets/web"},
		{"a VM", Circumstances{Observer: vm0}, "https://management.azure.com" + vm0.ResourceID},
		{"a set of which too little is known", Circumstances{Observer: halfSet}, "https://management.azure.com" + web0.ResourceID},
		{"odd characters", Circumstances{Observer: odd}, "https://management.azure.com/subscriptions/s/resourceGroups/a%20%28b%29/providers/Microsoft.Compute/virtualMachines/%C3%BC%25"},
		{"a name alone", Circumstances{Observer: imds.Observer{Name: "vm 0"}, Host: "host-0"}, "urn:forewarn:vm%200"},
		{"a host alone", Circumstances{Host: "host-0"}, "urn:forewarn:host-0"},
		{"nothing", Circumstances{}, "urn:forewarn:unknown"},
		{"what the settings fix", Circumstances{Observer: web0, Source: "https://management.azure.com/subscriptions/s/availabilitySets/x"}, "https://management.azure.com/subscriptions/s/availabilitySets/x"},
	} {
		t.Run("of "+tt.claim, func(t *testing.T) {
			got := said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry())}, tt.in).Source()
			if got != tt.want {
				t.Errorf("source = %s, want %s", got, tt.want)
			}
		})
	}
}

// The attributes that people route by are there when they are known, and only then.
func TestAttributesSayWhatIsKnown(t *testing.T) {
	x := func(raw string, o imds.Observer) map[string]any {
		return said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, raw)}, Circumstances{Observer: o}).Extensions()
	}
	full := x(entry("Resources", `["vm-1","VM-0"]`, "DurationInSeconds", `9`), vm0)
	for name, want := range map[string]any{
		"azeventtype": "Reboot", "azeventstatus": "Scheduled", "azeventsource": "Platform", "azduration": int32(9),
		"aznotbefore": types.Timestamp{Time: time.Date(2026, 11, 21, 4, 10, 0, 0, time.UTC)}, "azself": true,
		"azresources": "vm-1,VM-0", "observer": "vm-0", "severitytext": "ERROR", "severitynumber": int32(17),
	} {
		if full[name] != want {
			t.Errorf("%s = %v, want %v", name, full[name], want)
		}
	}
	if n := len(full); n != 10 {
		t.Errorf("%d extensions, want 10: %v", n, full)
	}
	if got := x(entry(), web0)["azself"]; got != false {
		t.Errorf("azself of an event that names others = %v, want false", got)
	}
	if got := x(entry(), imds.Observer{})["azself"]; got != nil {
		t.Errorf("azself without a name = %v, want none", got)
	}
	none := said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, `{"EventId":"A","Resources":"vm-0"}`)}, Circumstances{Observer: vm0})
	if got := slices.Sorted(maps.Keys(none.Extensions())); !slices.Equal(got, []string{"azduration", "observer", "severitynumber", "severitytext"}) {
		t.Errorf("attributes of an event that says nothing: %q", got)
	}
	if d := dataOf(t, none); d.AffectsSelf != nil || none.Extensions()["azduration"] != int32(-1) {
		t.Errorf("affectsSelf = %v, azduration = %v, of an event that says nothing", *d.AffectsSelf, none.Extensions()["azduration"])
	}
}

// An attribute has no control characters, and at most 1 KiB. A list of names is cut between two of them, because half
// a name would be another VM's.
func TestAttributesAreCleanAndShort(t *testing.T) {
	x := func(raw string, o imds.Observer) map[string]any {
		return said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, raw)}, Circumstances{Observer: o}).Extensions()
	}
	for _, tt := range []struct{ value, want string }{
		{`Re\nboot`, "Re boot"}, {`\u0000Reboot\u007f`, "Reboot"}, {`a\u0085b`, "a b"}, {`\ud800x`, "\ufffdx"}, {`a\ufffeb\ufdd0c`, "a b c"},
		{`<ü> "100%"`, `<ü> "100%"`}, {strings.Repeat("ü", 600), strings.Repeat("ü", 512)}, {"x" + strings.Repeat("ü", 600), "x" + strings.Repeat("ü", 511)},
	} {
		raw := strings.ReplaceAll(tt.value, `"`, `\"`)
		if got := x(entry("EventType", `"`+raw+`"`), vm0)["azeventtype"]; got != tt.want {
			t.Errorf("azeventtype of %.40q = %.40q, want %.40q", tt.value, got, tt.want)
		}
	}
	if got := x(entry("EventType", `"\u0000\n"`), vm0)["azeventtype"]; got != nil {
		t.Errorf("azeventtype of control characters alone = %q, want none", got)
	}
	if got := x(entry(), imds.Observer{Name: "a\nb"})["observer"]; got != "a b" {
		t.Errorf("observer = %q", got)
	}
	for _, tt := range []struct {
		claim string
		names []string
		want  int // bytes
	}{
		{"what fits is whole", []string{strings.Repeat("a", 511), strings.Repeat("b", 512)}, 1024},
		{"what does not fit is left out", []string{strings.Repeat("a", 511), strings.Repeat("b", 513)}, 511},
		{"a name that ends at the limit is whole", []string{strings.Repeat("a", 1024), "b"}, 1024},
		{"many are cut between two", slices.Repeat([]string{"vm-10"}, 1000), 170*6 + 5 - 6},
		{"a single one is cut at a rune", []string{strings.Repeat("ü", 513)}, 1024},
		{"a single one is cut at a rune before the limit", []string{"x" + strings.Repeat("ü", 513)}, 1023},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			raw, _ := json.Marshal(tt.names)
			got, _ := x(entry("Resources", string(raw)), vm0)["azresources"].(string)
			all := strings.Join(tt.names, ",")
			if len(got) != tt.want || !strings.HasPrefix(all, got) || !utf8.ValidString(got) {
				t.Errorf("%d bytes %.40q…, want %d of the beginning", len(got), got, tt.want)
			}
			if rest := all[len(got):]; len(tt.names) > 1 && rest != "" && rest[0] != ',' {
				t.Errorf("a name is cut: …%q", got[len(got)-20:])
			}
		})
	}
}
