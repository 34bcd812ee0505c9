package page

import (
	"time"

	"forewarn/bridge/clock"
	"forewarn/cmd/forewarn/internal/wording"
)

// A moment is a time for the element <time>.
type moment struct {
	Machine string // RFC 3339; "" for no time
	Text    string
}

// A countdown is a duration that the script of the page keeps current. Text is its value when the page was rendered.
type countdown struct {
	Until, Since int64 // Unix milliseconds; at most one of them is set
	Text         string
}

// moment formats a time.
func (p pageWriter) moment(t time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	return moment{Machine: t.UTC().Format(time.RFC3339), Text: clock.Due(t, p.now, p.zone)}
}

// until counts down to t.
func (p pageWriter) until(t time.Time) countdown {
	if t.IsZero() {
		return countdown{}
	}
	c := countdown{Until: t.UnixMilli()}
	switch left := t.Sub(p.now).Round(time.Second); {
	case p.live:
	case left <= 0:
		c.Text = "due now"
	default:
		c.Text = "in " + wording.Span(left)
	}
	return c
}

// since counts up from t.
func (p pageWriter) since(t time.Time) countdown {
	if t.IsZero() {
		return countdown{}
	}
	c := countdown{Since: t.UnixMilli()}
	if !p.live {
		c.Text = wording.Ago(p.now, t) + " ago"
	}
	return c
}
