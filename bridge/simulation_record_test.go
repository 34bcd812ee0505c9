package bridge_test

import (
	"cmp"
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
			shown := list{event: o.hands[hand].shown}
			o.add("approval", "%s was approved by hand at %v, and was shown as %v", name(id), short(p.at), shown)
		}
	}
}

// byHand returns the place of the approval by hand that made a request; below 0 if a rule did.
func (o *oracle) byHand(p *post) int {
	return slices.IndexFunc(o.hands, func(h hand) bool {
		return h.what == "approve" && h.event_ == p.id && p.at-h.at < 30*time.Second && p.at >= h.at
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
			return p.id == id && p.at <= made && p.at >= made-t.time.Sub(a.Decided) && o.byHand(p) < 0
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
			if why = o.refuses(rule, s, p, b.changes[last]); why == "" {
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

// outcome: how an event ended is never said wrongly.
func (o *oracle) outcome(id string, b belief) {
	for i, c := range b.changes {
		if c.kind != "vanished" {
			continue
		}
		var from, first time.Duration // when the life before it ended, and when this one was seen first
		for _, was := range b.changes[:i] {
			switch {
			case was.kind == "vanished" && !o.forgotten(was, c.boot):
				from, first = was.at, 0
			case first == 0:
				first = was.at
			}
		}
		var ends []time.Duration // of its lives, up to this one
		for _, at := range o.azure.ended[id] {
			if at <= c.at {
				ends = append(ends, at)
			}
		}
		hasBegun := func(from time.Duration) bool {
			seen := func(was change) bool {
				return was.at > from && was.event.status == "Started" && was.kind != "vanished"
			}
			return slices.ContainsFunc(b.changes[:i], seen) ||
				slices.ContainsFunc(o.azure.begun[id], func(x begin) bool { return x.at > from && x.visible < c.at })
		}
		mayHave := hasBegun(from)
		// What another machine saw of it need not count for one that was given a copy of its disk.
		mine := slices.IndexFunc(o.boots, func(x *boot) bool { return x.vm == o.boots[c.boot].vm })
		from = max(from, o.boots[mine].began.at)
		// Nor need what is in a file that hasn't come yet.
		if boot := o.boots[c.boot]; boot.late > 0 && (boot.loaded.seq == 0 || c.seq < o.takenUp(boot).seq) {
			from = max(from, boot.began.at)
		}
		if n := len(ends); n > 1 {
			from = max(from, ends[n-2]) // nobody may have seen the end of the life before it
		}
		for _, end := range ends { // nor that it was listed before
			if end <= first {
				from = max(from, end)
			}
		}
		began := hasBegun(from)
		for _, t := range o.taken.of(id) {
			if b.place(t) == i && (t.outcome == "canceled" && began || t.outcome == "completed" && !mayHave) {
				o.add("the outcome is honest", "%s says %s; that it began is %v", t.id, t.outcome, began)
			}
		}
	}
}

// clockStepped reports whether the machine's clock was ever wrong.
func (o *oracle) clockStepped() bool {
	return slices.ContainsFunc(o.skews, func(d time.Duration) bool { return d != 0 })
}

// place returns that of the change which a delivery is of, -1 for none. One that a crash made the program forget may
// have given its id to another; then it is the one that was seen when the CloudEvent was made.
func (b belief) place(t taken) int {
	place, nearest := -1, 15*time.Second
	for i, c := range b.changes {
		off := t.time.Sub(c.clock).Abs()
		if c.id == t.id && (off < nearest || off == nearest && place >= 0 && b.changes[place].gone()) {
			place, nearest = i, off
		}
	}
	return place
}

// whileAway: what happened while nobody watched is told as that, and nothing else.
func (o *oracle) whileAway(id string, b belief) {
	for i, c := range b.changes {
		if c.away == nil || c.lost || o.clockStepped() {
			continue
		}
		// A copy tells anew what it told before it knew which VM it is, so which of the two a delivery is of is not clear.
		boot := o.boots[c.boot]
		anew := boot.vm > 0 && boot.learned.seq > 0 && c.at < boot.learned.at+15*time.Second
		for _, t := range o.taken.of(id) {
			if b.place(t) == i && !anew && t.whileAway != *c.away {
				o.add("while away", "%s says that it was found while nobody watched: %v, to %s", t.id, t.whileAway, t.sink)
			}
		}
	}
}

// trouble is what a route hears of that wants to hear only of trouble.
var trouble = []string{
	"dev.forewarn.bridge.sink.blocked", "dev.forewarn.bridge.sink.recovered", "dev.forewarn.bridge.imds.unavailable",
	"dev.forewarn.bridge.outbox.unwritable", "dev.forewarn.bridge.outbox.writable",
	"dev.forewarn.bridge.imds.recovered", "dev.forewarn.bridge.delivery.deadlettered",
}

// made returns when the CloudEvent of a delivery was made, 0 if that was in an earlier run of the program: its clock may
// have been another.
func (o *oracle) made(t taken) time.Duration {
	at := t.start - t.began.clock.Sub(t.time)
	if at < o.boots[t.in].began.at || at > t.start+time.Millisecond {
		return 0
	}
	return at
}

// triedInstead reports whether a delivery may be a dead letter because a newer change of its event came: that one was
// tried instead, whatever became of it, so nobody is told that anything was given up.
func (o *oracle) triedInstead(e entry) bool {
	isOther := func(t taken) bool { return t.id != e.id }
	return e.reason == "late" && slices.ContainsFunc(o.taken.of(e.event), isOther)
}

// alerted reports whether a route gets an event whatever its filter says, because it was to be told that the event isn't
// started early, or what Azure refused.
func (o *oracle) alerted(event, route string) bool {
	joins := func(r routePlan) bool { return r.bridge != "none" && r.late != "drop" && !r.acts }
	isApproval := func(sink, id string) bool { return sink == route && strings.HasPrefix(id, event+"-approved-") }
	return slices.ContainsFunc(o.ways(route, 0, forever), joins) &&
		(slices.ContainsFunc(o.tried[event][route], func(t taken) bool {
			return t.change == "approved" || slices.Contains(t.missed, "approved")
		}) ||
			slices.ContainsFunc(o.left, func(e entry) bool { return isApproval(e.sink, e.id) }) ||
			slices.ContainsFunc(o.hands, func(h hand) bool { return isApproval(h.sink, h.id) }) ||
			slices.ContainsFunc(o.ledger, func(k kept) bool { return isApproval(k.sink, k.id) }))
}

// troubleIsTold: each dead letter is told to who wants to hear of trouble, to nobody else, and never to the sink that
// it is about.
func (o *oracle) troubleIsTold() {
	var news strings.Builder
	for _, t := range o.taken.of("") {
		hears := func(r routePlan) bool {
			return r.bridge == "all" || r.bridge == "trouble" && slices.Contains(trouble, t.change)
		}
		if o.hand("replay", t.sink, t.id) {
			continue
		}
		if !slices.ContainsFunc(o.ways(cmp.Or(t.instead, t.sink), o.made(t), t.start), hears) {
			o.add("trouble", "%s was told %s, and does not want to hear of it", t.sink, t.id)
		}
		if strings.Contains(t.body, `"sink":"`+t.sink+`"`) {
			o.add("trouble", "%s was told of its own trouble: %s", t.sink, t.id)
		}
		if t.sink == "well" {
			news.WriteString(t.body)
		}
	}
	if !hasRoute(o.plan.routes, "well") { // shrink left it out
		return
	}
	for _, e := range o.left {
		if e.dead && e.event != "" && e.sink != "well" && len(o.boots) == 1 && len(o.ills) == 0 &&
			o.plan.bounds == (bounds{}) && len(o.hands) == 0 &&
			len(o.left) <= 20 && !o.triedInstead(e) && !strings.Contains(news.String(), `"key":"`+e.key+`"`) {
			o.add("trouble", "nobody was told that %s is a dead letter", e.key)
		}
	}
}

// deadLetters: what was given up was given up for the reason that is said.
func (o *oracle) deadLetters() {
	for _, e := range o.left {
		if !e.dead {
			continue
		}
		ways := o.ways(e.sink, 0, forever)
		all := o.tried[e.event][e.sink]
		tries := slices.DeleteFunc(slices.Clone(all), func(t taken) bool { return t.id != e.id })
		right := false
		switch e.reason {
		case "rejected":
			right = slices.ContainsFunc(all, func(t taken) bool { // a newer one may stand for it
				return t.how == "rejects" && (len(t.batch) == 1 || t.handed.progress != "")
			})
		case "expired":
			right = slices.ContainsFunc(all, func(t taken) bool { // of it, or of a newer one that stands for it, whose age counts
				return (t.id == e.id || slices.Contains(t.missed, e.change)) && o.expires(t)
			})
		case "late":
			right = slices.ContainsFunc(ways, func(r routePlan) bool { return r.late == "drop" })
		case "removed":
			stepped := func(b *boot) bool { return max(b.how.off, b.how.step) > 20*time.Hour }
			right = slices.ContainsFunc(o.boots, stepped) || o.longAway(e.sink)
		case "lost":
			right = o.mayLose(e)
		case "overflow":
			right = len(o.ills) > 0 || o.plan.bounds.pending > 0
		}
		if !right {
			o.add("dead letters", "%s of %s is one, reason %s, after %d attempts", e.id, e.sink, e.reason, len(tries))
		}
	}
}

// expires reports whether a delivery was older than max_age when an attempt of it ended, and so is not tried again.
func (o *oracle) expires(t taken) bool {
	since := o.mutedSince(t)
	return slices.ContainsFunc(o.ways(t.sink, t.start, t.at), func(r routePlan) bool {
		return r.maxAge > 0 && (o.clockStepped() || t.clock.Sub(t.time) > r.maxAge) &&
			(since == 0 || t.at-since > r.maxAge-time.Second)
	})
}

// longAway reports whether a route was away for a day, or nearly.
func (o *oracle) longAway(route string) bool {
	since := forever
	for _, s := range o.setups {
		if s.at-since > 23*time.Hour {
			return true
		}
		if hasRoute(s.routes, route) {
			since = forever
		} else {
			since = min(since, s.at)
		}
	}
	return o.boots[len(o.boots)-1].ended.at-since > 23*time.Hour
}

// replaysAreTold: what somebody replayed is told to the sink that it was replayed to.
func (o *oracle) replaysAreTold() {
	for _, h := range o.hands {
		if h.what != "replay" || h.event_ == "" || o.blurred || len(o.ills) > 0 || o.plan.bounds != (bounds{}) ||
			strings.Contains(h.id, "-reminder-") || !o.running(h.boot, h.at, h.at+time.Second) {
			continue
		}
		// A newer change stands for all where only the latest is told, and where it was pending already, under a lead.
		latest := slices.ContainsFunc(o.ways(h.sink, h.at, forever), func(r routePlan) bool {
			return r.late == "latest" || r.lead > 0
		})
		told := slices.ContainsFunc(o.taken[h.event_][h.sink], func(t taken) bool {
			return t.seq > h.seq && (t.id == h.id || latest)
		})
		byHand := slices.ContainsFunc(o.hands, func(x hand) bool { return x.seq > h.seq && x.sink == h.sink && x.id == h.id })
		if !told && !o.isLeft(h.sink, h.id) && !byHand && !o.overSince(h) {
			o.add("nothing is lost", "%s was replayed to %s at %v, which was not told", h.id, h.sink, short(h.at))
		}
	}
}

// overSince reports whether the event of a replay ended later, so that a sink that had waited with it until then is not told
// it any more.
func (o *oracle) overSince(h hand) bool {
	return o.anyChange(h.event_, func(c change) bool {
		_, told := c.routes[h.sink]
		ends := func(r routePlan) bool { return r.late == "drop" || r.late == "latest" && !told }
		return c.kind == "vanished" && c.seq > h.seq && slices.ContainsFunc(o.ways(h.sink, c.at, forever), ends)
	})
}

// leftBehind: when all is well again, nothing waits any more but what waits for its time or its route.
func (o *oracle) leftBehind() {
	for _, e := range o.left {
		if !e.dead && hasRoute(o.routes, e.sink) {
			o.add("nothing is left behind", "%s still owes %s after %d attempts: %s", e.sink, e.id, e.attempts, e.err)
		}
	}
}

// recordIsTrue: what the history says is what happened.
func (o *oracle) recordIsTrue() {
	recorded := map[string]string{}
	for _, d := range o.record {
		recorded[d.sink+" "+d.id] = d.state
		took := slices.ContainsFunc(o.taken[d.event][d.sink], func(t taken) bool { return t.id == d.id && t.settled })
		if d.state == "accepted" && !took {
			o.add("the record is true", "it says that %s accepted %s", d.sink, d.id)
		}
		if d.state == "dropped" && !o.hand("drop", d.sink, d.id) {
			o.add("the record is true", "it says that %s was dropped", d.id)
		}
	}
	for event := range o.taken {
		for _, t := range o.taken.of(event) {
			state := recorded[t.sink+" "+t.id]
			if event != "" && t.settled && state != "accepted" && !o.unsettled(t, len(o.boots)) && len(o.hands) == 0 &&
				!o.blurred {
				o.add("the record is true", "%s took %s at %v, and it says %q", t.sink, t.id, short(t.at), state)
			}
		}
	}
}
