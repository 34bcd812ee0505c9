package imds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"forewarn/bridge/systemtest"
)

// captured returns a document of testdata/documents, with the current api-version.
func captured(t *testing.T, name string) Document {
	t.Helper()
	body, err := os.ReadFile("testdata/documents/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	d := decoded(t, string(body))
	d.APIVersion = DefaultAPIVersion
	return d
}

// inWords describes changes, one per line: the kind, the event, the previous status and the fields that differ.
func inWords(changes []Change) []string {
	list := []string{}
	for _, c := range changes {
		s := string(c.Kind) + " " + c.Event.ID
		if c.Previous != nil {
			s += " was " + c.Previous.Status
		}
		if c.Fields != nil {
			s += ": " + strings.Join(c.Fields, ", ")
		}
		list = append(list, s)
	}
	return list
}

func wantChanges(t *testing.T, got []Change, want ...string) {
	t.Helper()
	if !slices.Equal(inWords(got), want) && len(got)+len(want) > 0 {
		t.Errorf("got  %s\nwant %s", strings.Join(inWords(got), "\n     "), strings.Join(want, "\n     "))
	}
}

// Sequences of documents that were captured from the real service give the expected changes.
func TestCapturedSequencesGiveTheirChanges(t *testing.T) {
	const freeze, spot = "f02-freeze-live-migration-", "f04-freeze-started-spot"
	for _, tt := range []struct {
		claim     string
		documents []string
		want      []string
	}{
		{"a user's reboot whose beginning nobody saw",
			[]string{"f01-reboot-user-flatcar-1", "f01-reboot-user-flatcar-2", "f01-reboot-user-flatcar-3"}, []string{
				"scheduled 4CAEA225-A741-474D-A72E-428C86FCD853",
				"vanished 4CAEA225-A741-474D-A72E-428C86FCD853",
			}},
		{"a live migration", []string{freeze + "1", freeze + "2", freeze + "3", freeze + "4"}, []string{
			"scheduled C7061BAC-AFDC-4513-B24B-AA5F13A16123",
			"started C7061BAC-AFDC-4513-B24B-AA5F13A16123 was Scheduled: EventStatus, NotBefore",
			"vanished C7061BAC-AFDC-4513-B24B-AA5F13A16123",
		}},
		{"one event gone and another there in one document", []string{"f03-aks-vmss-1", "f03-aks-vmss-2"}, []string{
			"started D3D9DFEC-1DCA-4B49-97AA-780E02F45DFE",
			"scheduled FA298C74-AE95-4154-8EBF-303EED382DB6",
			"vanished D3D9DFEC-1DCA-4B49-97AA-780E02F45DFE",
		}},
		{"the same document again and again", []string{spot, spot, spot}, []string{
			"started 32504B35-D66B-4D0A-8C64-C9DDBBD0EA13",
		}},
		{"two reboots at once", []string{"f01-reboot-user-flatcar-1", "f10-two-reboots-six-fields"}, []string{
			"scheduled 28512AF7-C957-4500-9BC4-842D6FB531E4",
			"scheduled A626E37F-793E-44E1-89B5-99AE0B96044C",
		}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			var known []Event
			var told []Change
			for _, name := range tt.documents {
				d := captured(t, name)
				told = append(told, Diff(known, d)...)
				known = d.Events
			}
			wantChanges(t, told, tt.want...)
		})
	}
}

// An event that vanishes while the document has a new event of the same type for one of its VMs is marked as Replaced
// and comes first.
func TestReplacedEventsComeFirst(t *testing.T) {
	event := func(id, status, typ, resources string) string {
		return fmt.Sprintf(`{"EventId":%q,"EventStatus":%q,"EventType":%q,"Resources":[%s]}`, id, status, typ, resources)
	}
	a, x := event("A", "Scheduled", "Reboot", `"vm-0","_vm-1"`), event("X", "Scheduled", "Freeze", `"vm-0"`)
	for _, tt := range []struct {
		claim string
		now   []string
		want  []string
	}{
		{"the same VM", []string{x, event("B", "Started", "reboot", `"VM-1"`)}, []string{"vanished A", "started B"}},
		{"announced anew", []string{x, event("B", "Scheduled", "Reboot", `"vm-0"`)}, []string{"vanished A", "scheduled B"}},
		{"another VM", []string{x, event("B", "Started", "Reboot", `"vm-2"`)}, []string{"started B", "vanished A"}},
		{"another type", []string{x, event("B", "Started", "Freeze", `"vm-0"`)}, []string{"started B", "vanished A"}},
		{"one that is not new", []string{event("X", "Scheduled", "Reboot", `"vm-0"`)},
			[]string{"updated X was Scheduled: EventType", "vanished A"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			changes := Diff(decoded(t, listing(a, x)).Events, decoded(t, listing(tt.now...)))
			wantChanges(t, changes, tt.want...)
			for n, c := range changes {
				if c.Replaced != (n == 0 && c.Kind == Vanished) {
					t.Errorf("%s of %s: replaced is %v", c.Kind, c.Event.ID, c.Replaced)
				}
			}
		})
	}
}

// These are the ways in which one event can differ between two documents.
func TestChangeOfOneEvent(t *testing.T) {
	const start = "Mon, 11 Apr 2022 22:26:58 GMT"
	const rest = `"Description":"d","DurationInSeconds":5`
	const scheduled = `{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot","Resources":["vm-0","vm-1"],` +
		`"NotBefore":"` + start + `",` + rest + `}`
	const started = `{"EventId":"A","EventStatus":"Started","EventType":"Reboot","Resources":["vm-0","vm-1"],` +
		`"NotBefore":"",` + rest + `}`
	const shuffled = `{"NotBefore":"` + start + `","EventId":"A","DurationInSeconds":5,"Description":"d",` +
		`"Resources":["vm-0","vm-1"],"EventType":"Reboot","EventStatus":"Scheduled"}`
	with := func(entry string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(entry) }
	impact := func(value string) string { return with(scheduled, `{`, `{"Impact":`+value+`,`) }
	advisory := with(scheduled, "Scheduled", "Advisory")
	for _, tt := range []struct {
		claim       string
		before, now string
		want        string
	}{
		{"first seen Scheduled is scheduled", "", scheduled, "scheduled A"},
		{"first seen Started is started alone", "", started, "started A"},
		{"first seen with an unknown status is scheduled", "", advisory, "scheduled A"},
		{"first seen without a status is scheduled", "", `{"EventId":"A"}`, "scheduled A"},
		{"no longer listed is vanished", scheduled, "", "vanished A"},
		{"no longer listed is vanished after Started too", started, "", "vanished A"},
		{"nothing new is nothing", scheduled, scheduled, ""},

		{"Scheduled, then Started is started", scheduled, started, "started A was Scheduled: EventStatus, NotBefore"},
		{"Scheduled, then Started is started even if other fields moved",
			scheduled, with(started, `,"vm-1"`, "", `:5`, `:9`),
			"started A was Scheduled: DurationInSeconds, EventStatus, NotBefore, Resources"},
		{"Advisory, then Started is started", advisory, started, "started A was Advisory: EventStatus, NotBefore"},
		{"Started, then Scheduled is updated", started, scheduled, "updated A was Started: EventStatus, NotBefore"},
		{"Started with other fields is updated", started, with(started, `:5`, `:9`),
			"updated A was Started: DurationInSeconds"},
		{"an unknown status is updated", scheduled, with(scheduled, "Scheduled", "Paused"),
			"updated A was Scheduled: EventStatus"},
		{"a status that is gone is updated", scheduled, with(scheduled, `"EventStatus":"Scheduled",`, ""),
			"updated A was Scheduled: EventStatus"},

		{"a moved NotBefore is one updated", scheduled, with(scheduled, "22:26", "22:41"),
			"updated A was Scheduled: NotBefore"},
		{"a NotBefore that is gone is updated", scheduled, with(scheduled, start, ""), "updated A was Scheduled: NotBefore"},
		{"two fields are one updated", scheduled, with(scheduled, "22:26", "22:41", `,"vm-1"`, ""),
			"updated A was Scheduled: NotBefore, Resources"},
		{"the order of Resources counts, because the first leads",
			scheduled, with(scheduled, `"vm-0","vm-1"`, `"vm-1","vm-0"`), "updated A was Scheduled: Resources"},
		{"another type is updated", scheduled, with(scheduled, "Reboot", "Redeploy"), "updated A was Scheduled: EventType"},
		{"a new unknown field is updated", scheduled, impact(`{"x":1}`), "updated A was Scheduled: Impact"},
		{"an unknown field that is gone is updated", impact(`null`), scheduled, "updated A was Scheduled: Impact"},
		{"a change deep in an unknown field is updated", impact(`{"x":[1]}`), impact(`{"x":[2]}`),
			"updated A was Scheduled: Impact"},
		{"a NotBefore that cannot be read counts as it is written",
			with(scheduled, "GMT", "PST"), with(scheduled, "22:26:58 GMT", "22:41:58 PST"),
			"updated A was Scheduled: NotBefore"},

		{"EventId in another case is the same event", scheduled, with(scheduled, `"A"`, `"a"`), ""},
		{"NotBefore as ISO 8601 is no change", scheduled, with(scheduled, start, "2022-04-11T22:26:58Z"), ""},
		{"NotBefore in another zone is no change", scheduled, with(scheduled, start, "2022-04-12T00:26:58+02:00"), ""},
		{"NotBefore with another weekday is no change", scheduled, with(scheduled, "Mon", "Fri"), ""},
		{"another order of the keys is no change", scheduled, shuffled, ""},
		{"another order of keys deep inside is no change", impact(`{"x":1,"y":2}`), impact(`{"y":2,"x":1}`), ""},
		{"other escapes are no change", with(scheduled, `"d"`, `"<ü>"`), with(scheduled, `"d"`, `"\u003c\u00fc\u003e"`), ""},
		{"white space is no change", scheduled, with(scheduled, `,"`, ",\r\n  \"", `":`, `" : `), ""},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			document := func(entry string) Document {
				d := Document{}
				if entry != "" {
					d = decoded(t, listing(entry))
				}
				d.APIVersion = DefaultAPIVersion
				return d
			}
			var want []string
			if tt.want != "" {
				want = []string{tt.want}
			}
			wantChanges(t, Diff(document(tt.before).Events, document(tt.now)), want...)
		})
	}
}

// The incarnation proves nothing: documents with the same one may differ, and equal ones may have different ones.
func TestIncarnationIsIgnored(t *testing.T) {
	known := decoded(t, listing(`{"EventId":"A"}`)).Events
	for _, incarnation := range []string{"", "7", "8", "1", "-3", "seven"} {
		same, other := decoded(t, listing(`{"EventId":"A"}`)), decoded(t, listing(`{"EventId":"B"}`))
		same.Incarnation, other.Incarnation = incarnation, incarnation
		wantChanges(t, Diff(known, same))
		wantChanges(t, Diff(known, other), "scheduled B", "vanished A")
	}
}

// Changes of listed events come in the order of the document, then vanished events in the order of the known ones.
func TestChangesComeInOrder(t *testing.T) {
	known := decoded(t, listing(`{"EventId":"Z"}`, `{"EventId":"M","X":1}`, `{"EventId":"B"}`)).Events
	now := decoded(t, listing(`{"EventId":"Y"}`, `{"EventId":"M","X":2}`, `{"EventId":"C","EventStatus":"Started"}`))
	wantChanges(t, Diff(known, now), "scheduled Y", "updated M was : X", "started C", "vanished Z", "vanished B")
}

// A partial document makes no event vanish. Its other changes are reported.
func TestPartialDocumentMakesNothingVanish(t *testing.T) {
	known := decoded(t, listing(`{"EventId":"A"}`, `{"EventId":"B","X":1}`)).Events
	now := decoded(t, listing(`{"EventId":"B","X":2}`, `{"EventType":"Reboot"}`, `{"EventId":"C"}`))
	wantChanges(t, Diff(known, now), "updated B was : X", "scheduled C")
}

// Another api-version shows other fields and types. What it cannot show has neither vanished nor changed, in whatever
// order the versions come.
func TestOtherAPIVersionMakesNoChange(t *testing.T) {
	const six = `{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot","NotBefore":"x"}`
	const middle = `{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot","NotBefore":"x","Description":"d",` +
		`"EventSource":"User"}`
	const full = `{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot","NotBefore":"x","Description":"d",` +
		`"EventSource":"User","DurationInSeconds":9}`
	const preempt, terminate = `{"EventId":"P","EventType":"Preempt"}`, `{"EventId":"T","EventType":"Terminate"}`
	with := func(entry, was, is string) string { return strings.Replace(entry, was, is, 1) }
	for _, tt := range []struct {
		claim string
		known string
		asked string // api-version
		now   string
		want  []string
	}{
		{"an older version lacks fields", full, "2017-08-01", six, nil},
		{"a newer version has more fields", six, "2020-07-01", full, nil},
		{"one field more or less", full, "2019-08-01", middle, nil},
		{"what both sides have is compared", full, "2019-08-01", with(middle, `"d"`, `"e"`),
			[]string{"updated A was Scheduled: Description"}},
		{"what every version has is compared", full, "2017-08-01", with(six, `"x"`, `"y"`),
			[]string{"updated A was Scheduled: NotBefore"}},
		{"a beginning is told whatever the version", full, "2017-08-01", with(six, "Scheduled", "Started"),
			[]string{"started A was Scheduled: EventStatus"}},
		{"a field of no version is compared", full, "2017-08-01", with(six, `{`, `{"New":1,`),
			[]string{"updated A was Scheduled: New"}},

		{"2017-08-01 shows neither Preempt nor Terminate", full + "," + preempt + "," + terminate, "2017-08-01", "",
			[]string{"vanished A"}},
		{"2017-11-01 shows Preempt", preempt + "," + terminate, "2017-11-01", "", []string{"vanished P"}},
		{"2019-01-01 shows both", preempt + "," + terminate, "2019-01-01", "", []string{"vanished P", "vanished T"}},
		{"a type of no version vanishes from every one", `{"EventId":"N","EventType":"New"}`, "2017-08-01", "",
			[]string{"vanished N"}},
		{"a version that is not known shows all", preempt, "", "", []string{"vanished P"}},
		{"a version before the first counts as the oldest", preempt + "," + full, "2017-03-01", "", []string{"vanished A"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			now := decoded(t, listing(tt.now))
			now.APIVersion = tt.asked
			wantChanges(t, Diff(decoded(t, listing(tt.known)).Events, now), tt.want...)
		})
	}
}

// wantTurns checks that the changes between two documents, applied to the events of the first, give those of the
// second, except for fields that the api-version decides.
func wantTurns(t *testing.T, old, now Document) {
	t.Helper()
	events := map[string]Event{} // that a receiver knows
	for _, e := range old.Events {
		events[e.ID] = e
	}
	changes := Diff(old.Events, now)
	told := map[string]bool{}
	for _, c := range changes {
		wantValidChange(t, c, old.Events)
		if told[c.Event.ID] {
			t.Fatalf("two changes of %s in one document: %q", c.Event.ID, inWords(changes))
		}
		told[c.Event.ID] = true
		events[c.Event.ID] = c.Event
		if c.Kind == Vanished {
			delete(events, c.Event.ID)
		}
	}
	for _, e := range now.Events {
		if got, want := meaning(t, events[e.ID]), meaning(t, e); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s is %v, want %v", e.ID, got, want)
		}
	}
	if !now.Partial && len(events) != len(now.Events) {
		t.Fatalf("from %v to %v: %d events, want %d", old, now, len(events), len(now.Events))
	}
	wantChanges(t, Diff(now.Events, now))
}

// meaning returns the content of an event, independent of its formatting and of the api-version.
func meaning(t *testing.T, e Event) (m map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(e.Raw))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%s: %v", e.Raw, err)
	}
	m["EventId"] = e.ID
	if !e.NotBefore.IsZero() {
		m["NotBefore"] = e.NotBefore
	}
	maps.DeleteFunc(m, func(field string, _ any) bool { return firstVersions[field] != "" })
	return m
}

// The changes between two documents turn one into the other. The seed is fixed.
func TestChangesTurnOneDocumentIntoTheOther(t *testing.T) {
	systemtest.Alone(t)
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	pool := map[string][]Event{} // versions of events, by ID
	for id := range 8 {
		for range 40 {
			fields := []string{fmt.Sprintf(`"EventId":"%s%d"`, pick("e", "E"), id)}
			for _, f := range []string{
				`"EventStatus":` + pick(`"Scheduled"`, `"Scheduled"`, `"Started"`, `"Started"`, `"Advisory"`),
				`"EventType":` + pick(`"Reboot"`, `"Freeze"`, `"Preempt"`, `"New"`, `7`),
				`"Resources":` + pick(`["a"]`, `["a","b"]`, `["b","a"]`, `[]`, `null`),
				`"NotBefore":` + pick(`"Mon, 11 Apr 2022 22:26:58 GMT"`, `"2022-04-11T22:26:58Z"`,
					`"Mon, 11 Apr 2022 22:41:58 GMT"`, `""`, `"soon"`),
				`"Impact":` + pick(`{"x":1,"y":2}`, `{"y":2,"x":1}`, `[]`),
			} {
				if r.IntN(5) > 0 {
					fields = append(fields, f)
				}
			}
			r.Shuffle(len(fields), reflect.Swapper(fields))
			e := azureEvent(t, "{"+strings.Join(fields, ",")+"}")
			pool[e.ID] = append(pool[e.ID], e)
		}
	}
	ids := slices.Sorted(maps.Keys(pool))
	document := func() Document {
		d := Document{Incarnation: strconv.Itoa(r.IntN(3)), APIVersion: DefaultAPIVersion, Partial: r.IntN(10) == 0}
		for _, i := range r.Perm(len(ids))[:r.IntN(len(ids)+1)] {
			d.Events = append(d.Events, pool[ids[i]][r.IntN(40)])
		}
		return d
	}
	for range 5_000 {
		wantTurns(t, document(), document())
	}
}

// wantValidChange checks what must be true of every change from the known events.
func wantValidChange(t *testing.T, c Change, known []Event) {
	t.Helper()
	i := slices.IndexFunc(known, func(e Event) bool { return e.ID == c.Event.ID })
	begun := c.Event.Status == StatusStarted
	ok := false
	switch c.Kind {
	case Scheduled:
		ok = i < 0 && !begun && c.Previous == nil && c.Fields == nil
	case Started:
		ok = begun && (i < 0 && c.Previous == nil && c.Fields == nil ||
			i >= 0 && known[i].Status != StatusStarted && c.Previous != nil && slices.Contains(c.Fields, "EventStatus"))
	case Updated:
		ok = i >= 0 && c.Previous != nil && len(c.Fields) > 0 && (!begun || known[i].Status == StatusStarted)
	case Vanished:
		ok = i >= 0 && c.Previous == nil && c.Fields == nil && string(c.Event.Raw) == string(known[i].Raw)
	}
	if ok && c.Previous != nil {
		ok = string(c.Previous.Raw) == string(known[i].Raw) && slices.IsSorted(c.Fields)
	}
	if !ok {
		t.Fatalf("%q is not so: known %d, now %s", inWords([]Change{c}), i, c.Event.Raw)
	}
}

// So do those between any two documents.
func FuzzDiff(f *testing.F) {
	for before, after := range map[string]string{
		listing(`{"EventId":"A","NotBefore":"x"}`, `{"EventId":"B"}`): listing(`{"EventId":"a"}`, `{"EventId":"C"}`),
		listing(`{"EventId":"A","X":{"a":1,"b":[1e2]}}`):              listing(`{"X":{"b":[1e2],"a":1},"EventId":"A"}`),
		listing(`{"EventId":"A","Description":"d"}`, `{}`):            listing(`{"EventId":"A"}`, `7`),
	} {
		f.Add([]byte(before), []byte(after))
	}
	f.Fuzz(func(t *testing.T, before, after []byte) {
		old, err := DecodeDocument(before)
		if err != nil {
			return
		}
		now, err := DecodeDocument(after)
		if err != nil {
			return
		}
		wantTurns(t, old, now)
	})
}

// Approvals and reminders are not from Azure.
func TestApprovalsAndRemindersAreNotFromAzure(t *testing.T) {
	for kind, want := range map[ChangeKind]bool{
		Scheduled: true, Updated: true, Started: true, Vanished: true, Approved: false, Reminder: false,
	} {
		if got := kind.OfAzure(); got != want {
			t.Errorf("%s is of Azure: %v, want %v", kind, got, want)
		}
	}
}

// The time for an event is to be the same however many there are.
func BenchmarkDiff(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		for claim, changed := range map[string]int{"unchanged": 0, "changed": n} {
			old, now := decoded(b, manyEvents(n, 0)), decoded(b, manyEvents(n, changed))
			b.Run(fmt.Sprintf("%d/%s", n, claim), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if got := len(Diff(old.Events, now)); got != changed {
						b.Fatalf("%d changes, want %d", got, changed)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/event")
			})
		}
	}
}
