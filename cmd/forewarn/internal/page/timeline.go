package page

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
)

// A timelineView is the last 30 days, drawn: a row for each type, in it a bar for each event. Across, it is measured in
// percent of the width, so that it fits every screen; down, in pixels.
type timelineView struct {
	Empty  string // what is said when there is no bar
	Rows   []timelineRow
	Lives  []timelineBar // the same in words, the newest first
	Ticks  []timelineTick
	Axis   int // where the days are written
	Height int // of all
	Tip    int // where details are shown
	// TipHeight is how much room they have; on a narrow screen the style gives more.
	TipHeight int
	Older     string // how many events are left out, because there are so many; "" for none
}

// A timelineRow is one type.
type timelineRow struct {
	Title string
	Y     int // of its title
	Bars  []timelineBar
}

// A timelineBar is one event.
type timelineBar struct {
	ID, Class, Outcome string
	Headline, Details  string
	VMs                string

	Announced, Begun, Over moment
	Told                   string

	From, Start, To string // percent: announced, begun, over; Start is "" if it did not begin
	Y               int

	at   time.Time // announced
	lane int
}

// Label is the bar in words.
func (b timelineBar) Label() string { return b.Headline + ". " + b.Details }

// A timelineTick is a day under the axis.
type timelineTick struct {
	X, Text, Anchor string
}

// The measures of the timeline.
const (
	timelineDays = 30
	timelineBars = 150 // the newest are shown
	laneHeight   = 26
	titleHeight  = 24
	tipHeight    = 68
	// least is how much of the width, in percent, a bar takes on the narrowest screen.
	least = 4.6
)

// timelineTypes are the rows, in order; the last takes what Azure may yet invent.
var timelineTypes = []string{"reboot", "redeploy", "freeze", "preempt", "terminate", "other"}

// timeline is that of the lives of the last 30 days.
func (p pageWriter) timeline(f pageFacts) timelineView {
	to := p.now.Truncate(5 * time.Minute).Add(5 * time.Minute) // so that nothing moves all the time
	from := to.AddDate(0, 0, -timelineDays)
	share := func(t time.Time) float64 {
		return 1 + 98*min(1, max(0, float64(t.Sub(from))/float64(to.Sub(from))))
	}
	var v timelineView
	rows := map[string][]timelineBar{}
	ends := map[string][]float64{} // by type: where each lane is free again
	lives := slices.DeleteFunc(slices.Clone(f.Lives), func(l bridge.Life) bool {
		s := story(l)
		return !s.over.IsZero() && s.over.Before(from)
	})
	older := max(0, len(lives)-timelineBars)
	lives = lives[older:]
	switch {
	case f.MoreLives:
		v.Older = "Older events are"
	case older > 0:
		v.Older = wording.Plural(older, "older event is", "older events are")
	}
	for _, l := range lives {
		b := p.bar(l, f.Status.Observer)
		s := story(l)
		end := s.over
		if end.IsZero() {
			end = p.now
		}
		x1, x2 := share(s.announced), share(end)
		b.From, b.To = percent(x1), percent(x2)
		if !s.begun.IsZero() {
			b.Start = percent(share(s.begun))
		}
		lanes := ends[b.Class]
		b.lane = slices.IndexFunc(lanes, func(free float64) bool { return free <= x1 })
		if b.lane < 0 {
			b.lane = len(lanes)
			lanes = append(lanes, 0)
		}
		lanes[b.lane] = x2 + least
		ends[b.Class] = lanes
		rows[b.Class] = append(rows[b.Class], b)
	}
	for _, bars := range rows {
		v.Lives = append(v.Lives, bars...)
	}
	sort.Slice(v.Lives, func(i, k int) bool {
		a, b := v.Lives[i], v.Lives[k]
		return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.ID, b.ID)) < 0
	})
	y := 0
	for _, class := range timelineTypes {
		bars := rows[class]
		if len(bars) == 0 {
			continue
		}
		row := timelineRow{Title: fmt.Sprintf("%s, %s", typeTitle(class), wording.Plural(len(bars), "event", "events")), Y: y + 17, Bars: bars}
		for i := range bars {
			bars[i].Y = y + titleHeight + bars[i].lane*laneHeight + laneHeight/2
		}
		y += titleHeight + len(ends[class])*laneHeight + 6
		v.Rows = append(v.Rows, row)
	}
	if len(v.Rows) == 0 {
		v.Empty = fmt.Sprintf("Nothing is on record of the last %d days.", timelineDays)
		if f.Err != nil {
			v.Empty = "The history cannot be read."
		}
		return v
	}
	v.Axis, v.Tip, v.TipHeight, v.Height = y+18, y+34, tipHeight, y+34+tipHeight
	for days := 28; days >= 0; days -= 7 {
		t := timelineTick{X: percent(share(to.AddDate(0, 0, -days))), Text: p.now.In(p.zone).AddDate(0, 0, -days).Format("2 Jan"), Anchor: "middle"}
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
	return capital(class)
}

// bar is one event in words.
func (p pageWriter) bar(l bridge.Life, o imds.Observer) timelineBar {
	s := story(l)
	last := l.Changes[len(l.Changes)-1]
	data := map[string]any{"change": string(last.Change), "outcome": string(l.Outcome), "whileAway": s.whileAway}
	data["event"] = map[string]any{"EventId": l.Event}
	// In a fleet the events of one page are seen by many: the last that saw it is the one it is said of.
	observer := cmp.Or(s.observer, o.Name)
	f := map[string]any{
		"change": string(last.Change), "azeventtype": l.Type, "azeventsource": l.Source, "resources": l.Resources, "observer": observer,
		"azself":   observer != "" && imds.Event{Resources: l.Resources}.Affects(observer),
		"duration": -1, "data": data, "subject": l.Event, "time": last.Time.UTC().Format(time.RFC3339), "begun": "",
		"type": cloudevent.EventPrefix + string(last.Change), "group": []map[string]any{},
	}
	if !s.begun.IsZero() {
		f["begun"] = s.begun.UTC().Format(time.RFC3339)
	}
	b := timelineBar{
		ID: l.Event, Class: typeClass(l.Type), at: s.announced, VMs: wording.Printable(strings.Join(l.Resources, ", ")),
		Announced: p.moment(s.announced), Begun: p.moment(s.begun), Over: p.moment(s.over), Told: wording.Printable(strings.Join(s.told, ", ")),
	}
	switch {
	case !s.over.IsZero():
		b.Headline = p.say("real", f)
		b.Outcome = p.say("state", f) // over, cancelled, gone
	case !s.begun.IsZero():
		b.Headline, b.Outcome = p.say("who", f)+": "+p.say("what", f)+" has begun", "begun"
	default:
		b.Headline, b.Outcome = p.say("fact", f), "announced"
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
		b.Details += ". Machines: " + wording.Cut(b.VMs, 200)
	}
	if b.Told != "" {
		b.Details += ". Told: " + wording.Cut(b.Told, 200)
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

// A lifeStory is when a life's turns came, as far as they are known.
type lifeStory struct {
	announced, begun, over time.Time
	told                   []string // sinks that accepted at least one change
	observer               string
	whileAway              bool // its last change was found late
}

func story(l bridge.Life) lifeStory {
	var s lifeStory
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
		default:
			s.over = time.Time{} // it came back
		}
		for _, d := range c.Deliveries {
			if d.State == "accepted" && !slices.Contains(s.told, d.Sink) {
				s.told = append(s.told, d.Sink)
			}
		}
	}
	return s
}
