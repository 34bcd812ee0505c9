package templates

import (
	"path/filepath"
	"regexp"
	"strings"
)

// Hidden stands in place of a secret.
const Hidden = "[secret]"

// minPiece is how many characters of a key in a row a message must not show.
const minPiece = 8

var longRow = regexp.MustCompile(`[A-Za-z0-9]{20,}`)

// Keys returns what may be a key in a text that need not be secret, such as a template or a command: each row of 20 or
// more letters and digits that holds both, and is no part of the absolute path of a file.
func Keys(text string) (keys []string) {
	parts := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n\"'=,", r) })
	for _, part := range parts {
		if filepath.IsAbs(part) {
			continue
		}
		for _, row := range longRow.FindAllString(part, -1) {
			if strings.ContainsAny(row, "0123456789") && strings.Trim(row, "0123456789") != "" {
				keys = append(keys, row)
			}
		}
	}
	return keys
}

// HideKeys returns what is said of a text, with Hidden in place of the keys in that text, and of their pieces of eight
// characters or more: messages cut what they quote.
func HideKeys(said, text string) string {
	for _, key := range Keys(text) {
		said = hidePieces(said, key)
	}
	return said
}

// hidePieces replaces the pieces of a key in a text.
func hidePieces(text, key string) string {
	var shown strings.Builder
	for text != "" {
		n := 0
		for n < len(text) && strings.Contains(key, text[:n+1]) {
			n++
		}
		if n >= minPiece {
			shown.WriteString(Hidden)
		} else {
			n = 1
			shown.WriteString(text[:n])
		}
		text = text[n:]
	}
	return shown.String()
}

// A keylessError is an error about a text that shows no key in it.
type keylessError struct {
	err   error
	shown string
}

func (e *keylessError) Error() string { return e.shown }
func (e *keylessError) Unwrap() error { return e.err }

// withoutKeys returns an error about a text, which then shows no key in it.
func withoutKeys(err error, text string) error {
	if err == nil {
		return nil
	}
	shown := HideKeys(err.Error(), text)
	if shown == err.Error() {
		return err
	}
	return &keylessError{err, shown}
}
