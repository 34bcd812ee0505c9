package sinks

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

// Every ready-made body has the shape that its service documents, whatever has happened.
func TestBodiesHaveTheShapeTheirServiceDocuments(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	if len(templates.BodyNames()) == 0 {
		t.Fatal("there are no bodies")
	}
	for _, name := range templates.BodyNames() {
		schema, err := jsonschema.NewCompiler().Compile(filepath.Join("testdata", "bodies", name+".schema.json"))
		if err != nil {
			t.Fatal(err)
		}
		ready, _ := templates.Body(name)
		parsed, err := templates.Parse(name, ready.Text)
		if err != nil {
			t.Fatal(err)
		}
		if err := tryOn(true, func(f map[string]any) error {
			f["secret"] = map[string]string{"routing_key": "0123456789abcdef0123456789abcdef", "topic": "vms"}
			var b bytes.Buffer
			if err := parsed.Execute(&b, f); err != nil {
				return err
			}
			value, err := jsonschema.UnmarshalJSON(&b)
			if err != nil {
				return err
			}
			return schema.Validate(value)
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Times in ready-made bodies have at most six fractional digits: .NET's Newtonsoft.Json takes nine for text. A
// CloudEvent in one stays as it is, and so does what Azure sent.
func TestTimesInBodiesAreShort(t *testing.T) {
	nine := regexp.MustCompile(`\d:\d\d\.\d{7,}`)
	seen := at("04:20:11").clock().Add(123456789)
	started := azure("Started", "Reboot", "", map[string]any{"At": "2026-11-21T04:10:04.123456789Z"})
	over := deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Vanished, Event: started}, cloudevent.Circumstances{
		Observer: dbHost, Time: seen, Announced: seen.Add(-time.Hour), Begun: seen.Add(-time.Minute), WhileAway: true,
		NotEarlierThan: seen.Add(-time.Second),
		End:            cloudevent.End{Outcome: cloudevent.OutcomeCompleted, Back: seen.Add(-time.Second)},
	}))
	recovered := deliveryOf(cloudevent.WrapBridge(cloudevent.IMDSRecovered, map[string]any{
		"endpoint": "http://169.254.169.254", "gap": map[string]any{"from": seen, "to": seen},
	}, dbHost, seen))
	for _, name := range templates.BodyNames() {
		ready, _ := templates.Body(name)
		parsed, err := templates.Parse(name, ready.Text)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range [][]delivery.Delivery{over, recovered} {
			f := (&Host{}).fields(d, seen)
			f["secret"] = map[string]string{"routing_key": "0123456789abcdef0123456789abcdef", "topic": "vms"}
			body := render(t, parsed, f)
			body = strings.ReplaceAll(body, string(f["cloudevent"].(json.RawMessage)), "")
			body = strings.ReplaceAll(body, `"At":"2026-11-21T04:10:04.123456789Z"`, "")
			if found := nine.FindString(body); found != "" {
				t.Errorf("%s: …%s in\n%s", name, found, body)
			}
		}
	}
}

// Each ready-made body says a reboot and its end as these files show.
func TestBodiesOfAReboot(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for _, name := range templates.BodyNames() {
		var r recorder
		settings := "url: " + serve(t, &r).URL + "\nbody: " + name
		switch name {
		case "pagerduty":
			settings += "\nbody_secrets: {routing_key: 0123456789abcdef}"
		case "ntfy":
			settings += "\nbody_secrets: {topic: vms}"
		}
		s := mustOpen(t, "webhook", settings, testHost(t)).(*webhook)
		s.now = messageTime.clock
		for _, situation := range []string{"scheduled", "over"} {
			if _, err := s.Deliver(t.Context(), situations()[situation].batch); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var shown strings.Builder
		for _, req := range r.all() {
			if got := req.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("%s: Content-Type is %q, want application/json", name, got)
			}
			var b bytes.Buffer
			if err := json.Indent(&b, []byte(req.body), "", "  "); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			shown.WriteString(b.String())
		}
		golden(t, filepath.Join("bodies", name+".golden"), shown.String())
	}
}

// A page is what PagerDuty reads of its body.
type page struct {
	Action  string `json:"event_action"`
	Key     string `json:"dedup_key"`
	Payload struct{ Source string }
}

// pageAbout returns what PagerDuty is told of a CloudEvent about a bridge.
func pageAbout(t *testing.T, typ string, o imds.Observer, data map[string]any) (p page) {
	t.Helper()
	ready, _ := templates.Body("pagerduty")
	parsed, err := templates.Parse("pagerduty", ready.Text)
	if err != nil {
		t.Fatal(err)
	}
	f := fieldsOf(t, situation{batch: about(typ, o, data), now: messageTime})
	f["secret"] = map[string]string{"routing_key": "0123456789abcdef"}
	if err := json.Unmarshal([]byte(render(t, parsed, f)), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// What PagerDuty is told about a sink or a silent VM opens an incident that only the same VM's recovery resolves, also
// where another group has a VM of that name.
func TestIncidentsOfVMsOfOneNameStayApart(t *testing.T) {
	other := dbHost
	other.VMID, other.ResourceGroup = "0f3a6f0e-5a0d-4b3c-8f67-5f1f2d8c9a10", "test-db"
	for _, tt := range []struct {
		trouble, end string
		data, others map[string]any
	}{
		{cloudevent.SinkBlocked, cloudevent.SinkRecovered, map[string]any{"sink": "ops"}, map[string]any{"sink": "ops"}},
		{cloudevent.OutboxUnwritable, cloudevent.OutboxWritable, nil, nil},
		{cloudevent.ObserverSilent, cloudevent.ObserverBack, // of which a relay tells
			map[string]any{"count": 1, "vms": []string{"vm-db-1"}, "groups": []string{"prod-db"}},
			map[string]any{"count": 1, "vms": []string{"vm-db-1"}, "groups": []string{"test-db"}}},
	} {
		key := pageAbout(t, tt.trouble, dbHost, tt.data).Key
		if end := pageAbout(t, tt.end, dbHost, tt.data); end.Action != "resolve" || end.Key != key {
			t.Errorf("%s: %s of %s, want the end of %s", tt.end, end.Action, end.Key, key)
		}
		if its := pageAbout(t, tt.trouble, other, tt.others).Key; its == key {
			t.Errorf("%s: both have %s", tt.trouble, key)
		}
	}
}

// A test opens an incident of its own that nothing ends, whatever it is a sample of.
func TestATestIsAnIncidentOfItsOwn(t *testing.T) {
	test, end := fieldsOf(t, situations()["test"]), fieldsOf(t, situations()["test-cancelled"])
	event := fieldsOf(t, situations()["scheduled"])
	if test["incidentKey"] != test["id"] || test["incidentKey"] == event["incidentKey"] || end["resolved"] != false {
		t.Errorf("a test has the key %v, an event %v; the end of a test ends an incident: %v", test["incidentKey"],
			event["incidentKey"], end["resolved"])
	}
}

// A mute is an incident of its own, which its end resolves. It neither opens nor changes the incident of the sink's next
// trouble, which would wake nobody then.
func TestAMuteIsAnIncidentOfItsOwn(t *testing.T) {
	ops := map[string]any{"sink": "ops", "mute": "tk3x9q"}
	trouble := pageAbout(t, cloudevent.SinkBlocked, dbHost, ops)
	muted, unmuted := pageAbout(t, cloudevent.SinkMuted, dbHost, ops), pageAbout(t, cloudevent.SinkUnmuted, dbHost, ops)
	if muted.Key == trouble.Key || muted.Action != "trigger" {
		t.Errorf("a mute has the key %s, as trouble has, and the action %s", muted.Key, muted.Action)
	}
	if unmuted.Key != muted.Key || unmuted.Action != "resolve" {
		t.Errorf("the end of %s has the key %s and the action %s", muted.Key, unmuted.Key, unmuted.Action)
	}
}

// What one relay reports, another one of the same stream may end, under its own name.
func TestAnyRelayOfAStreamEndsItsIncidents(t *testing.T) {
	first, second := imds.Observer{Name: "relay-1"}, imds.Observer{Name: "relay-2"}
	of := func(stream string, created time.Time) map[string]any {
		return map[string]any{"sink": "ops", "mute": "tk3x9q", "stream": stream, "streamCreated": created}
	}
	prod := of("FOREWARN", time.Time(messageTime))
	for trouble, end := range map[string]string{
		cloudevent.SinkBlocked: cloudevent.SinkRecovered, cloudevent.SinkMuted: cloudevent.SinkUnmuted,
	} {
		key := pageAbout(t, trouble, first, prod).Key
		if ends := pageAbout(t, end, second, prod); ends.Action != "resolve" || ends.Key != key {
			t.Errorf("%s: %s of %s, want the end of %s", end, ends.Action, ends.Key, key)
		}
		for _, other := range []map[string]any{of("TEST", time.Time(messageTime)), of("FOREWARN", time.Time(messageTime).Add(time.Hour))} {
			if its := pageAbout(t, trouble, first, other).Key; its == key {
				t.Errorf("%s: both streams have %s", trouble, key)
			}
		}
	}
}

// A page about a bridge names the VM, as one about an event does.
func TestPagesNameTheVMInTrouble(t *testing.T) {
	for _, typ := range []string{cloudevent.SinkBlocked, cloudevent.IMDSUnavailable, cloudevent.DeliveryDeadLettered} {
		if got := pageAbout(t, typ, dbHost, map[string]any{"sink": "ops"}).Payload.Source; got != "vm-db-1" {
			t.Errorf("%s: the source is %q, want vm-db-1", typ, got)
		}
	}
}

// What a body holds for its receiver alone is read on each use and shown to nobody else.
func TestBodySecretsAreSentAndNeverShown(t *testing.T) {
	var r recorder
	path := writeFile(t, "key", "first-routing-key\n")
	opened, err := open("webhook",
		"url: "+serve(t, &r).URL+"\nbody: pagerduty\nbody_secrets: {routing_key: {file: "+path+"}}", testHost(t))
	if err != nil || len(opened.Secrets) != 1 || opened.Secrets[0] != path {
		t.Fatalf("open = %v, %v; want the secret file", opened.Secrets, err)
	}
	defer closeSink(opened.Sink)
	d := situations()["scheduled"].batch
	shown, err := opened.Sink.(delivery.Renderer).Render(d[0])
	if err != nil || strings.Contains(shown, "first-routing-key") || !strings.Contains(shown, `"routing_key":"[secret]"`) {
		t.Errorf("Render = %v, with the key:\n%s", err, shown)
	}
	if err := os.WriteFile(path, []byte("second-routing-key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := opened.Sink.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if body := r.all()[0].body; !strings.Contains(body, `"routing_key":"second-routing-key"`) {
		t.Errorf("sent %s, want the second key in it", body)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := opened.Sink.Deliver(t.Context(), d); !errors.Is(err, delivery.ErrBlocked) {
		t.Errorf("without the file: %v, want it blocked", err)
	}
}

// Wrong keys of a body are refused by name, with what was expected.
func TestWrongBodiesAreRefused(t *testing.T) {
	for _, tt := range []struct{ settings, key, words string }{
		{"body: team", "body", `"team" is unknown; expected one of azure-automation,`},
		{"body: ../words", "body", "is unknown"},
		{"body: teams\nbody_text: x", "body_text", "body is given too"},
		{"body: teams\nbody_text_file: /x", "body_text_file", "body is given too"},
		{"body: teams\nmode: binary", "mode", "body replaces it"},
		{"body: pagerduty", "body", "body_secrets.routing_key is missing"},
		{"body_secrets: {a: b}", "body_secrets", "is for body or body_text"},
		{"body: pagerduty\nbody_secrets: {routing_key: {file: /nowhere}}", "body_secrets.routing_key.file", "/nowhere"},
	} {
		wrongKey(t, "webhook", "url: https://example.com\n"+tt.settings, tt.key, tt.words)
	}
}
