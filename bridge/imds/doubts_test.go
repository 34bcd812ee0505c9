package imds

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A document says two things about an event if it lists it with different content, in whatever order and however often,
// or with its EventId written in another way. The same content twice says one thing.
func TestADocumentContradictsItself(t *testing.T) {
	reboot := `{"EventId":"A","EventType":"Reboot","Resources":["vm-0"]}`
	terminate := `{"EventId":"a","EventType":"Terminate","Resources":["vm-0","vm-9"]}`
	other := `{"EventId":"B","EventType":"Freeze"}`
	for _, tt := range []struct {
		claim, body  string
		contradicted bool
	}{
		{"once", listing(reboot, other), false},
		{"the same twice", listing(reboot, other, reboot), false},
		{"the same in another form", listing(reboot, `{ "Resources": ["vm-0"], "EventId":"a", "EventType":"Reboot"}`), false},
		{"two contents", listing(terminate, reboot), true},
		{"two contents, the first again", listing(reboot, terminate, reboot), true},
		{"two contents, the last twice", listing(terminate, reboot, reboot), true},
		{"one has a field more", listing(reboot, strings.Replace(reboot, "{", `{"EventSource":"User",`, 1)), true},
		{"its EventId in braces, before", listing(`{"EventId":"{A}","EventType":"Terminate"}`, reboot), true},
		{"its EventId in braces, after", listing(reboot, `{"EventId":"{a}","EventType":"Terminate"}`), true},
		{"its EventId with a space", listing(other, reboot, other, `{"EventId":" A"}`), true},
		{"its EventId with a hyphen", listing(reboot, `{"EventId":"A-"}`), true},
		{"its EventId with an invisible character", listing(`{"EventId":"A\u200b"}`, reboot), true},
		{"its EventId with a line end", listing(`{"EventId":"A\n"}`, reboot), true},
		{"its EventId longer than is read", listing(`{"EventId":"A`+strings.Repeat("-", 1000)+`"}`, reboot), true},
		{"its EventId in two other ways", listing(`{"EventId":"(A)"}`, `{"EventId":"[A]"}`, reboot), true},
		{"an EventId that only begins like it", listing(reboot, `{"EventId":"A1"}`), false},
		{"a field twice, in one of two entries", listing(`{"EventId":"A","EventId":"A"}`, `{"EventId":"A"}`), true},
		{"colons in texts and in values",
			listing(`{"EventId":"A","Description":"\":{}: \\","Impact":{"a":1,"b":[{"c":2}]}}`), false},
		{"two lists of events", `{"Events":[` + terminate + `],"Events":[` + reboot + `]}`, true},
	} {
		d := decoded(t, tt.body)
		i := slices.IndexFunc(d.Events, func(e Event) bool { return e.ID == "A" })
		if i < 0 || d.Events[i].Contradicted != tt.contradicted {
			t.Errorf("%s: %+v, want contradicted %v", tt.claim, d.Events, tt.contradicted)
			continue
		}
		_, err := d.Confirm("A", d.Events[i].Digest())
		if errors.Is(err, ErrContradicted) != tt.contradicted || err == nil == tt.contradicted {
			t.Errorf("%s: the document confirms its event with %v", tt.claim, err)
		}
		if tt.contradicted && len(d.Problems) == 0 {
			t.Errorf("%s: the document has no problem", tt.claim)
		}
	}
	if d := decoded(t, `{"Events":[`+terminate+`],"Events":[]}`); !d.Partial {
		t.Error("of a document with two lists of events it counts that the last one lacks some")
	}
}

// An event is confirmed by what the document says of it, not by what the last one said.
func TestADocumentConfirmsOnlyWhatItLists(t *testing.T) {
	known := azureEvent(t, `{"EventId":"A","EventSource":"User","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}`)
	for entry, want := range map[string]error{
		string(known.Raw): nil,
		`{"NotBefore":"2016-09-19T18:29:47Z","EventId":"a","EventSource":"User"}`:                     nil,
		`{"EventId":"A","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}`:                                 ErrChanged,
		`{"EventId":"A","EventSource":"User","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT","New":null}`: ErrChanged,
		`{"EventId":"A","EventSource":"User","NotBefore":"Mon, 19 Sep 2016 18:29:47 CET"}`:            ErrChanged,
		`{"EventId":"B","EventSource":"User","NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"}`:            ErrNotListed,
		string(known.Raw) + `,{"EventType":"Terminate"}`:                                              ErrPartial,
	} {
		if _, err := decoded(t, listing(entry)).Confirm("A", known.Digest()); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", entry, err, want)
		}
	}
}

// Words are compared as ASCII but for case: what Unicode folds to a letter is not that letter.
func TestWordsAreComparedAsASCII(t *testing.T) {
	e := azureEvent(t, `{"EventId":"A","EventStatus":"scheduled","EventType":"REBOOT","EventSource":"uSER"}`)
	if e.Status != "Scheduled" || e.Type != "Reboot" || e.Source != "User" || e.Doubt != "" {
		t.Errorf("words in another case are read as %q, %q, %q", e.Status, e.Type, e.Source)
	}
	for _, odd := range []string{
		`{"EventId":"A","EventSource":"Uſer"}`, `{"EventId":"A","EventType":"` + "Terminate\u200b" + `"}`,
		`{"EventId":"A","EventStatus":"ſcheduled"}`, `{"EventId":"A","Resources":["vm-0","K-1"]}`,
		`{"EventId":"A","EventType":"Reboot\u0000"}`, `{"EventId":"A","ResourceType":"VirtualMachıne"}`,
		`{"EventId":"A","EventType":"Rebооt"}`,
	} {
		e := azureEvent(t, odd)
		known := e.Source == "User" || e.Type == "Terminate" || e.Status == "Scheduled"
		if known || !strings.Contains(e.Doubt, "has characters that Azure doesn't use") {
			t.Errorf("%s: %+v is not in doubt because of it", odd, e)
		}
	}
	for word, other := range map[string]string{
		"User": "Uſer", "vm-k": "vm-\u212a", "i": "ı", "a": "ab", "@": "`", "[": "{",
	} {
		if SameWord(word, other) {
			t.Errorf("%q passes for %q", other, word)
		}
	}
	if !SameWord("aZ_0ß", "Az_0ß") || Upper("az_ßſ") != "AZ_ßſ" {
		t.Error("the case of ASCII letters matters, or that of others does not")
	}
}

// Another reader may take a field for one that is read, by its case or by what it looks like, or the first of two for
// the last. Such an entry is read as it stands, and in doubt for good: also after a restart, when it comes from the
// disk.
func TestAFieldThatLooksLikeAnotherIsADoubt(t *testing.T) {
	const entry = `{"EventId":"A","EventType":"Reboot","Resources":["vm-0"],"EventSource":"User",`
	for more, doubt := range map[string]string{
		`"EventSource":"User"`:           `it has a field twice`,
		`"EventSourc\u0065":"Platform"`:  `it has a field twice`,
		`"EventId":"A"`:                  `it has a field twice`,
		`"eventsource":"Platform"`:       `it has a field "eventsource", which looks like EventSource`,
		`"EVENTSOURCE":"Platform"`:       `it has a field "EVENTSOURCE", which looks like EventSource`,
		`"eventtype":"Terminate"`:        `it has a field "eventtype", which looks like EventType`,
		`"resources":["vm-9"]`:           `it has a field "resources", which looks like Resources`,
		`"EventSource ":"Platform"`:      `it has a field "EventSource ", which looks like EventSource`,
		`"Event_Source":"Platform"`:      `it has a field "Event_Source", which looks like EventSource`,
		`"Eventſource":"Platform"`:       `it has a field "Event\u017fource", which looks like EventSource`,
		`"Event\u200bSource":"Platform"`: `it has a field "Event\u200bSource", which looks like EventSource`,
		`"Event\u0000Source":"Platform"`: `it has a field "Event\x00Source", which looks like EventSource`,
		"\"\ufeffEventSource\":\"User\"": `it has a field "\ufeffEventSource", which looks like EventSource`,
		`"EvеntSource":"Platform"`:       `it has a field "Ev\u0435ntSource" with characters that Azure doesn't use`,
		`"ＥventType":"Terminate"`:        `it has a field "\uff25ventType" with characters that Azure doesn't use`,
		`"eventıd":"B"`:                  `it has a field "event\u0131d", which looks like EventId`,
		`"\u212aind":1,"kind":2`:         `it has a field "\u212aind", which looks like kind`,
		`"New":1,"new":2`:                `it has a field "new", which looks like New`,
		`"notBefore":""`:                 `it has a field "notBefore", which looks like NotBefore`,
	} {
		d := decoded(t, listing(entry+more+"}", `{"EventId":"B"}`))
		if len(d.Events) != 2 || d.Partial || len(d.Problems) != 1 || !strings.Contains(d.Problems[0], doubt) {
			t.Fatalf("beside %s: %+v, want one problem, %s", more, d, doubt)
		}
		e := d.Events[0]
		_, err := d.Confirm("A", e.Digest())
		if e.Doubt != doubt || err == nil || err.Error() != doubt || azureEvent(t, string(e.Raw)).Doubt != doubt {
			t.Errorf("beside %s: %q, confirmed with %v, want %q", more, e.Doubt, err, doubt)
		}
		if e.Source != "User" && !strings.HasPrefix(more, `"EventSourc`) || e.Type != "Reboot" || d.Events[1].Doubt != "" {
			t.Errorf("beside %s the entry is read as %+v, and the other as %+v", more, e, d.Events[1])
		}
	}
	if e := azureEvent(t, `{"EventId":"A","eventsource":"User","resources":["vm-0"]}`); e.Doubt == "" {
		t.Error("fields that only look like those that are read are no doubt, if those are missing")
	}
	if e := azureEvent(t, entry+`"Eventsources":1,"odata.type":"x","New Field":{"new":2,"NEW":3}}`); e.Doubt != "" {
		t.Errorf("other fields are a doubt: %s", e.Doubt)
	}
}

// A field of the document that looks like one that is read puts all that it lists in doubt, and makes nothing vanish.
func TestAFieldOfTheDocumentThatLooksLikeAnotherIsADoubt(t *testing.T) {
	for _, more := range []string{
		`"events":[]`, `"Eventſ":[]`, `"Event\u200bs":[]`, `"Events ":[]`, `"Evеnts":[]`, `"documentIncarnation":9`,
	} {
		d := decoded(t, `{"DocumentIncarnation":1,"Events":[{"EventId":"A"}],`+more+`}`)
		_, err := d.Confirm("A", d.Events[0].Digest())
		if !d.Partial || len(d.Problems) != 1 || !errors.Is(err, ErrContradicted) {
			t.Errorf("beside %s: %+v, confirmed with %v", more, d, err)
		}
	}
}

// No event is Azure's whose EventId has other characters than letters, digits and hyphens. It is told, but in doubt.
func TestAnEventIDOfOtherCharactersIsADoubt(t *testing.T) {
	for id, odd := range map[string]bool{
		"602d9444-D2CD-49c7-8624-8643e7171297": false, "A": false, strings.Repeat("a-1", 100): false,
		"{602D9444-D2CD-49C7-8624-8643E7171297}": true, "602D9444 ": true, "602D9444\u200b": true, "６02D9444": true,
		"602D9444\\n": true, "602D_9444": true, "\\ud800A": true, "A/B": true, "ſ": true,
	} {
		d := decoded(t, listing(`{"EventId":"`+strings.ReplaceAll(id, `\\`, `\`)+`"}`))
		doubt := d.Events[0].Doubt
		if d.Partial || strings.Contains(doubt, "EventId") != odd || len(d.Problems) > 0 != odd {
			t.Errorf("%q: %+v, want a doubt: %v", id, d, odd)
		}
	}
}
