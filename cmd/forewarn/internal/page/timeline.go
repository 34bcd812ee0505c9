package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// A timelineView is the drawing of the last 30 days: a row for each type, or for each set of a fleet, with a bar for
// each event. X positions are in percent of the width, so that it fits every screen; y positions are in pixels.
type timelineView struct {
	Empty     string // the text shown if there are no bars
	Rows      []timelineRow
	Histories []timelineBar // the same events for the table, newest first
	Ticks     []timelineTick
	Axis      int // y of the dates
	Height    int
	Tip       int // y of the details of a bar
	// TipHeight is the height of the details. On a narrow screen the style sheet adds to it.
	TipHeight int
	Older     string // says how many older events are left out; "" for none
}

// A timelineRow is the row of one type, or of one set.
type timelineRow struct {
	Title string
	Y     int // of the title
	Bars  []timelineBar
}

// A timelineBar is one event.
type timelineBar struct {
	ID, Class, Outcome string
	Headline, Details  string
	VMs                string

	Announced, Begun, Over moment
	DeliveredTo            string

	From, Start, To string // x of announced, begun and over; Start is "" if the event did not begin
	Y               int

	at   time.Time // announced
	lane int
}

// Label describes the bar for screen readers.
func (b timelineBar) Label() string { return b.Headline + ". " + b.Details }

// A timelineTick is a date on the axis.
type timelineTick struct {
	X, Text, Anchor string
}

// Sizes of the timeline; heights are in pixels.
const (
	timelineDays = 30
	timelineBars = 150 // the newest events
	laneHeight   = 26
	titleHeight  = 24
	tipHeight    = 68
	minBar       = 4.6 // smallest width of a bar on the narrowest screen, in percent
)

// timelineTypes are the rows in order; the last is for types that Azure may add.
var timelineTypes = []string{"reboot", "redeploy", "freeze", "preempt", "terminate", "other"}

// timeline lays out the events of the last 30 days.
func (p pageWriter) timeline(f pageFacts) timelineView {
	to := p.now.Truncate(5 * time.Minute).Add(5 * time.Minute) // in steps, so that the bars do not move all the time
	from := to.AddDate(0, 0, -timelineDays)
	share := func(t time.Time) float64 {
		return 1 + 98*min(1, max(0, float64(t.Sub(from))/float64(to.Sub(from))))
	}
	var v timelineView
	rows := map[string][]timelineBar{}
	ends := map[string][]float64{} // by row: the x from which each lane is free
	var histories []bridge.EventHistory
	for _, h := range f.Histories {
		if t := timesOf(h); t.over.IsZero() || !t.over.Before(from) {
			histories = append(histories, h)
		}
	}
	older := max(0, len(histories)-timelineBars)
	histories = histories[older:]
	switch {
	case f.MoreHistories:
		v.Older = "Older events are"
	case older > 0:
		v.Older = wording.Plural(older, "older event is", "older events are")
	}
	for _, l := range histories {
		b := p.bar(l, f.Status.Observer, f.Status.Relay != nil)
		row := b.Class
		if f.Status.Relay != nil {
			row = strings.ToLower(l.Set)
		}
		t := timesOf(l)
		end := t.over
		if end.IsZero() {
			end = p.now
		}
		x1, x2 := share(t.announced), share(end)
		b.From, b.To = percent(x1), percent(x2)
		if !t.begun.IsZero() {
			b.Start = percent(share(t.begun))
		}
		lanes := ends[row]
		b.lane = slices.IndexFunc(lanes, func(free float64) bool { return free <= x1 })
		if b.lane < 0 {
			b.lane = len(lanes)
			lanes = append(lanes, 0)
		}
		lanes[b.lane] = x2 + minBar
		ends[row] = lanes
		rows[row] = append(rows[row], b)
	}
	for _, bars := range rows {
		v.Histories = append(v.Histories, bars...)
	}
	sort.Slice(v.Histories, func(i, k int) bool {
		a, b := v.Histories[i], v.Histories[k]
		return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.ID, b.ID)) < 0
	})
	y := 0
	order := timelineTypes
	if f.Status.Relay != nil { // by set, those in none last
		order = slices.Sorted(maps.Keys(rows))
		if len(rows[""]) > 0 {
			order = append(order[1:], "")
		}
	}
	for _, class := range order {
		bars := rows[class]
		if len(bars) == 0 {
			continue
		}
		name := typeTitle(class)
		if f.Status.Relay != nil {
			name = cmp.Or(wording.Printable(class), "In no set")
		}
		title := fmt.Sprintf("%s, %s", name, wording.Plural(len(bars), "event", "events"))
		row := timelineRow{Title: title, Y: y + 17, Bars: bars}
		for i := range bars {
			bars[i].Y = y + titleHeight + bars[i].lane*laneHeight + laneHeight/2
		}
		y += titleHeight + len(ends[class])*laneHeight + 6
		v.Rows = append(v.Rows, row)
	}
	if len(v.Rows) == 0 {
		v.Empty = fmt.Sprintf("No events in the last %d days.", timelineDays)
		if f.Err != nil {
			v.Empty = "The history cannot be read."
		}
		return v
	}
	v.Axis, v.Tip, v.TipHeight, v.Height = y+18, y+34, tipHeight, y+34+tipHeight
	for days := 28; days >= 0; days -= 7 {
		t := timelineTick{
			X: percent(share(to.AddDate(0, 0, -days))), Anchor: "middle",
			Text: p.now.In(p.zone).AddDate(0, 0, -days).Format("2 Jan"),
		}
		if days == 0 {
			t.Text, t.Anchor = "now", "end"
		}
		v.Ticks = append(v.Ticks, t)
	}
	return v
}

func percent(x float64) string { return fmt.Sprintf("%.2f%%", x) }

// typeTitle names a row.
func typeTitle(class string) string {
	switch class {
	case "preempt":
		return "Preempt (Spot eviction)"
	case "other":
		return "Other"
	}
	return capitalize(class)
}

// bar formats one event, for this VM or for all.
func (p pageWriter) bar(l bridge.EventHistory, o imds.Observer, forAll bool) timelineBar {
	s := timesOf(l)
	last := l.Changes[len(l.Changes)-1]
	data := map[string]any{"change": string(last.Change), "outcome": string(l.Outcome), "whileAway": s.whileAway}
	data["event"] = map[string]any{"EventId": l.Event}
	observer := cmp.Or(s.observer, o.Name)
	f := map[string]any{
		"change": string(last.Change), "azeventtype": l.Type, "azeventsource": l.Source, "resources": l.Resources,
		"observer": observer, "forAll": forAll,
		"azself":   observer != "" && imds.Event{Resources: l.Resources}.Affects(observer),
		"duration": -1, "data": data, "subject": l.Event, "time": last.Time.UTC().Format(time.RFC3339), "begun": "",
		"type": cloudevent.EventPrefix + string(last.Change), "group": []map[string]any{},
	}
	if !s.begun.IsZero() {
		f["begun"] = s.begun.UTC().Format(time.RFC3339)
	}
	b := timelineBar{
		ID: l.Event, Class: typeClass(l.Type), at: s.announced, VMs: wording.Printable(strings.Join(l.Resources, ", ")),
		Announced: p.moment(s.announced), Begun: p.moment(s.begun), Over: p.moment(s.over),
		DeliveredTo: wording.Printable(strings.Join(s.deliveredTo, ", ")),
	}
	switch {
	case !s.over.IsZero():
		f["change"] = string(imds.Vanished) // the last may be an answer to an approval, which came later
		b.Headline = p.renderText("real", f)
		b.Outcome = p.renderText("state", f) // over, cancelled, gone
	case !s.begun.IsZero():
		b.Headline, b.Outcome = p.renderText("who", f)+": "+p.renderText("what", f)+" has begun", "begun"
	default:
		b.Headline, b.Outcome = p.renderText("fact", f), "announced"
	}
	details := []string{"Announced " + b.Announced.Text}
	for _, turn := range []struct {
		word string
		at   moment
	}{{"begun", b.Begun}, {outcomeWord(b.Outcome), b.Over}} {
		if turn.at.Machine != "" {
			details = append(details, turn.word+" "+turn.at.Text)
		}
	}
	b.Details = strings.Join(details, ", ")
	if b.VMs != "" {
		b.Details += ". VMs: " + wording.Cut(b.VMs, 200)
	}
	if b.DeliveredTo != "" {
		b.Details += ". Delivered to: " + wording.Cut(b.DeliveredTo, 200)
	}
	b.Details += "."
	return b
}

// outcomeWord says how an event ended.
func outcomeWord(state string) string {
	if state == "gone" {
		return "no longer listed"
	}
	return state
}

// eventTimes summarizes the history of an event; unknown times are zero.
type eventTimes struct {
	announced, begun, over time.Time
	deliveredTo            []string // sinks that accepted at least one change
	observer               string   // the last VM that saw the event
	whileAway              bool     // the last change was found late
}

// timesOf summarizes the history of an event.
func timesOf(l bridge.EventHistory) eventTimes {
	var s eventTimes
	for i, c := range l.Changes {
		if i == 0 {
			s.announced = c.Time
		}
		s.observer, s.whileAway = cmp.Or(c.Observer, s.observer), c.WhileAway
		switch c.Change {
		case imds.Started:
			s.begun, s.over = c.Time, time.Time{}
		case imds.Vanished:
			s.over = c.Time
		case imds.Scheduled, imds.Updated:
			s.over = time.Time{} // it came back
		}
		for _, d := range c.Deliveries {
			if d.State == outbox.StateAccepted && !slices.Contains(s.deliveredTo, d.Route) {
				s.deliveredTo = append(s.deliveredTo, d.Route)
			}
		}
	}
	return s
}
