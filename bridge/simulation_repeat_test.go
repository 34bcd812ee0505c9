package bridge_test

import "slices"

// A repeated is what a destination was told once more.
type repeated struct {
	fact
	sink string
	handed
}

// repeat takes what the program repeats.
func (d destination) repeat(h handed) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if !d.w.dead {
		d.w.repeated = append(d.w.repeated, repeated{d.w.fact(), d.name, h})
	}
}

// repeats: what is said once more about an event is the last that the destination has taken of its changes and of what came
// of its approval, so never anything after its end. If a later answer came, which it hasn't taken, it may be the change.
func (o *oracle) repeats() {
	if o.blurred {
		return
	}
	for _, again := range o.repeated {
		if o.forgetsSome(again.event) {
			continue
		}
		first, own := map[string]int{}, map[string]int{} // when something was told first: to anybody, and to this one
		note := func(told map[string]int, t taken) {
			at, known := told[t.id]
			if !known || t.began.seq < at {
				told[t.id] = t.began.seq
			}
		}
		for _, t := range o.tried.of(again.event) {
			note(first, t)
			if t.sink == again.sink {
				note(own, t)
			}
		}
		// What was said first has the earlier time, unless the clock was set back, and was told earlier, unless it had to wait,
		// also to this destination, unless it was replayed.
		byTime := func(a, b handed) bool { return a.time.Before(b.time) }
		byTold := func(a, b handed) bool { return first[a.id] < first[b.id] }
		byOwn := func(a, b handed) bool { return own[a.id] < own[b.id] }
		switch {
		case !o.saidLast(again, byTime) && !o.saidLast(again, byTold) && !o.saidLast(again, byOwn):
			o.add("repeats what is open", "%s was told %s once more", again.sink, again.id)
		case again.change == "vanished":
			o.add("repeats what is open", "%s was told %s once more, and that is the end", again.sink, again.id)
		}
	}
}

// forgetsSome reports whether the program may have forgotten a change of the event, and repeats one before it.
func (o *oracle) forgetsSome(event string) bool {
	return o.anyChange(event, change.gone)
}

// saidLast reports whether what was said once more is what repeats demands, in an order.
func (o *oracle) saidLast(again repeated, before func(a, b handed) bool) bool {
	var newest, change handed
	for _, t := range o.taken[again.event][again.sink] {
		if t.seq > again.seq || t.change == "reminder" {
			continue
		}
		if newest.id == "" || !before(t.handed, newest) {
			newest = t.handed
		}
		if t.change != "approved" && (change.id == "" || !before(t.handed, change)) {
			change = t.handed
		}
	}
	if newest.id == again.id || newest.change != "approved" || change.id != again.id {
		return newest.id == again.id
	}
	return slices.ContainsFunc(o.tried.of(again.event), func(t taken) bool {
		return t.change == "approved" && before(newest, t.handed)
	})
}
