package bridge_test

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// mutesOf returns the mutes that are about something of an event for a sink: what comes after that waits too.
func (o *oracle) mutesOf(sink, event string) []*muting {
	key := [2]string{sink, event}
	list, known := o.muted[key]
	if known || len(o.mutes) == 0 {
		return list
	}
	for _, m := range o.mutes {
		coversChange := func(c change) bool { return m.covers(sink, c.event.kind, c.event.resources()) }
		if event == "" && m.covers(sink, "", nil) || o.anyChange(event, coversChange) {
			list = append(list, m)
		}
	}
	o.muted[key] = list
	return list
}

// mayBeMuted reports whether something of an event may have waited for a mute in a time.
func (o *oracle) mayBeMuted(sink, event string, from, to time.Duration) bool {
	return slices.ContainsFunc(o.mutesOf(sink, event), func(m *muting) bool {
		return meetAny(m.maybe, from, to)
	})
}

// released is from when on no mute holds anything of an event back that would have been told by then.
func (o *oracle) released(sink, event string, at time.Duration) time.Duration {
	for again := true; again; {
		again = false
		for _, m := range o.mutesOf(sink, event) {
			for _, i := range m.maybe {
				if i.meets(at-time.Second, at) {
					at, again = i.to+2*time.Second, i.to < forever
				}
			}
		}
	}
	return at
}

// releases returns how many events may be tried at once in a time because a mute ended.
func (o *oracle) releases(sink string, from, to time.Duration) (n int) {
	if len(o.mutes) == 0 {
		return 0
	}
	for event := range o.tried {
		for _, m := range o.mutesOf(sink, event) {
			if slices.ContainsFunc(m.maybe, func(i interval) bool { return i.to >= from && i.to <= to }) {
				n++
			}
		}
	}
	return n
}

// about reports whether a mute covers what a destination received.
func (m *muting) about(sink string, h handed) bool { return m.covers(sink, h.kind, h.vms) }

// held reports whether a mute certainly held something back at a time.
func (m *muting) held(at time.Duration) bool {
	return slices.ContainsFunc(m.sure, func(i interval) bool { return i.from+50*time.Millisecond < at && at < i.to })
}

// mutesHold: nothing that a mute covers is sent until it ends, but for what is half delivered. What did wait says for
// whose mute.
func (o *oracle) mutesHold() {
	for _, a := range o.attempts {
		for _, h := range a.batch {
			said := h.mute == ""
			for _, m := range o.mutes {
				if !m.about(a.sink, h) {
					continue
				}
				if m.held(a.start) && h.progress == "" {
					o.add("mutes hold", "%s was told %s at %v, for which it was muted: %v", a.sink, h.id, short(a.start), m)
				}
				said = said || m.id == h.mute && m.asked.at < a.start
			}
			if !said {
				o.add("mutes hold", "%s was told at %v that %s waited for mute %s", a.sink, short(a.start), h.id, h.mute)
			}
		}
	}
}

// mutesAreListed: people see each mute, until it ends.
func (o *oracle) mutesAreListed() {
	for _, l := range o.listings {
		for _, m := range o.mutes {
			if m.held(l.at) && m.held(l.at+time.Second) && !slices.Contains(l.ids, m.id) {
				o.add("mutes are listed", "%v is not listed at %v", m, short(l.at))
			}
		}
		for _, id := range l.ids {
			if !slices.ContainsFunc(o.mutes, func(m *muting) bool {
				return m.id == id && meetAny(m.maybe, l.at, l.at)
			}) {
				o.add("mutes are listed", "mute %s is listed at %v, and there is none", id, short(l.at))
			}
		}
	}
}

// mutesAreOnRecord: who muted what and why is told, and that it ended, and who ended it.
func (o *oracle) mutesAreOnRecord() {
	type said struct {
		Mute, Sink, VM, Reason, By, EndedBy string
		Types                               []string
	}
	begun, ended := map[string]said{}, map[string]said{}
	for _, t := range o.taken[""][well] {
		var data said
		list := begun
		switch t.change {
		case "dev.forewarn.bridge.sink.muted":
		case "dev.forewarn.bridge.sink.unmuted":
			list = ended
		default:
			continue
		}
		if err := json.Unmarshal([]byte(t.body), &data); err != nil {
			o.add("mutes are on record", "%s: %v", t.id, err)
		}
		list[data.Reason] = data // each has a reason of its own
		i := slices.IndexFunc(o.mutes, func(m *muting) bool { return m.why == data.Reason })
		if i < 0 {
			o.add("mutes are on record", "%s says %q, which nobody said", t.id, data.Reason)
			continue
		}
		m := o.mutes[i]
		sameTypes := slices.EqualFunc(m.types, data.Types, strings.EqualFold)
		if data.Mute != m.id && m.id != "" || data.Sink != m.sink || data.VM != m.vm || data.By != muter || !sameTypes {
			o.add("mutes are on record", "%s says %+v of the mute of %v", t.id, data, m)
		}
		byHand := slices.ContainsFunc(m.ends, func(u *unmuting) bool { return u.asked.at <= t.at })
		if data.EndedBy == unmuter && !byHand {
			o.add("mutes are on record", "%s says %+v, and nobody ended it by hand", t.id, data)
		}
	}
	dropped := slices.ContainsFunc(o.hands, func(h hand) bool {
		return h.what == "drop" && h.sink == well && h.event == ""
	})
	if o.plan.routes[0].bridge != "all" || o.blurred || o.plan.bounds != (bounds{}) || len(o.ills) > 0 || dropped {
		return
	}
	for _, m := range o.mutes {
		if m.answered.seq == 0 || m.sink == well {
			continue
		}
		if _, told := begun[m.why]; !told {
			o.add("mutes are on record", "nobody was told of %v, from %v on", m, short(m.answered.at))
		}
		end, told := ended[m.why]
		if !told {
			o.add("mutes are on record", "nobody was told of the end of %v", m)
		}
		last := m.maybe[len(m.maybe)-1]
		byHand := slices.ContainsFunc(m.ends, func(u *unmuting) bool {
			return u.answered.seq > 0 && last.meets(u.asked.at, u.answered.at)
		})
		byItself := slices.ContainsFunc(m.sure, func(i interval) bool { return byHand && m.ends[0].asked.at <= i.to })
		if byHand && byItself && end.EndedBy != unmuter {
			o.add("mutes are on record", "%v was ended by %s, and %q is on record", m, unmuter, end.EndedBy)
		}
	}
}

// summaries: people are told what waited for a mute at once, at its end.
func (o *oracle) summaries() {
	for _, r := range o.plan.routes {
		if o.everTroubled(r.name) || o.blurred {
			continue
		}
		for _, m := range o.mutes {
			for _, i := range m.sure {
				end := i.to
				if r := o.as(r.name, end); r.late != "latest" || r.above == 0 || !o.setUp(r.name, i.from, end+o.slack(end)) {
					continue
				}
				var calls []*attempt
				for _, a := range o.attempts {
					if a.sink != r.name || a.start < end || a.start > end+o.slack(end) || len(a.batch) >= 500 {
						continue
					}
					waited := slices.ContainsFunc(a.batch, func(h handed) bool {
						again := slices.ContainsFunc(calls, func(c *attempt) bool { // a crash came before it was on record
							return c.in != a.in && h.isIn(c)
						})
						return h.mute == m.id && o.calm(h, end) && !again
					})
					if waited {
						calls = append(calls, a)
					}
				}
				if len(calls) > 1 {
					o.add("one summary", "at the end of the mute of %v %s was told what waited in %d calls from %v on",
						m, r.name, len(calls), short(calls[0].start))
				}
			}
		}
	}
}

// calm reports whether nothing happened to an event just when a mute ended.
func (o *oracle) calm(h handed, end time.Duration) bool {
	return !o.anyChange(h.event, func(c change) bool { return c.at > end-2*time.Second && c.at < end+5*time.Second })
}

// mutedFallback: what is muted does not go to the fallback meanwhile.
func (o *oracle) mutedFallback(id string, b belief, fallback string) {
	for _, t := range o.tried[id][fallback] {
		place := b.place(t)
		if t.instead == "" || place < 0 || b.changes[place].boot != t.in || o.gaveUp(t.instead, t.id) {
			continue
		}
		c, r := b.changes[place], o.as(t.instead, t.start)
		if !o.setUp(r.name, c.at, t.start) {
			continue
		}
		for _, m := range o.mutesOf(r.name, id) {
			for _, i := range m.sure {
				if m.covers(r.name, c.event.kind, c.event.resources()) && i.from+time.Second < c.at+r.after &&
					i.from < t.start && t.start < i.to {
					o.add("mutes hold", "%s was told %s at %v instead of %s, which was muted: %v", fallback, t.id,
						short(t.start), r.name, m)
				}
			}
		}
	}
}

// mutedSince says until when a mute held back, for sure, what was tried last by the run of the program that ended it; 0
// if none did. Its age counts from then.
func (o *oracle) mutedSince(t taken) (end time.Duration) {
	boot := o.boots[t.in].began.at
	for _, m := range o.mutes {
		for _, i := range m.sure {
			made := t.start - t.began.clock.Sub(t.time)
			if m.about(t.sink, t.handed) && i.to >= max(boot, made+time.Second) && i.to <= t.start {
				end = max(end, i.to)
			}
		}
	}
	return end
}

// stoodFor reports whether a change that became late while it was muted need not be told by a route that drops what is
// late: one after it stands for it.
func (o *oracle) stoodFor(b belief, i int, r routePlan) bool {
	c := b.changes[i]
	return r.late == "drop" && slices.ContainsFunc(b.changes[i+1:], func(x change) bool {
		_, owed := x.routes[r.name]
		return owed && o.mayBeMuted(r.name, c.event.id, c.at, x.at+r.timeout+time.Second)
	})
}
