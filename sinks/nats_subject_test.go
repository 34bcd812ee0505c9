package sinks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// All machines that see a change of an Azure event give it one subject: by their scale set, by the set that
// cloudevents_source names, or else by the first machine that the event names, and never by the observer. Names that
// differ only in case are one.
func TestNATSSubjectIsTheSameFromEveryObserver(t *testing.T) {
	const id = natsFirst + "-scheduled"
	vm := func(name, group string) imds.Observer {
		return imds.Observer{
			Name: name, VMID: "id of " + name, SubscriptionID: "5D9B-44", ResourceGroup: group,
			ResourceID: "/subscriptions/5D9B-44/resourceGroups/" + group + "/providers/Microsoft.Compute/virtualMachines/" +
				name,
		}
	}
	inSet := func(name string) imds.Observer {
		o := vm(name, "rg")
		o.ScaleSet = "Web"
		return o
	}
	const availabilitySet = "https://management.azure.com/subscriptions/5D9B-44/resourceGroups/RG/providers/" +
		"Microsoft.Compute/availabilitySets/Front%20End"
	for name, tt := range map[string]struct {
		observers []imds.Observer
		resources []string
		source    string
		want      string
	}{
		"scale set": {
			[]imds.Observer{inSet("web_0"), inSet("web_1")}, []string{"web_1"}, "",
			"forewarn.events.5d9b-44.rg.web.Reboot.scheduled." + id,
		},
		"no set": {
			[]imds.Observer{vm("vm-0", "RG.One"), vm("vm-1", "rg.one"), vm("vm-2", "rg.one")}, []string{"VM-1", "vm-0"}, "",
			"forewarn.events.5d9b-44.rg_one.vm-1.Reboot.scheduled." + id,
		},
		"availability set in the settings": {
			[]imds.Observer{vm("vm-0", "RG"), vm("vm-1", "rg")}, []string{"vm-1"}, availabilitySet,
			"forewarn.events.5d9b-44.rg.front_end.Reboot.scheduled." + id,
		},
		"no machines named": {
			[]imds.Observer{vm("vm-0", "rg")}, nil, "", "forewarn.events.5d9b-44.rg.vm-0.Reboot.scheduled." + id,
		},
		"source of its own": {
			[]imds.Observer{vm("vm-0", "rg"), vm("vm-1", "rg")}, []string{"vm-1"}, "urn:my:set",
			"forewarn.events.5d9b-44.rg.vm-1.Reboot.scheduled." + id,
		},
		"nothing known": {[]imds.Observer{{}}, nil, "", "forewarn.events._._._.Reboot.scheduled." + id},
	} {
		for _, o := range tt.observers {
			e, err := imds.UnmarshalEvent([]byte(natsEvent(natsFirst, "Reboot", tt.resources...)))
			if err != nil {
				t.Fatal(err)
			}
			ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e},
				cloudevent.Circumstances{Observer: o, Source: tt.source, Time: monday, Incarnation: "1"})
			if err != nil {
				t.Fatal(err)
			}
			if got := natsSubjectOf(t, ce); got != tt.want {
				t.Errorf("%s, from %q: %s, want %s", name, o.Name, got, tt.want)
			}
		}
	}
}

// A change that repeats, and another change, differ in the subject.
func TestNATSSubjectEndsInTheID(t *testing.T) {
	raw := natsEvent(natsFirst, "Freeze", "vm-0")
	o := imds.Observer{Name: "vm-0"}
	for repeat, want := range []string{"-scheduled", "-scheduled-r2", "-scheduled-r3"} {
		got := natsSubjectOf(t, natsObserved(t, raw, imds.Scheduled, o, repeat))
		if want = "forewarn.events._._.vm-0.Freeze.scheduled." + natsFirst + want; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// What is about the bridge goes to subjects of its own, by the machine it runs on.
func TestNATSSubjectAboutTheBridge(t *testing.T) {
	o := imds.Observer{Name: "web_0", VMID: "13F5", SubscriptionID: "5d9b", ResourceGroup: "rg", ScaleSet: "web"}
	ce, err := cloudevent.WrapBridge(cloudevent.SinkBlocked, nil, o, monday)
	if err != nil {
		t.Fatal(err)
	}
	want := "forewarn.bridge.5d9b.rg.web.web_0.sink_blocked.13F5-sink-blocked-20261123T120000000000000Z"
	if got := natsSubjectOf(t, ce); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	ce.SetType("dev.forewarn.observer.silent")
	if got := natsSubjectOf(t, ce); !strings.HasPrefix(got, "forewarn.bridge.5d9b.rg.web.web_0.observer_silent.") {
		t.Errorf("of a relay: %s", got)
	}
}

func natsSubjectOf(t *testing.T, ce event.Event) string {
	t.Helper()
	s, err := openSubjects("", "", true)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := s.of(ce)
	if err != nil {
		t.Fatal(err)
	}
	return subject
}

// The subjects by default are ones for every sample, end in its id, and are taken by a stream made by default.
func TestNATSDefaultSubjectsFitEverySample(t *testing.T) {
	s, err := openSubjects("", "", true)
	if err != nil {
		t.Fatal(err)
	}
	all, err := cloudevent.Samples(false)
	if err != nil {
		t.Fatal(err)
	}
	for _, ce := range all {
		subject, err := s.of(ce)
		if err != nil {
			t.Fatal(err)
		}
		taken := slices.ContainsFunc(natsDefaultSubjects, func(pattern string) bool { return subjectMatches(pattern, subject) })
		if ce.Type() == cloudevent.BridgeHeartbeat {
			if taken {
				t.Errorf("a stream made by default takes %s, so heartbeats would fill it", subject)
			}
			continue
		}
		own := isOwn(subject, cloudevent.PlaceOf(ce)) && strings.HasSuffix(subject, "."+cloudevent.Token(ce.ID()))
		if !taken || !own || sanitised(subject) != subject {
			t.Errorf("no stream made by default takes %s, or a relay refuses it", subject)
		}
	}
}

// What a subject's template sees is what the docs of the fields say, and the same with every attempt.
func TestNATSSubjectFieldsAreDocumented(t *testing.T) {
	for _, d := range deliveries(t) {
		got := slices.Sorted(maps.Keys(subjectFields(d.Event)))
		want := slices.Sorted(maps.Keys(cloudevent.Fields(d.Event)))
		for name, f := range natsFields {
			if want = append(want, name); f.Doc == "" {
				t.Errorf("%s has no docs", name)
			}
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("a template sees %q, want %q", got, want)
		}
	}
}

// Long texts are cut, and stay two when they were two.
func TestNATSLongTokensStayApart(t *testing.T) {
	long := strings.Repeat("x", 1000)
	one, two := cloudevent.Token(long+"1"), cloudevent.Token(long+"2")
	if len(one) != cloudevent.MaxToken || len(two) != cloudevent.MaxToken || one == two {
		t.Errorf("tokens %q and %q, want two of %d", one, two, cloudevent.MaxToken)
	}
	if whole := strings.Repeat("x", cloudevent.MaxToken); cloudevent.Token(whole) != whole {
		t.Errorf("a text of %d is cut", cloudevent.MaxToken)
	}
}

// Whatever Azure, the metadata service or a resource's owner writes, arrives as it is in the data, in headers that hold
// to the specification, under a subject of harmless tokens.
func TestNATSSendsBadInput(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, nil)
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
	for i, bad := range []string{
		`"quotes" & 'more'`, "two\r\nlines\nNats-Msg-Id: forged", "<script>alert(1)</script>", "\u202Eright to left\u2066",
		"forewarn.>.*. ",
		strings.Repeat("x", 100<<10), "\xff\xfe invalid", "\x00\x1b[31m", "Größe 🚀", "%41", "",
	} {
		raw := fmt.Sprintf(`{"EventId":"%08d-D2CD-49C7-8624-8643E7171297","EventStatus":"Scheduled","EventType":%s,`+
			`"Resources":[%s],"Description":%s}`,
			i, mustCompact(t, bad), mustCompact(t, bad), mustCompact(t, bad))
		name := bad[:min(len(bad), 1000)] // it stands in the source, and the server takes no header over 64 KiB
		ce := natsObserved(t, raw, imds.Scheduled, imds.Observer{Name: name, ResourceGroup: name, SubscriptionID: name}, 0)
		answer, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: ce, Attempt: 1}})
		if err != nil {
			t.Errorf("%.40q: Deliver = %v", bad, err)
			continue
		}
		stored := natsStored(t, stream)
		msg := stored[len(stored)-1]
		if len(stored) != i+1 || string(msg.Data) != string(ce.Data()) {
			t.Fatalf("%.40q: %s, data\n%.200s\nwant\n%.200s", bad, answer.Status, msg.Data, ce.Data())
		}
		natsHarmless(t, msg.Subject)
		if got := len(strings.Split(msg.Subject, ".")); got != 8 {
			t.Errorf("%.40q: subject %s has %d tokens, want 8", bad, msg.Subject, got)
		}
		all, err := attributes(ce)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			values := msg.Header.Values("ce-" + a.name)
			if len(values) != 1 || decodeAttribute(t, values[0]) != a.value {
				t.Errorf("%.40q: ce-%s is %.80q, want %.80q", bad, a.name, values, a.value)
			}
		}
		if got := msg.Header.Values("Nats-Msg-Id"); len(got) != 1 || got[0] != ce.ID() {
			t.Errorf("%.40q: Nats-Msg-Id is %q, want %q", bad, got, ce.ID())
		}
	}
}

// natsHarmless checks that every token of a subject is one.
func natsHarmless(t *testing.T, subject string) {
	t.Helper()
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || len(token) > cloudevent.MaxToken ||
			strings.Trim(token, "0123456789_-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			t.Errorf("%q of subject %.200q is no token", token, subject)
		}
	}
}

// Any text becomes one token, which stays as it is, and texts that are tokens already are left alone.
func FuzzNATSToken(f *testing.F) {
	for _, seed := range []string{"", "vm-0", "a.b", "*", ">", "a b", "\n", "\xff", "Ü", "$JS", strings.Repeat("é", 91),
		strings.Repeat("x", 90)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token := cloudevent.Token(s)
		natsHarmless(t, token)
		if strings.Contains(token, ".") || cloudevent.Token(token) != token {
			t.Errorf("cloudevent.Token(%q) = %q, which is not one that stays", s, token)
		}
		fit := strings.Trim(s, "0123456789_-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
		if fit && s != "" && len(s) <= cloudevent.MaxToken && token != s {
			t.Errorf("cloudevent.Token(%q) = %q, want it unchanged", s, token)
		}
	})
}

// The subject's template may stand in a file, as any editor leaves it.
func TestNATSSubjectFromAFile(t *testing.T) {
	s := mustOpen(t, "nats",
		"url: nats.example.com\nsubject_file: "+writeFile(t, "subject", "azure.{{.change}}.{{.id}}\n"), testHost(t))
	msg, err := s.(*natsSink).message(deliveries(t)[0])
	if want := "azure.scheduled." + deliveries(t)[0].Event.ID(); err != nil || msg.Subject != want {
		t.Errorf("the subject is %q, %v; want %q", msg.Subject, err, want)
	}
}

// Settings that cannot be meant are refused at their key, with what is expected.
func TestNATSRefusesWrongSettings(t *testing.T) {
	seed, _, _ := natsSeed(t)
	const at = "url: nats.example.com\n"
	for settings, want := range map[string][2]string{
		"mode: binary":                                        {"url", "missing"},
		"url: []":                                             {"url", "missing"},
		"url: [nats://a, 'http://b']":                         {"url.1", "expected one such as nats://"},
		"url: ''":                                             {"url", "is empty"},
		"url: nats://a/b":                                     {"url", "is not the URL of a NATS server"},
		"url_env: NOWHERE":                                    {"url_env", "is not set"},
		at + "url_env: X":                                     {"url_env", "only one of them"},
		"url: [nats://a, nats://b]\nurl_file: X":              {"url_file", "only one of them"},
		at + "core: true\nonce: true":                         {"once", "expected one or the other"},
		at + "core: true\nprovision: {stream: X}":             {"provision", "expected one or the other"},
		at + "subject: '{{.id'":                               {"subject", "unclosed action"},
		at + "subject: '{{template \"x\"}}'":                  {"subject", "with a sample CloudEvent"},
		at + "subject: forewarn.{{.change}}":                  {"subject", "does not end in the CloudEvent's id"},
		at + "subject: forewarn.{{.id}}.{{.change}}":          {"subject", "does not end in the CloudEvent's id"},
		at + "subject: forewarn.x{{.id}}":                     {"subject", "does not end in the CloudEvent's id"},
		at + "subject: forewarn.*.{{.id}}":                    {"subject", "is not a subject"},
		at + "subject: forewarn..{{.id}}":                     {"subject", "is not a subject"},
		at + "subject: forewarn.{{.nothing}}.{{.id}}":         {"subject", "unknown name"},
		at + "subject: a\nsubject_file: b":                    {"subject_file", "only one of them"},
		at + "subject: forewarn.events.{{.observer}}.{{.id}}": {"subject", "a relay would refuse it"},
		at + "subject: forewarn.bridge.{{.subscription}}.{{.resourcegroup}}.{{.set}}.{{.id}}": {"subject",
			"a relay would refuse it"},
		at + "subject_file: " + writeFile(t, "none", "\n"): {"subject_file", "is empty"},
		at + "subject_file: " +
			writeFile(t, "loose", "a.{{.change}}"): {"subject_file", "does not end in the CloudEvent's id"},
		at + "token: x\nnkey_file: " + seed:                        {"token", "nkey_file holds credentials too"},
		"url: nats://u:p@h\ntoken: x":                              {"token", "url holds credentials too"},
		at + "username: x":                                         {"username", "needs password"},
		"url: tls://h\npassword: x":                                {"password", "needs username"},
		at + "token: x\ntoken_env: X":                              {"token_env", "only one of them"},
		at + "creds_file: " + seed:                                 {"creds_file", "has no user JWT"},
		at + "creds_file: /nowhere":                                {"creds_file", systemtest.NoSuchFile.Error()},
		at + "nkey_file: " + writeFile(t, "nkey", "hello"):         {"nkey_file", "holds no seed"},
		at + "tls: {cert_file: x}":                                 {"tls.cert_file", "needs key_file"},
		at + "provision: {}":                                       {"provision.stream", "expected A-Z"},
		at + "provision: {stream: a.b}":                            {"provision.stream", "expected A-Z"},
		at + "provision: {stream: X, max_age: -1s}":                {"provision.max_age", "expected a time"},
		at + "provision: {stream: X, max_age: 1h, duplicates: 2h}": {"provision.duplicates", "no longer than max_age"},
		at + "provision: {stream: X, subjects: [forewarn.events.>]}": {"provision.subjects",
			"do not take forewarn.bridge."},
		at + "subject: vms.{{.id}}\nprovision: {stream: X}": {"provision.subjects",
			"such as [vms.>], because subject is given"},
		at + "core: true\ndomain: hub": {"domain", "expected one or the other"},
		at + "domain: a.b":             {"domain", "expected A-Z"},
		at + "inbox_prefix: _INBOX.>":  {"inbox_prefix", "is not a subject"},
		at + "inbox_prefix: _INBOX.":   {"inbox_prefix", "is not a subject"},
	} {
		wrongKey(t, "nats", settings, want[0], want[1])
	}
}

// A stream that is made for a subject of one's own takes what the subject begins with. A define is no part of it.
func TestNATSStreamTakesWhatASubjectBeginsWith(t *testing.T) {
	for subject, want := range map[string]string{
		`own.{{.id}}`:            "own.>",
		`own.vm-{{.vm}}.{{.id}}`: "own.>",
		`{{define "x"}}vm-{{.vm}}{{end}}own.{{template "x" .}}.{{.id}}`: "own.>",
		`{{.vm}}.{{.id}}`: ">",
		`own.events`:      "own.events",
	} {
		s, err := openSubjects(subject, "", false)
		if got := s.patterns(); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v, %v; want %s", subject, got, err, want)
		}
	}
}

// A stream's subject takes what NATS says that it takes.
func TestNATSSubjectsWithWildcards(t *testing.T) {
	for _, tt := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.b.c", false}, {"a.b.c", "a.b", false}, {"a.*", "a.b", true}, {"a.*", "a", false},
		{"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {">", "a", true},
		{"a.>.c", "a.b.c", false},
	} {
		if got := subjectMatches(tt.pattern, tt.subject); got != tt.want {
			t.Errorf("subjectMatches(%s, %s) = %v, want %v", tt.pattern, tt.subject, got, tt.want)
		}
	}
}

// check says that a relay can't tell who speaks on a subject of one's own; on the default ones, and those that begin
// like them, it can.
func TestASubjectOfOnesOwnSaysNotWhoSpeaks(t *testing.T) {
	for subject, noted := range map[string]bool{
		"": false, "subject: 'ops.{{.id}}'": true,
		"subject: 'forewarn.events.{{.subscription}}.{{.resourcegroup}}.{{.set}}.{{.id}}'": false,
	} {
		opened, err := open("nats", "url: nats://127.0.0.1\n"+subject, testHost(t))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(opened.Notes, " "), "can't check who publishes"); got != noted {
			t.Errorf("with %q the notes are %q", subject, opened.Notes)
		}
		closeSink(opened.Sink)
	}
}
