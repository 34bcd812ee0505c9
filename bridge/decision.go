package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/cloudevent"
)

// A decision is an approval by a rule, stored with the event so that a crash cannot lose it, until it is sent or moot.
// An approval by hand is stored only once it is done, because its user waits for the result.
type decision struct {
	Seq      uint64    `json:"seq"`  // of the change that the rule decided about
	Rule     int       `json:"rule"` // counted from 1; 0 by hand
	Decided  time.Time `json:"decided"`
	Attempts int       `json:"attempts"` // of which Azure may have heard
	Failures int       `json:"failures,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	By       string    `json:"by"`               // names the rule, or the user who approves by hand
	Result   string    `json:"result,omitempty"` // "" until it is done
}

// unsent reports whether there is an approval that is still to be sent.
func (d *decision) unsent() bool { return d != nil && d.Result == "" }

// settles reports whether the approval has come to its end for the change with that number: Azure took or refused it. One
// that was given up because the rules no longer approved it leaves what they say later.
func (d *decision) settles(change uint64) bool {
	return d != nil && d.Seq == change && (d.Result == cloudevent.ResultApproved || d.Result == cloudevent.ResultRefused)
}

// waits reports whether the next attempt is still to come. A time further ahead than the longest wait is left from
// before the clock was set back, and has come.
func (d *decision) waits(now time.Time) bool {
	left := d.Next.Sub(now)
	return left > 0 && left <= slices.Max(pollBackoff)
}

// givenUp returns the record that the decision is given up. Once it was sent, Azure may have taken it.
func (d *decision) givenUp(why string) cloudevent.Approval {
	if d.Attempts > 0 {
		return cloudevent.Approval{Result: cloudevent.ResultUnanswered, Error: why + " before it answered"}
	}
	return cloudevent.Approval{Result: cloudevent.ResultMoot, Error: why}
}

// record completes the record of what came of the decision.
func (d *decision) record(a cloudevent.Approval, op *openEvent, now time.Time) cloudevent.Approval {
	a.By, a.Decided, a.Attempts = d.By, d.Decided, d.Attempts
	a.After = op.openFor(now)
	return a
}

// decided records the result of an approval.
func (op *openEvent) decided(d decision, a cloudevent.Approval, now time.Time) {
	if d.Rule != 0 || a.Result == cloudevent.ResultApproved {
		keptBefore := op.Unsaid && a.Result == cloudevent.ResultApproved // and a change has come meanwhile
		if d.Seq == op.latest.Seq || keptBefore {
			op.promise(nil) // kept, or told otherwise
		}
		d.Result = a.Result
		op.Approval = &d
	}
	lost := a.Result == cloudevent.ResultRefused && d.Attempts > 1 // Azure may have taken an earlier one
	switch {
	case a.Result == cloudevent.ResultApproved:
		op.Asked = &cloudevent.Asked{By: a.By, Time: now.UTC(), Answered: true}
	case op.Asked != nil && op.Asked.Answered: // Azure has taken one, whatever becomes of another
	case a.Result == cloudevent.ResultUnanswered, lost:
		op.Asked = &cloudevent.Asked{By: a.By, Time: d.Decided.UTC()}
	case a.Result == cloudevent.ResultRefused:
		op.unask(d)
	}
}

// ask records that a user is about to ask Azure to approve the event, unless somebody may have asked already. It returns
// whether it did.
func (op *openEvent) ask(d decision) bool {
	if op.Asked != nil {
		return false
	}
	op.Asked = &cloudevent.Asked{By: d.By, Time: d.Decided}
	return true
}

// unask takes back what ask recorded, because Azure wasn't asked, or refused. It returns whether ask had.
func (op *openEvent) unask(d decision) bool {
	asked := op.Asked
	if asked == nil || asked.Answered || asked.By != d.By || !asked.Time.Equal(d.Decided) {
		return false
	}
	op.Asked = nil
	return true
}

// asked returns the last approval that Azure took, or may have taken; nil for none.
func (op *openEvent) asked() *cloudevent.Asked {
	if d := op.Approval; d.unsent() && d.Attempts > 0 {
		return &cloudevent.Asked{By: d.By, Time: d.Decided}
	}
	return op.Asked
}
