package bridge_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// approvals: an event is approved only as the rules say, or by hand.
func (o *oracle) approvals(id string, b belief) {
	for _, p := range o.posts {
		if p.id != id {
			continue
		}
		if p.listed.status != "Scheduled" && p.listed.id != "" {
			o.add("approval", "%s was approved at %v although it is %s", name(id), short(p.at), p.listed.status)
		}
		if o.doubted(p, b) {
			o.add("approval", "%s was approved at %v, when every look left a doubt", name(id), short(p.at))
		}
		why, hand := o.forbids(p, b), o.byHand(p)
		switch {
		case why == "": // a rule approved it, also if somebody tried just before
		case hand < 0:
			o.add("approval", "%s was approved at %v although %s", name(id), short(p.at), why)
		case o.hands[hand].shown != p.listed && p.listed.id != "":
			shown := code(reflect.ValueOf(o.hands[hand].shown))
			o.add("approval", "%s was approved by hand at %v, and was shown as %s", name(id), short(p.at), shown)
		}
	}
}

// byHand returns the place of the approval by hand that made a request; below 0 if a rule did.
func (o *oracle) byHand(p *post) int {
	return slices.IndexFunc(o.hands, func(h hand) bool {
		return h.what == "approve" && h.event == p.id && p.at-h.at < 30*time.Second && p.at >= h.at
	})
}

// moot: of a decision that was sent nobody says that it had no effect.
func (o *oracle) moot(id string) {
	for _, t := range o.taken.of(id) {
		a := approvalIn(t)
		if a.Result != "moot" {
			continue
		}
		made := o.made(t)
		sent := slices.ContainsFunc(o.posts, func(p *post) bool {
			ofIt := p.at <= made && p.at >= made-t.time.Sub(a.Decided) && !p.clock.Before(a.Decided) // clocks are set
			return p.id == id && ofIt && o.byHand(p) < 0
		})
		if sent || a.Attempts > 0 {
			o.add("approval", "%s says that an approval had no effect that was sent", t.id)
		}
	}
}

// forbids says why the rules do not approve an event, "" if one does.
func (o *oracle) forbids(p *post, b belief) (why string) {
	if b := o.boots[p.boot]; b.learned.seq == 0 || b.learned.seq > p.seq {
		return "it was not known for sure which VM this is"
	}
	why = "there is no rule"
	last := o.lastTold(p, b)
	if last < 0 || !b.changes[last].event.is(p.listed) && p.listed.id != "" {
		return "it is not as it was told"
	}
	for _, s := range o.setupsAt(p) {
		for _, rule := range s.rules {
			why = o.refuses(rule, s, p, b.changes[last])
			if why == "" {
				return ""
			}
		}
	}
	return why
}

// lastTold returns the place of the change that the program knew last when it made a request; below 0 for none.
func (o *oracle) lastTold(p *post, b belief) int {
	last := -1
	for i, c := range b.changes {
		if c.seq < p.seq && !o.forgotten(c, p.boot) {
			last = i
		}
	}
	return last
}

// forgotten reports whether a run of the program knows no more of a change: a crash made it forget it, or another machine
// saw it; a copy of what was nobody's goes on with it.
func (o *oracle) forgotten(c change, boot int) bool {
	vm := o.boots[boot].vm
	return c.lost || c.theirs > 0 && vm >= c.theirs && vm != o.boots[c.boot].vm
}

// refuses says why a rule of a setup does not approve an event as it was told last, "" if it does.
func (o *oracle) refuses(rule rulePlan, s setup, p *post, c change) string {
	vms, from := c.event.resources(), max(c.at, o.since(rule, s))
	for _, sink := range rule.after {
		took, _ := o.took(sink, p, c)
		if took < 0 {
			return sink + " has not taken it"
		}
		from = max(from, took)
	}
	switch {
	case !slices.Contains(rule.types, c.event.kind):
		return "no rule names its type"
	case len(rule.sources) > 0 && !slices.Contains(rule.sources, c.event.source):
		return "no rule names its source"
	case !slices.ContainsFunc(vms, func(vm string) bool { return strings.EqualFold(vm, "vm-0") }):
		return "it does not name this VM"
	case len(vms) > 1 && !rule.others:
		return "it hits another VM"
	case p.at-from < rule.wait-time.Second:
		return "its wait was not over"
	case o.ill(p.at+time.Millisecond, p.at+time.Millisecond) && o.ill(p.at-time.Second, p.at-time.Second) &&
		!o.wrote(p.at-time.Second, p.at):
		return "the disk could not keep the decision"
	}
	return ""
}

// since returns when a reload brought the rule of a setup, 0 if it was there at the start.
func (o *oracle) since(rule rulePlan, s setup) time.Duration {
	for i := len(o.setups) - 1; i >= 0; i-- {
		was := o.setups[i]
		there := slices.ContainsFunc(was.rules, func(r rulePlan) bool { return reflect.DeepEqual(r, rule) })
		switch {
		case was.seq > s.seq || was.boot == s.boot && there:
		case was.boot == s.boot:
			return o.setups[i+1].at
		default:
			return 0
		}
	}
	return 0
}

// wrote reports whether a transaction reached the file in a period. Trouble may end sooner than is known for sure.
func (o *oracle) wrote(from, to time.Duration) bool {
	return slices.ContainsFunc(o.writes, func(w written) bool { return w.at >= from && w.at <= to })
}

// took returns when a destination first took a change, or what stands for it, as far as the run of the program knows which
// made a request, and when it last did before the request; below 0 if it did not since the change was seen. What another
// machine told of the event, or what a crash made forget, may have the same id.
func (o *oracle) took(sink string, p *post, c change) (first, last time.Duration) {
	first, last = -1, -1
	in := -1
	for _, t := range o.taken[c.event.id][sink] {
		standsFor := slices.Contains(t.missed, c.kind) // such as a reminder
		if t.id != c.id && !standsFor || !t.settled || t.seq < c.seq || t.seq > p.seq {
			continue
		}
		last = t.at
		if in != p.boot {
			first, in = t.at, t.in
		}
	}
	return first, last
}

// setupsAt returns the rules that may have approved an event: a reload may have come between a decision and its request.
func (o *oracle) setupsAt(p *post) (setups []setup) {
	from := p.at - time.Second
	if o.ill(p.at-20*time.Second, p.at) { // the decision is on disk before
		from -= 20 * time.Second
	}
	for i, s := range o.setups {
		replaced := i+1 < len(o.setups) && o.setups[i+1].at < from
		if s.boot == p.boot && s.seq < p.seq && !replaced {
			setups = append(setups, s)
		}
	}
	return setups
}

// approvedBy: of several rules the first that approves an event does, and is on record for it.
func (o *oracle) approvedBy(id string, b belief) {
	for _, t := range o.taken.of(id) {
		// What waited for the end of a mute tells of an earlier run's request.
		waited := len(o.boots) > 1 && len(o.mutesOf(t.sink, id)) > 0
		n, a, p := 0, approvalIn(t), o.postBefore(t)
		if _, err := fmt.Sscanf(a.By, "rule %d", &n); err != nil || a.Result != "approved" || p == nil || waited {
			continue
		}
		last := o.lastTold(p, b)
		if last < 0 || len(o.hands) > 0 || p.listed.id == "" {
			continue
		}
		right := func(s setup) bool {
			first := func(r rulePlan) bool { return o.surelyApproves(r, s, p, b.changes[last]) }
			return n <= len(s.rules) && o.refuses(s.rules[n-1], s, p, b.changes[last]) == "" &&
				!slices.ContainsFunc(s.rules[:n-1], first)
		}
		if !slices.ContainsFunc(o.setupsAt(p), right) {
			o.add("approval", "%s says that rule %d approved it, which is not the first that does", t.id, n)
		}
	}
}

// An approval is what became of one, as a destination is told.
type approval struct {
	By, Result string
	Decided    time.Time
	Attempts   int
}

// approvalIn returns the approval that a delivery tells of; nothing if it tells of none.
func approvalIn(t taken) approval {
	var data struct{ Approval approval }
	if t.change == "approved" {
		_ = json.Unmarshal([]byte(t.body), &data)
	}
	return data.Approval
}

// postBefore returns the request whose outcome a delivery tells; nil if that is not known.
func (o *oracle) postBefore(t taken) (last *post) {
	for _, p := range o.posts {
		if p.id == t.event && p.boot == t.in && p.at <= o.made(t) {
			last = p
		}
	}
	return last
}

// surelyApproves reports whether a rule approved an event when a request was decided, some time before it.
func (o *oracle) surelyApproves(r rulePlan, s setup, p *post, c change) bool {
	margin := 3 * time.Second
	if r.wait == 0 && len(r.after) == 0 {
		margin = 0
	}
	from := max(c.at, s.at, o.boots[p.boot].learned.at)
	for _, sink := range r.after {
		if !c.owed(sink) {
			return false
		}
		_, took := o.took(sink, p, c)
		from = max(from, took)
	}
	return p.at-from >= r.wait+margin && !o.ill(from, p.at) && o.refuses(r, s, p, c) == ""
}

// doubted reports whether a request follows only documents that left it in doubt what Azure lists. A look is followed by
// its request within the time that there is for both. That nobody is said to have asked is no doubt of an event that was
// told so: only a rule with sources asks for it.
func (o *oracle) doubted(p *post, b belief) bool {
	seen := false
	var told azureEvent
	if last := o.lastTold(p, b); last >= 0 {
		told = b.changes[last].event
	}
	for _, a := range o.answers {
		if a.polled || a.what != "document" || a.boot != p.boot || a.seq > p.seq || p.at-a.at > 30*time.Second {
			continue
		}
		if !a.doubtful || told.source == unsaid && a.events[p.id] == told {
			return false
		}
		seen = true
	}
	return seen
}
