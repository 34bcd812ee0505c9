package cloudevent

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"forewarn/bridge/imds"
)

// LeadText formats a lead as in the settings: 24h, 45m, 1h30m.
func LeadText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ChangeID returns the id of the CloudEvent for a change that occurs for the first time. The same change has the same
// id after any crash and on every VM.
func ChangeID(c imds.Change) string {
	id := c.Event.ID + "-" + string(c.Kind)
	switch c.Kind {
	case imds.Updated:
		id += "-" + c.Event.Hash()
	case imds.Reminder:
		id += "-" + LeadText(c.Lead) + "-" + c.Event.NotBefore.UTC().Format(timestampInIDs) + "Z"
	}
	return id
}

// idToken makes a string fit for an id.
func idToken(s string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '-'
	}, s)
}
