package imds

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Azure's words, such as types and names of VMs, are compared as ASCII: byte by byte, but for the case of letters. By
// Unicode's rules other characters would pass for letters, such as ſ for s, and the Kelvin sign for k.

// SameWord reports whether two words are the same but for the case of ASCII letters.
func SameWord(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if upperByte(a[i]) != upperByte(b[i]) {
			return false
		}
	}
	return true
}

// Upper returns s with its ASCII letters in upper case, and all else as it is.
func Upper(s string) string {
	b := []byte(s)
	for i := range b {
		b[i] = upperByte(b[i])
	}
	return string(b)
}

func upperByte(c byte) byte {
	if c >= 'a' && c <= 'z' {
		return c - 'a' + 'A'
	}
	return c
}

// The types and sources of events that Azure documents.
var (
	Types   = []string{"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}
	Sources = []string{"Platform", "User"}
)

// documentedWords are the statuses, types and sources that Azure documents.
var documentedWords = slices.Concat([]string{StatusScheduled, StatusStarted}, Types, Sources)

// documented returns the word as Azure documents it, if it differs from that only by case.
func documented(word string) string {
	i := slices.IndexFunc(documentedWords, func(known string) bool { return SameWord(known, word) })
	if i < 0 {
		return word
	}
	return documentedWords[i]
}

// plain reports whether a text has only the printable characters of ASCII. Azure uses no others in what decides about an
// event, and another may look or be compared like a letter.
func plain(s string) bool {
	return !slices.ContainsFunc([]byte(s), func(c byte) bool { return c < ' ' || c > '~' })
}

// bare returns the ASCII letters and digits of a text, in upper case. What Unicode takes for such a letter counts as that
// letter, as readers of JSON have it too.
func bare(s string) string {
	return strings.Map(func(r rune) rune {
		r = unicode.ToUpper(unicode.ToLower(r))
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// The fields of a document and of an event that are read.
var (
	documentFields = []string{"DocumentIncarnation", "Events"}
	eventFields    = []string{
		"EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore", "Description", "EventSource",
		"DurationInSeconds",
	}
)

// oddFields returns what a JSON object has that another reader may take for a field that is read, or for another value
// of it; "" for nothing. Azure writes every field once, and always in the same way.
func oddFields(object []byte, fields map[string]json.RawMessage, read []string) string {
	if countFields(object) != len(fields) {
		return "has a field twice"
	}
	var others []string
	for name := range fields {
		if !slices.Contains(read, name) {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	names := make(map[string]string) // bare → as it is written
	for _, name := range read {
		names[bare(name)] = name
	}
	for _, name := range others {
		other, alike := names[bare(name)]
		switch {
		case alike:
			return fmt.Sprintf("has a field %+.60q, which looks like %.60s", name, other)
		case !plain(name):
			return fmt.Sprintf("has a field %+.60q with characters that Azure doesn't use", name)
		}
		names[bare(name)] = name
	}
	return ""
}

// oddWord returns which of the words that decide about an event Azure would not write so; "" for none.
func oddWord(id string, e Event) string {
	if strings.Trim(Upper(id), "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
		return fmt.Sprintf("its EventId %+.80q has characters that Azure doesn't use", id)
	}
	for _, word := range slices.Concat([]string{e.Status, e.Type, e.Source, e.ResourceType}, e.Resources) {
		if !plain(word) {
			return fmt.Sprintf("%+.60q has characters that Azure doesn't use", word)
		}
	}
	return ""
}

// Why a document does not confirm an event.
var (
	ErrNotListed    = errors.New("it is no longer listed")
	ErrContradicted = errors.New("the document says two different things about it")
	ErrChanged      = errors.New("it has changed since it was shown")
	ErrPartial      = errors.New("part of Azure's document can't be read") // which may be about it
)

// Confirm returns the event with that id if the document is whole, lists it with the content of that Digest, without a
// Doubt, and does not contradict itself about it. Otherwise the error says why not.
func (d Document) Confirm(id, digest string) (Event, error) {
	var e Event
	i := slices.IndexFunc(d.Events, func(e Event) bool { return e.ID == id })
	if i >= 0 {
		e = d.Events[i]
	}
	switch {
	case e.Contradicted:
		return e, ErrContradicted
	case d.Partial:
		return e, ErrPartial
	case i < 0:
		return e, ErrNotListed
	case e.Doubt != "":
		return e, errors.New(e.Doubt)
	case e.Digest() != digest:
		return e, ErrChanged
	}
	return e, nil
}
