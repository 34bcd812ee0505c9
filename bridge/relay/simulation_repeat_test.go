package relay_test

// repeats: what is said once more about an event is the newest change of it that the destination has taken, so never
// anything after its end.
func (o *oracle) repeats(r routePlan) {
	seq := map[string]uint64{} // in which order changes came
	for _, s := range o.news {
		if s.to == "" && azures(s.change) && !s.outdated {
			seq[s.event+" "+s.id] = s.seq
		}
	}
	for _, again := range o.repeated {
		if again.sink != r.name {
			continue
		}
		newest := handed{}
		for _, t := range o.taken[r.name][again.event] {
			if t.start < again.at && seq[t.event+" "+t.handed.id] > seq[newest.event+" "+newest.id] {
				newest = t.handed
			}
		}
		switch {
		case newest.id != again.id:
			o.add("repeats what is open", "%s was told %s once more at %v, after %q", r.name, again.id, short(again.at),
				newest.id)
		case again.change == "vanished":
			o.add("repeats what is open", "%s was told %s once more", r.name, again.id)
		}
	}
}
