package imds

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A Document is one valid answer of the Scheduled Events endpoint.
type Document struct {
	// Incarnation is the DocumentIncarnation as text; "" if there is none. Compare it with != only, because Azure restarts
	// it.
	Incarnation string
	Events      []Event // in Azure's order, every ID once
	// Partial means that an entry's EventId could not be read, that there were too many entries, or that a field of the
	// document stands in it twice or in two spellings. A partial document must not make events vanish.
	Partial bool
	// Problems describes what could not be understood, one sentence each; at most 100, and one that says there are more.
	Problems []string
	// APIVersion is the api-version of the request; it limits the fields and types in the document.
	APIVersion string
}

// An Event is one entry of a document. The typed fields hold what could be read; Raw is what Azure sent.
type Event struct {
	// ID is the EventId in upper case. Azure sends GUIDs; any other text becomes a token of [A-Z0-9-] with a hash of the
	// whole text.
	ID           string
	Status       string // Scheduled, Started, or whatever Azure sent; like Type and Source spelled as Azure documents it
	Type         string // Freeze, Reboot, Redeploy, Preempt, Terminate, or whatever Azure sent
	ResourceType string
	Resources    []string  // Azure VM names, never host names; without the one underscore that preview versions put before them
	NotBefore    time.Time // UTC; zero when there is none or it could not be read
	Description  string
	Source       string // Platform, User; "" when Azure did not send it
	Duration     int    // expected interruption in seconds; -1 if unknown
	// Doubt is why the event must not be approved, whatever it says: Azure would not write it so, and another reader may
	// take it for something else. "" for no doubt.
	Doubt string
	// Unclear says of a field that it can't be understood, by its type or its form, and why; "" if all can. No rule may
	// approve the event. A person who sees it may.
	Unclear string
	// Contradicted means that the document says two things about the event: it lists it more than once, with different
	// content or with its EventId written in another way, or the document itself has a field twice or in two spellings. The
	// last one counts, but nothing is approved by it.
	Contradicted bool
	// Raw is the entry as Azure sent it, unknown fields included, as compact JSON in valid UTF-8.
	Raw json.RawMessage
}

// errNoDocument is wrapped by the errors of DecodeDocument for a body that is not a Scheduled Events document.
var errNoDocument = errors.New("not a scheduled events document")

// Bounds of a document.
const (
	MaxEvents      = 10_000 // events read from a document, and events that may be open
	maxIncarnation = 64     // characters; a longer DocumentIncarnation is ignored
	maxProblems    = 100    // described problems
)

// errNullEvents marks a document whose Events is null: it means no events if the next poll confirms it.
var errNullEvents = errors.New("events is null")

// DecodeDocument decodes the body of an answer, event by event: a malformed event does not affect the others, and is
// kept as far as it can be read. DecodeDocument fails with errNoDocument only if the body as a whole is not a
// document: broken JSON, another type of value, no Events. For Events that is null it returns errNullEvents beside the rest
// of the document.
func DecodeDocument(body []byte) (Document, error) {
	body = bytes.ToValidUTF8(bytes.TrimPrefix(body, []byte("\ufeff")), []byte("\ufffd"))
	var envelope map[string]json.RawMessage
	if err := json.Unmarshal(body, &envelope); err != nil {
		return Document{}, fmt.Errorf("%w: %v; it starts with %.60q", errNoDocument, err, bytes.TrimSpace(body))
	}
	odd := oddFields(body, envelope, documentFields)
	list, ok := envelope["Events"]
	if !ok {
		return Document{}, fmt.Errorf("%w: it has no Events", errNoDocument)
	}
	d := Document{Partial: odd != ""}
	if odd != "" {
		d.addProblem("the document %s", odd)
	}
	if raw, ok := envelope["DocumentIncarnation"]; ok {
		d.Incarnation, ok = scalar(raw)
		if !ok || len(d.Incarnation) > maxIncarnation {
			d.Incarnation = ""
			d.addProblem("DocumentIncarnation %.40s is neither a number nor a short string", raw)
		}
	}
	if string(list) == "null" {
		return d, errNullEvents
	}
	entries, more, ok := firstEntries(list, MaxEvents)
	if !ok {
		return Document{}, fmt.Errorf("%w: Events is not an array", errNoDocument)
	}
	if more {
		d.Partial = true
		d.addProblem("it lists more than %d events; the rest is ignored", MaxEvents)
	}

	index := make(map[string]int, len(entries))  // ID → its index in d.Events
	others := make(map[string]int, len(entries)) // bare EventId → the index of the first that is written so
	reported := make(map[string]bool)
	for i, raw := range entries {
		e, id, problems := decodeEvent(raw)
		if e.ID == "" {
			d.Partial = true
			d.addProblem("entry %d has no readable EventId: %.80s", i, raw)
			continue
		}
		for _, p := range problems {
			d.addProblem("event %s: %s", e.ID, p)
		}
		e.Contradicted = odd != ""
		if i, duplicate := index[e.ID]; duplicate {
			was := d.Events[i]
			e.Contradicted = e.Contradicted || was.Contradicted || was.Doubt != e.Doubt || was.Digest() != e.Digest()
			if !reported[e.ID] {
				d.addProblem("event %s is listed more than once; the last entry counts", e.ID)
			}
			reported[e.ID], d.Events[i] = true, e
			continue
		}
		if i, alike := others[bare(id)]; alike {
			e.Contradicted, d.Events[i].Contradicted = true, true
			d.addProblem("event %s is listed as %s too, its EventId written in another way", d.Events[i].ID, e.ID)
		} else {
			others[bare(id)] = len(d.Events)
		}
		index[e.ID] = len(d.Events)
		d.Events = append(d.Events, e)
	}
	return d, nil
}

// firstEntries returns the first n entries of a JSON array, and whether it has more; ok is false if it is not an array.
func firstEntries(list json.RawMessage, n int) (entries []json.RawMessage, more, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(list))
	if start, err := dec.Token(); err != nil || start != json.Delim('[') {
		return nil, false, false
	}
	for len(entries) < n && dec.More() {
		var entry json.RawMessage
		if err := dec.Decode(&entry); err != nil { // cannot happen: the list was decoded as part of the body
			return nil, false, false
		}
		entries = append(entries, entry)
	}
	return entries, dec.More(), true
}

func (d *Document) addProblem(format string, args ...any) {
	switch n := len(d.Problems); {
	case n < maxProblems:
		d.Problems = append(d.Problems, fmt.Sprintf(format, args...))
	case n == maxProblems:
		d.Problems = append(d.Problems, "there are more problems than these")
	}
}

// decodeEvent decodes one entry. The ID is empty if the entry has no readable one; id is the EventId as Azure wrote it.
// problems names every other field that can't be understood, and the doubt.
func decodeEvent(raw json.RawMessage) (e Event, id string, problems []string) {
	e = Event{Duration: -1}
	fields := fieldsOf(raw)
	if fields == nil {
		return e, "", nil
	}
	text := func(key string, into *string) {
		if v, ok := fields[key]; ok && json.Unmarshal(v, into) != nil {
			problems = append(problems, fmt.Sprintf("%s is not a string: %.40s", key, v))
		}
	}
	var notBefore string
	text("EventId", &id)
	if strings.TrimSpace(id) == "" {
		return e, "", nil
	}
	e.ID = eventID(id)
	text("EventStatus", &e.Status)
	text("EventType", &e.Type)
	text("ResourceType", &e.ResourceType)
	text("Description", &e.Description)
	text("EventSource", &e.Source)
	text("NotBefore", &notBefore)
	e.Status, e.Type, e.Source = documented(e.Status), documented(e.Type), documented(e.Source)
	if v, ok := fields["Resources"]; ok && json.Unmarshal(v, &e.Resources) != nil {
		e.Resources = nil
		problems = append(problems, fmt.Sprintf("Resources is not a list of strings: %.40s", v))
	}
	if slices.ContainsFunc(e.Resources, func(vm string) bool { return strings.TrimSpace(vm) == "" }) {
		problems = append(problems, fmt.Sprintf("Resources has an empty name: %.40s", fields["Resources"]))
	}
	if e.ResourceType != "" && !SameWord(e.ResourceType, "VirtualMachine") {
		problems = append(problems, fmt.Sprintf("ResourceType %.40q is not VirtualMachine", e.ResourceType))
	}
	for i, vm := range e.Resources { // api-version 2017-03-01 puts one before the name, and no VM's own name has one there
		e.Resources[i] = strings.TrimPrefix(vm, "_")
	}
	if v, ok := fields["DurationInSeconds"]; ok {
		s, _ := scalar(v)
		if n, err := strconv.ParseInt(s, 10, 32); err == nil && n >= 0 {
			e.Duration = int(n)
		} else if err != nil && s != "" || s == "" && string(v) != "null" {
			problems = append(problems, fmt.Sprintf("DurationInSeconds is not a number of seconds: %.40s", v))
		}
	}
	if strings.TrimSpace(notBefore) != "" {
		var err error
		e.NotBefore, err = parseNotBefore(notBefore)
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) > 0 {
		e.Unclear = Printable(problems[0], 200)
	}
	var compact bytes.Buffer
	compact.Grow(len(raw))
	if err := json.Compact(&compact, raw); err != nil { // cannot happen: raw was decoded above
		return Event{}, "", nil
	}
	e.Raw = compact.Bytes()
	e.Doubt = oddWord(id, e)
	odd := oddFields(raw, fields, eventFields)
	if odd != "" {
		e.Doubt = "it " + odd
	}
	if e.Doubt != "" {
		problems = append(problems, e.Doubt+"; it is told, but never approved")
	}
	return e, id, problems
}

// fieldsOf decodes the fields of an entry; nil if it is not an object. Events don't keep them, because of their size.
func fieldsOf(raw json.RawMessage) (fields map[string]json.RawMessage) {
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	return fields
}

// countFields returns the number of fields of a JSON object, each as often as it stands there: the colons outside of its
// strings and values.
func countFields(object []byte) (n int) {
	depth, inString := 0, false
	for i := 0; i < len(object); i++ {
		switch c := object[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ':' && depth == 1:
			n++
		}
	}
	return n
}

// UnmarshalEvent decodes an Event from its Raw.
func UnmarshalEvent(raw json.RawMessage) (Event, error) {
	e, _, _ := decodeEvent(raw)
	if e.ID == "" {
		return Event{}, fmt.Errorf("stored event has no EventId: %.80s", raw)
	}
	return e, nil
}

// eventID normalizes an EventId: upper case, with only characters that are safe in every protocol.
func eventID(id string) string {
	id = Upper(id)
	plain := len(id) <= 64
	token := strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		plain = false
		return '-'
	}, id[:min(len(id), 64)])
	if plain {
		return token
	}
	sum := sha256.Sum256([]byte(id))
	return token[:min(len(token), 40)] + "-" + strings.ToUpper(hex.EncodeToString(sum[:8]))
}

// scalar returns the text of a JSON number or string.
func scalar(raw json.RawMessage) (string, bool) {
	var n json.Number // accepts a number, or a string that holds one
	if json.Unmarshal(raw, &n) == nil {
		return n.String(), true
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// notBeforeLayouts are the layouts of NotBefore that were observed or documented. A one-digit day may be padded. The
// zone is parsed separately, because time.Parse treats every unknown abbreviation as UTC.
var notBeforeLayouts = []string{
	"Mon, _2 Jan 2006 15:04:05",
	"_2 Jan 2006 15:04:05",
	"Monday, 02-Jan-06 15:04:05",
}

// parseNotBefore parses a NotBefore: RFC 1123 in GMT or UTC, as Azure sends it, or ISO 8601 with a zone. It ignores the
// weekday, because Microsoft's own examples have wrong ones. The result is UTC, with a year that RFC 3339 allows.
func parseNotBefore(s string) (time.Time, error) {
	text := strings.TrimSuffix(strings.TrimSpace(s), ".")
	if t, err := time.Parse(time.RFC3339, text); err == nil && t.UTC().Year() >= 0 && t.UTC().Year() <= 9999 {
		return t.UTC(), nil
	}
	space := strings.LastIndexByte(text, ' ')
	if zone := strings.ToUpper(text[space+1:]); space >= 0 && (zone == "GMT" || zone == "UTC" || zone == "+0000") {
		for _, layout := range notBeforeLayouts {
			if t, err := time.ParseInLocation(layout, text[:space], time.UTC); err == nil {
				return t, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("NotBefore %.60q is not a time in GMT", s)
}

// RawNotBefore returns what Azure sent as NotBefore, printable and at most 60 bytes of it, if that is no time that can be
// read; else "".
func (e Event) RawNotBefore() string {
	raw := fieldsOf(e.Raw)["NotBefore"]
	if !e.NotBefore.IsZero() || raw == nil || string(raw) == "null" {
		return ""
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return Printable(text, 60)
}

// Lacks reports whether Azure did not say a field of the event: it was not sent, or what was sent is null, blank or can't be
// read. A DurationInSeconds of -1 and an empty Description are values.
func (e Event) Lacks(field string) bool {
	switch field {
	case "EventStatus":
		return strings.TrimSpace(e.Status) == ""
	case "EventType":
		return strings.TrimSpace(e.Type) == ""
	case "ResourceType":
		return strings.TrimSpace(e.ResourceType) == ""
	case "Resources":
		return len(e.Resources) == 0
	case "NotBefore":
		return e.NotBefore.IsZero()
	case "EventSource":
		return strings.TrimSpace(e.Source) == ""
	}
	raw := fieldsOf(e.Raw)[field]
	if field == "DurationInSeconds" {
		seconds, _ := scalar(raw)
		_, err := strconv.ParseInt(seconds, 10, 32)
		return err != nil
	}
	var text *string
	return json.Unmarshal(raw, &text) != nil || text == nil
}

// Affects reports whether vm is one of the event's Resources; see SameVM.
func (e Event) Affects(vm string) bool {
	return vm != "" && slices.ContainsFunc(e.Resources, func(r string) bool { return SameVM(r, vm) })
}

// LedBy reports whether vm is the first of the event's Resources.
func (e Event) LedBy(vm string) bool {
	return vm != "" && len(e.Resources) > 0 && SameVM(e.Resources[0], vm)
}

// SameVM reports whether one of an event's Resources is the VM vm. It ignores the case of ASCII letters. The underscore of
// preview versions, which Resources lack, may stand before vm.
func SameVM(resource, vm string) bool {
	return SameWord(resource, strings.TrimPrefix(vm, "_"))
}

// Hash returns the first 8 hex digits of the Digest.
func (e Event) Hash() string { return e.Digest()[:8] }

// Digest returns the SHA-256, in hex, of the event as compact JSON with sorted keys, EventId in upper case and
// NotBefore as RFC 3339 in UTC. Equal content has the same digest, however it is formatted.
func (e Event) Digest() string {
	h := sha256.New()
	h.Write([]byte{'{'})
	fields := fieldsOf(e.Raw)
	for i, key := range slices.Sorted(maps.Keys(fields)) {
		if i > 0 {
			h.Write([]byte{','})
		}
		h.Write(CompactJSON(key))
		h.Write([]byte{':'})
		h.Write(e.canonical(key, fields))
	}
	h.Write([]byte{'}'})
	return hex.EncodeToString(h.Sum(nil))
}

// canonical returns the value of a field in the form that is compared and hashed; nil if the event lacks the field.
func (e Event) canonical(key string, fields map[string]json.RawMessage) []byte {
	raw, ok := fields[key]
	switch {
	case !ok:
		return nil
	case key == "EventId":
		var id string
		if json.Unmarshal(raw, &id) == nil {
			return CompactJSON(Upper(id))
		}
	case key == "NotBefore" && !e.NotBefore.IsZero():
		return CompactJSON(e.NotBefore.Format(time.RFC3339Nano))
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // keeps numbers as written
	if d.Decode(&v) != nil {
		return raw
	}
	return CompactJSON(v)
}

// DifferingFields returns the names of the fields that differ, sorted; also of those that one of the events lacks.
func DifferingFields(a, b Event) []string {
	var names []string
	inA, inB := fieldsOf(a.Raw), fieldsOf(b.Raw)
	for key := range inA {
		if string(inA[key]) != string(inB[key]) && !bytes.Equal(a.canonical(key, inA), b.canonical(key, inB)) {
			names = append(names, key)
		}
	}
	for key := range inB {
		if _, ok := inA[key]; !ok {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	return names
}

// CompactJSON encodes v as compact JSON with sorted keys and without escapes for HTML. It panics if v cannot be
// encoded.
func CompactJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return slices.Clone(bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
}

// Printable makes text from outside fit for one line of at most n bytes, without control characters and invalid UTF-8.
func Printable(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r >= 0xFDD0 && r <= 0xFDEF || r&0xFFFE == 0xFFFE {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	return strings.TrimSpace(CutText(s, n))
}

// CutText shortens s to at most n bytes at the end of a rune.
func CutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
