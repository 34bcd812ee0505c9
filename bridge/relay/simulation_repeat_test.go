package relay_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// addAnswers has VMs say what came of approvals, some of them after others say that the event has moved or begun.
func addAnswers(r *rand.Rand, observers [][]saying) {
	nth := 0
	for i, list := range observers {
		for _, s := range list {
			if s.make == nil || r.IntN(4) > 0 {
				continue
			}
			ce, err := s.make(bubbleEpoch.Add(s.at))
			if err != nil || ce.Subject() == "" {
				continue
			}
			c := cloudevent.ChangeOf(ce)
			if !ahead(string(c.Kind)) {
				continue
			}
			nth++
			at := s.at + pick(r, 100*time.Millisecond, 5*time.Second, 2*time.Minute)
			observers[i] = append(observers[i], saying{at: at, make: answerSaidAt(bubbleEpoch.Add(at), c.Event, i, nth)})
		}
		slices.SortStableFunc(observers[i], func(a, b saying) int { return cmp.Compare(a.at, b.at) })
	}
}

// answerSaidAt returns what a VM says for the nth time: that no rule approves an event after all.
func answerSaidAt(at time.Time, e imds.Event, observer, nth int) func(time.Time) (event.Event, error) {
	return func(time.Time) (event.Event, error) {
		return cloudevent.Wrap(imds.Change{Kind: imds.Approved, Event: e}, cloudevent.Circumstances{
			Observer: imds.Observer{Name: fmt.Sprintf("vm-%d", observer), ResourceGroup: "web"}, Time: at, Repeat: nth,
			Approval: &cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule 1", Sink: "drain", Error: "exit 75"},
		})
	}
}

// repeats: what is said once more about an event is the last that the destination has taken of its changes and of what came
// of its approval, so never anything after its end. If a later answer came, which it hasn't taken, it may be the change.
func (o *oracle) repeats(r routePlan) {
	seq := map[string]uint64{} // in which order they came
	answers, latest := map[string][]said{}, map[string]said{}
	for _, s := range o.news {
		late := latest[s.event].change == "started" && !s.begun
		switch {
		case s.to != "" || s.outdated:
		case azures(s.change):
			seq[s.event+" "+s.id], latest[s.event] = s.seq, s
		case s.change == "approved" && !late:
			seq[s.event+" "+s.id] = s.seq
			answers[s.event] = append(answers[s.event], s)
		}
	}
	for _, again := range o.repeated {
		if again.sink != r.name {
			continue
		}
		newest, change := handed{}, handed{}
		for _, t := range o.taken[r.name][again.event] {
			at := seq[t.event+" "+t.handed.id]
			if t.start < again.at && at > seq[newest.event+" "+newest.id] {
				newest = t.handed
			}
			if t.start < again.at && azures(t.change) && at > seq[change.event+" "+change.id] {
				change = t.handed
			}
		}
		superseded := newest.change == "approved" && slices.ContainsFunc(answers[again.event], func(s said) bool {
			return s.seq > seq[newest.event+" "+newest.id] && s.stored <= again.at
		})
		switch {
		case newest.id != again.id && !(superseded && change.id == again.id):
			o.add("repeats what is open", "%s was told %s once more at %v, after %q", r.name, again.id, short(again.at),
				newest.id)
		case again.change == "vanished":
			o.add("repeats what is open", "%s was told %s once more", r.name, again.id)
		}
	}
}
