package imds

import (
	"errors"
	"slices"
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

// documentedWords are the statuses, types and sources that Azure documents.
var documentedWords = []string{
	StatusScheduled, StatusStarted, "Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "Platform", "User",
}

// documented returns the word as Azure documents it, if it differs from that only by case.
func documented(word string) string {
	i := slices.IndexFunc(documentedWords, func(known string) bool { return SameWord(known, word) })
	if i < 0 {
		return word
	}
	return documentedWords[i]
}

// Odd returns the first of the words that decide about an event, such as its type and its VMs' names, that has other
// characters than the printable ones of ASCII; "" if none has. Azure uses no others, and one may look or be compared
// like a letter.
func (e Event) Odd() string {
	odd := func(word string) bool {
		return slices.ContainsFunc([]byte(word), func(c byte) bool { return c < ' ' || c > '~' })
	}
	for _, word := range slices.Concat([]string{e.Status, e.Type, e.Source, e.ResourceType}, e.Resources) {
		if odd(word) {
			return word
		}
	}
	return ""
}

// Why a document does not confirm an event.
var (
	ErrNotListed    = errors.New("it is no longer listed")
	ErrContradicted = errors.New("the document says two different things about it")
	ErrChanged      = errors.New("it has changed since it was shown")
)

// Confirm returns the event with that id if the document lists it with the content of that Digest, and does not
// contradict itself about it. Otherwise the error says why not.
func (d Document) Confirm(id, digest string) (Event, error) {
	i := slices.IndexFunc(d.Events, func(e Event) bool { return e.ID == id })
	switch {
	case i < 0:
		return Event{}, ErrNotListed
	case d.Events[i].Contradicted:
		return d.Events[i], ErrContradicted
	case d.Events[i].Digest() != digest:
		return d.Events[i], ErrChanged
	}
	return d.Events[i], nil
}
