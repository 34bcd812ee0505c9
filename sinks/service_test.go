package sinks

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// anyKey is a value for any key of a service.
const anyKey = "0123456789abcdef"

// settingsOf returns settings for a service at an address, with a value for each of its own keys that must be given.
func settingsOf(s *Service, address string) string {
	settings := "url: " + address
	for _, k := range s.Keys {
		if k.Required {
			settings += "\n" + k.Name + ": " + anyKey
		}
	}
	return settings
}

// serviceNamed returns the service of that name.
func serviceNamed(t *testing.T, name string) *Service {
	t.Helper()
	i := slices.IndexFunc(Services(), func(s *Service) bool { return s.Name == name })
	return Services()[i]
}

// openService opens a service at an address.
func openService(t *testing.T, s *Service, address string) *webhook {
	t.Helper()
	h := testHost(t)
	h.Endpoint = identityEndpoint(t)
	w := mustOpen(t, s.Name, settingsOf(s, address), h).(*webhook)
	w.now = messageTime.clock
	return w
}

// identityEndpoint returns the URL of a metadata service with a token of the managed identity.
func identityEndpoint(t *testing.T) string {
	t.Helper()
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"access_token":%q,"expires_in":"86400"}`, identityToken)
	})).URL
}

// bodyOf returns the body that a service gets with these fields.
func bodyOf(t *testing.T, w *webhook, fields map[string]any) string {
	t.Helper()
	fields["setting"] = map[string]string{}
	for _, s := range w.secrets.own {
		fields["setting"].(map[string]string)[s.name] = anyKey
	}
	body, err := w.render(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

const splunkToken = "\ntoken: s3cr3t-t0ken"

func serviceAccepts(t *testing.T) (settings string, got func() []string) {
	var r recorder
	srv := serve(t, &r)
	return "url: " + srv.URL + splunkToken, func() (ids []string) {
		for _, req := range r.all() {
			var body struct{ Event event.Event }
			if err := json.Unmarshal([]byte(req.body), &body); err != nil {
				t.Errorf("%q holds no CloudEvent: %v", req.body, err)
			}
			ids = append(ids, body.Event.ID())
		}
		return ids
	}
}

func serviceHangs(t *testing.T) map[string]hung {
	all := webhookHangs(t)
	for name, h := range all {
		all[name] = hung{h.settings + splunkToken, h.began}
	}
	return all
}

func serviceFails(t *testing.T) map[string]string {
	all := webhookFails(t)
	for class := range all {
		all[class] += splunkToken
	}
	return all
}

func serviceSecrets(t *testing.T) (places []secretPlace) {
	const secret = "s3cr3t-t0ken"
	file := writeFile(t, "secret", secret+"\n")
	for _, status := range []int{200, 302, 401, 422, 503} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sayBack(w, r, status) }))
		for _, key := range []string{"token: " + secret, "token_file: " + file, "token_env: SECRET"} {
			place := fmt.Sprintf("%s, answered %d", key[:10], status)
			places = append(places, secretPlace{place, "url: " + srv.URL + "\n" + key, []string{secret},
				map[string]string{"SECRET": secret}})
		}
	}
	return append(places, secretPlace{"wrong: in clear", "url: http://a.example\ntoken: " + secret, []string{secret}, nil},
		secretPlace{"wrong: two tokens", "url: http://a.example\ntoken: " + secret + "\ntoken_env: " + secret,
			[]string{secret}, nil})
}

// Each service is right by its own file, and says what it is, by whose rules, with an example that works.
func TestServicesAreDeclaredWhole(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for _, s := range Services() {
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if s.Title == "" || s.About == "" || s.For == "" || !strings.HasPrefix(s.Rules, "https://") || s.Example == "" {
			t.Errorf("%s lacks a title, what it is for, a word about it, its rules or an example: %+v", s.Name, s)
		}
		if s.Answers == "" && (s.Success != "" || s.BlockedOn != nil || s.BlockedIf != "") {
			t.Errorf("%s doesn't say in words which of its answers are accepted or blocked", s.Name)
		}
		if got := Kinds()[s.Name]; got.Title != s.Title || !reflect.DeepEqual(got.Terms, s.Kind().Terms) || got.For != s.Kind().For {
			t.Errorf("%s: what is read of its first lines differs", s.Name)
		}
		if n := strings.Count(s.Example, "\n"); n > 5 || !strings.Contains(s.Example, "  "+s.Name+":") {
			t.Errorf("%s: its example has %d lines, or isn't one:\n%s", s.Name, n, s.Example)
		}
	}
}

// Every body has the shape that its service documents, whatever has happened.
func TestBodiesHaveTheShapeTheirServiceDocuments(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for _, s := range Services() {
		schema := bodySchema(t, s.Name)
		if schema == nil {
			continue
		}
		w := openService(t, s, "https://a.example")
		if err := tryOn(true, func(f map[string]any) error {
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(bodyOf(t, w, f)))
			if err != nil {
				return err
			}
			return schema.Validate(value)
		}); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
}

// A demand is how a service is asked by its documents: the method and the path with its query, a header, and what it
// answers.
type demand struct {
	request, header string
	status          int
	answer          string
}

// A bound is what a service takes at most by its documents: bytes of a body, the age of a timestamp, of which what is
// older is dropped without a word, and bytes of one value of a record, of which what is longer is cut.
type bound struct {
	bytes  int
	oldest time.Duration
	value  int
}

var bounds = map[string]bound{
	"azure_monitor": {bytes: 1 << 20, value: 64 << 10},
	"datadog":       {bytes: 1_000_000, oldest: 18 * time.Hour},
	"google_chat":   {bytes: 32_000},
	"newrelic":      {bytes: 1_000_000, oldest: 48 * time.Hour},
	"teams":         {bytes: 28 << 10},
}

var demands = map[string]demand{
	"alertmanager":     {"POST /api/v2/alerts", "Content-Type: application/json", 200, ""},
	"azure_automation": {"POST /", "Content-Type: application/json", 202, `{"JobIds":["6d1f"]}`},
	"azure_functions":  {"POST /", "Aeg-Event-Type: Notification", 202, ""},
	"azure_monitor":    {"POST /?api-version=2023-01-01", "Authorization: Bearer " + identityToken, 204, ""},
	"datadog":          {"POST /", "Dd-Api-Key: " + anyKey, 202, "{}"},
	"discord":          {"POST /?wait=true", "Content-Type: application/json", 200, `{"id":"1365"}`},
	"elasticsearch": {"POST /_bulk", "Content-Type: application/x-ndjson", 200,
		`{"errors":true,"items":[{"create":{"status":409,"error":{"type":"version_conflict_engine_exception"}}}]}`},
	"event_grid": {"POST /?api-version=2018-01-01", "Authorization: Bearer " + identityToken, 200, ""},
	"event_grid_namespace": {"POST /topics/" + anyKey + ":publish?api-version=2024-06-01",
		"Content-Type: application/cloudevents+json; charset=utf-8", 200, "{}"},
	"event_hubs": {"POST /messages?timeout=60&api-version=2014-01", "Authorization: Bearer " + identityToken, 201, ""},
	"google_chat": {"POST /?messageReplyOption=REPLY_MESSAGE_FALLBACK_TO_NEW_THREAD", "Content-Type: application/json", 200,
		`{"name":"spaces/A/messages/B"}`},
	"gotify":         {"POST /message", "X-Gotify-Key: " + anyKey, 200, `{"id":25,"appid":5}`},
	"grafana_oncall": {"POST /", "Content-Type: application/json", 200, "Ok."},
	"loki":           {"POST /loki/api/v1/push", "Content-Type: application/json", 204, ""},
	"matrix": {"PUT /_matrix/client/v3/rooms/" + anyKey + "/send/m.room.message/", "Authorization: Bearer " + anyKey, 200,
		`{"event_id":"$x"}`},
	"mattermost":  {"POST /", "Content-Type: application/json", 200, "ok"},
	"newrelic":    {"POST /", "Api-Key: " + anyKey, 202, `{"requestId":"x"}`},
	"ntfy":        {"POST /", "Content-Type: application/json", 200, `{"id":"x","event":"message"}`},
	"otlp":        {"POST /v1/logs", "Content-Type: application/json", 200, `{"partialSuccess":{}}`},
	"pagerduty":   {"POST /", "Content-Type: application/json", 202, `{"status":"success","message":"Event processed"}`},
	"pushover":    {"POST /", "Content-Type: application/json", 200, `{"status":1,"request":"x"}`},
	"service_bus": {"POST /messages", "Authorization: Bearer " + identityToken, 201, ""},
	"servicenow": {"POST /api/global/em/jsonv2", "Content-Type: application/json", 200,
		`{"result":{"Default Bulk Endpoint":"1 events were inserted"}}`},
	"splunk":   {"POST /services/collector/event", "Authorization: Splunk " + anyKey, 200, `{"text":"Success","code":0}`},
	"teams":    {"POST /", "Content-Type: application/json", 202, ""},
	"telegram": {"POST /bot" + anyKey + "/sendMessage", "Content-Type: application/json", 200, `{"ok":true,"result":{}}`},
	"zabbix": {"POST /api_jsonrpc.php", "Authorization: Bearer " + anyKey, 200,
		`{"jsonrpc":"2.0","result":{"response":"success","data":[{"itemid":"1"}]},"id":1}`},
}

// bodySchema returns the schema of what a service takes; nil if it takes the CloudEvent as it is, or no JSON.
func bodySchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	file := filepath.Join("testdata", "services", name+".schema.json")
	if _, err := os.Stat(file); err != nil {
		return nil
	}
	schema, err := jsonschema.NewCompiler().Compile(file)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// refusal returns why a service refuses a request by its documents, or "".
func (d demand) refusal(r *http.Request, body string, schema *jsonschema.Schema) string {
	name, value, _ := strings.Cut(d.header, ": ")
	if !strings.HasPrefix(r.Method+" "+r.RequestURI, d.request) {
		return "it is " + r.Method + " " + r.RequestURI
	}
	if r.Header.Get(name) != value {
		return name + " is " + r.Header.Get(name)
	}
	documents := []string{body}
	if strings.Contains(value, "ndjson") {
		documents = slices.Collect(strings.Lines(body))
	}
	for _, text := range documents {
		document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err == nil && schema != nil {
			err = schema.Validate(document)
		}
		if err != nil {
			return err.Error()
		}
	}
	return ""
}

// exceeded returns which of its bounds a body exceeds, or "".
func (b bound) exceeded(body string) string {
	if len(body) > cmp.Or(b.bytes, 256<<10) {
		return fmt.Sprintf("its body of %d bytes is too large", len(body))
	}
	for _, m := range regexp.MustCompile(`"timestamp":(\d{13})`).FindAllStringSubmatch(body, -1) {
		at, _ := strconv.ParseInt(m[1], 10, 64)
		if age := messageTime.clock().Sub(time.UnixMilli(at)); b.oldest > 0 && age > b.oldest {
			return fmt.Sprintf("its timestamp is %s old", age)
		}
	}
	if b.value == 0 {
		return ""
	}
	var records []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &records); err != nil {
		return err.Error()
	}
	for _, record := range records {
		for name, value := range record {
			if len(value) > b.value {
				return fmt.Sprintf("%s has %d bytes, and is cut", name, len(value))
			}
		}
	}
	return ""
}

// Each service takes what it is sent, by a fake that refuses what its documents say that it refuses: the whole life of an
// event, of one VM and of 300, with a long description full of signs, trouble, a test, and several events at once.
func TestServicesTakeWhatTheyAreSent(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	vms := make([]string, 300)
	for i := range vms {
		vms[i] = fmt.Sprintf("vmss-with-a-long-name_%d", i)
	}
	many := azure("Scheduled", "Reboot", "04:10:00",
		map[string]any{"Description": strings.Repeat("<&>\"'`\\\n{{é", 500), "Resources": vms})
	at := func(seen time.Time) []delivery.Delivery {
		return deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: many},
			cloudevent.Circumstances{Observer: dbHost, Time: seen}))
	}
	batches := map[string][]delivery.Delivery{
		"300 VMs": at(messageTime.clock()), "three days late": at(messageTime.clock().Add(-72 * time.Hour)),
	}
	for name, s := range situations() {
		batches[name] = s.batch
	}
	for _, s := range Services() {
		want, ok := demands[s.Name]
		if !ok {
			t.Errorf("%s has no row in demands", s.Name)
			continue
		}
		schema := bodySchema(t, s.Name)
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			why := cmp.Or(want.refusal(r, string(body), schema), bounds[s.Name].exceeded(string(body)))
			if why != "" {
				http.Error(w, why, http.StatusUnprocessableEntity)
				return
			}
			w.WriteHeader(want.status)
			io.WriteString(w, want.answer)
		}))
		w := openService(t, s, srv.URL)
		for name, batch := range batches {
			if s.For != "people" {
				batch = batch[:1]
			}
			if _, err := w.Deliver(t.Context(), batch); err != nil {
				t.Errorf("%s refuses %s: %v", s.Name, name, err)
			}
		}
		refused, err := http.Post(srv.URL, "application/json", strings.NewReader("["))
		if err != nil {
			t.Fatal(err)
		}
		refused.Body.Close()
		if refused.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s takes nonsense", s.Name)
		}
	}
}

// Times in bodies have at most six fractional digits: .NET's Newtonsoft.Json takes nine for text. A CloudEvent in one
// stays as it is, and so does what Azure sent.
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
	for _, s := range Services() {
		w := openService(t, s, "https://a.example")
		for _, d := range [][]delivery.Delivery{over, recovered} {
			f := (&Host{}).fields(d, seen)
			body := bodyOf(t, w, f)
			whole := string(f["cloudevent"].(json.RawMessage))
			quoted, _ := json.Marshal(whole)
			for _, cloudEvent := range []string{whole, string(quoted)} {
				body = strings.ReplaceAll(body, cloudEvent, "")
			}
			body = strings.ReplaceAll(body, "2026-11-21T04:10:04.123456789Z", "") // which Azure sent
			if found := nine.FindString(body); found != "" {
				t.Errorf("%s: …%s in\n%s", s.Name, found, body)
			}
		}
	}
}

// Each service is told of a reboot and its end as these files show.
func TestServicesAreToldOfAReboot(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for _, s := range Services() {
		var r recorder
		srv := serve(t, &r)
		w := openService(t, s, srv.URL)
		for _, situation := range []string{"scheduled", "over"} {
			w.Deliver(t.Context(), situations()[situation].batch) // whatever the recorder's answer means to the service
		}
		var shown strings.Builder
		for _, req := range r.all() {
			fmt.Fprintf(&shown, "%s %s\n", req.Method, req.RequestURI)
			for _, name := range slices.Sorted(maps.Keys(req.Header)) {
				if !oneOf(name, "Accept-Encoding", "Content-Length", "Idempotency-Key", "User-Agent") {
					fmt.Fprintf(&shown, "%s: %s\n", name, req.Header.Get(name))
				}
			}
			var b bytes.Buffer
			if err := json.Indent(&b, []byte(req.body), "", "  "); err != nil {
				b.Reset()
				b.WriteString(req.body)
			}
			fmt.Fprintf(&shown, "\n%s\n\n", strings.TrimSpace(b.String()))
		}
		golden(t, filepath.Join("services", s.Name+".golden"), shown.String())
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
	w := openService(t, serviceNamed(t, "pagerduty"), "https://a.example")
	f := fieldsOf(t, situation{batch: about(typ, o, data), now: messageTime})
	if err := json.Unmarshal([]byte(bodyOf(t, w, f)), &p); err != nil {
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

// The key of a service is read on each use and shown to nobody else.
func TestKeysOfServicesAreSentAndNeverShown(t *testing.T) {
	var r recorder
	path := writeFile(t, "key", "first-routing-key\n")
	opened, err := open("pagerduty", "url: "+serve(t, &r).URL+"\nrouting_key_file: "+path, testHost(t))
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

// Wrong settings of a service are refused by their keys, with what was expected.
func TestWrongSettingsOfServicesAreRefused(t *testing.T) {
	for _, tt := range []struct{ kind, settings, key, words string }{
		{"pagerduty", "{}", "routing_key", "missing; expected routing_key, routing_key_file, routing_key_env or routing_key_vault"},
		{"pagerduty", "{routing_key: a, routing_key_env: B}", "routing_key_env", "routing_key is given too"},
		{"pagerduty", "routing_key_file: /nowhere", "routing_key_file", "/nowhere"},
		{"teams", "{}", "url", "missing; expected url, url_file, url_env or url_vault"},
		{"ntfy", "topic: my topic", "topic", "is not valid; expected letters, digits, - and _, at most 64"},
		{"ntfy", "{topic: x, url: 'http://a.example'}", "url", "topic would be sent unencrypted"},
		{"azure_monitor", "{url: 'https://a.example', azure_identity: {client_id: x}}", "azure_identity.client_id",
			"not a client id"},
	} {
		wrongKey(t, tt.kind, tt.settings, tt.key, tt.words)
	}
}

// The address of a service may be given with what the service adds to it.
func TestTheAddressOfAServiceIsCompleted(t *testing.T) {
	for _, tt := range []struct{ base, added, want string }{
		{"https://a.example", "/v2/x", "https://a.example/v2/x"},
		{"https://a.example/", "/v2/x", "https://a.example/v2/x"},
		{"https://a.example/v2/x", "/v2/x", "https://a.example/v2/x"},
		{"https://a.example/in/front/", "/v2/x?a=b", "https://a.example/in/front/v2/x?a=b"},
		{"https://a.example/x?key=k", "?a=b&c=d", "https://a.example/x?key=k&a=b&c=d"},
		{"https://a.example/x?a=other", "?a=b", "https://a.example/x?a=other"},
		{"https://a.example/x", "", "https://a.example/x"},
	} {
		if got := joinPath(tt.base, tt.added); got != tt.want {
			t.Errorf("%s and %s make %s, want %s", tt.base, tt.added, got, tt.want)
		}
	}
}
