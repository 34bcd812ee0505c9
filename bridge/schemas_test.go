package bridge_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

// structured returns a CloudEvent in the JSON format.
func structured(t testing.TB, ce event.Event) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, event.WriteJson(&ce, &b))
	return b.Bytes()
}

// schemas returns those of a whole CloudEvent, and of its data.
func schemas(t testing.TB) (whole, data *jsonschema.Schema) {
	t.Helper()
	file, err := os.ReadFile("cloudevent/testdata/cloudevent.schema.json")
	must(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	compile := func(id string, text []byte) *jsonschema.Schema {
		t.Helper()
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		must(t, err)
		if got := doc.(map[string]any)["$id"]; got != id {
			t.Fatalf("$id is %v, want %s", got, id)
		}
		must(t, c.AddResource(id, doc))
		s, err := c.Compile(id)
		must(t, err)
		return s
	}
	data = compile(cloudevent.DataSchema, cloudevent.Schema)
	return compile("https://forewarn.dev/test/cloudevent.json", file), data
}

// breaks returns why the JSON text does not keep to the schema, nil if it does.
func breaks(t testing.TB, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s.Validate(v)
}

// What a bridge says while a sink is blocked, another rejects, the endpoint is away, settings are loaded and it stops
// keeps to the schemas too.
func TestARunningBridgeKeepsToTheSchemas(t *testing.T) {
	whole, _ := schemas(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 10 * time.Second
		all, strict, down := &recorder{}, answering(delivery.ErrRejected), answering(delivery.ErrBlocked)
		routes := []bridge.Route{
			all.all("all").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }), strict.all("strict"), down.all("down"),
		}
		b := s.start(routes...)
		pause(time.Minute)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot"})
		pause(6 * time.Minute)
		down.say(nil)
		pause(6 * time.Minute)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(6 * time.Minute)
		s.azure.ClearFaults()
		pause(2 * time.Minute)
		s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "<moved>" })
		pause(time.Minute)
		s.azure.Start(idA)
		pause(time.Minute)
		s.azure.End(idA)
		pause(time.Minute)
		b.Reload(routes, nil, bridge.SettingsInfo{Hash: "5f0b1c2d"})
		pause(time.Minute)
		b.end()

		for _, h := range all.accepted() {
			must(t, breaks(t, whole, structured(t, h.Event)))
		}
		heard := strings.Join(all.types(), " ")
		for _, typ := range []string{
			"scheduled", "updated", "started", "vanished", "sink.blocked", "sink.recovered", "delivery.deadlettered",
			"imds.unavailable", "imds.recovered", "settings.loaded", "stopping",
		} {
			wantIn(t, "heard", heard, typ)
		}
	})
}

// Times are in UTC where the local zone is another, also those that a mute has set. The test runs in its own process,
// because time.Local is global.
func TestSchemasHoldInAnyZone(t *testing.T) {
	const child = "FOREWARN_TEST_ZONE"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1", "GORACE=atexit_sleep_ms=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	time.Local = time.FixedZone("CET", 60*60)
	whole, _ := schemas(t)
	bubble(t, func(t *testing.T, s *stage) {
		down, audit := answering(delivery.ErrBlocked), &recorder{}
		b := s.start(down.all("down"), audit.all("audit").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		b.mute("down", 5*time.Minute)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot"})
		pause(10 * time.Minute)
		b.end()
		for _, h := range audit.accepted() {
			must(t, breaks(t, whole, structured(t, h.Event)))
		}
		wantIn(t, "told", strings.Join(audit.types(), " "), "sink.blocked")
	})
}
