package page

import (
	"time"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
)

// A moment is a time for people and machines.
type moment struct {
	Machine string // RFC 3339, "" for no time
	Text    string
}

// A passing is a time from now that the script counts; without one it stands as it was when the page was made.
type passing struct {
	Until, Since int64 // Unix milliseconds; one of them is set, or none
	Text         string
}

// moment is a time in the zone of the settings and in UTC, with its day if that is not today.
func (p pageWriter) moment(t time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	text, utc := bridge.ClockTime(t, p.now, p.zone), t.UTC()
	if _, offset := t.In(p.zone).Zone(); offset != 0 {
		text += utc.Format(" (15:04:05 UTC)")
	}
	return moment{Machine: utc.Format(time.RFC3339), Text: text}
}

// until counts down to t.
func (p pageWriter) until(t time.Time) passing {
	if t.IsZero() {
		return passing{}
	}
	c := passing{Until: t.UnixMilli()}
	switch left := t.Sub(p.now).Round(time.Second); {
	case p.live:
	case left <= 0:
		c.Text = "due now"
	default:
		c.Text = "in " + wording.Span(left)
	}
	return c
}

// since says how long ago t was.
func (p pageWriter) since(t time.Time) passing {
	if t.IsZero() {
		return passing{}
	}
	c := passing{Since: t.UnixMilli()}
	if !p.live {
		c.Text = wording.Ago(p.now, t) + " ago"
	}
	return c
}
