package sinks

import (
	"strings"
	"testing"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// pauseNews returns what can be told of a pause that Azure says lasts 5 s, by what happens. A rule starts it early, as is
// told, where the name has "by rule".
func pauseNews() map[string]delivery.Delivery {
	all := map[string]delivery.Delivery{}
	plan := azure("Scheduled", "Freeze", "04:10:00", map[string]any{"DurationInSeconds": 5})
	later := azure("Scheduled", "Freeze", "04:25:00", map[string]any{"DurationInSeconds": 5})
	begun := azure("Started", "Freeze", "", map[string]any{"DurationInSeconds": 5})
	tell := func(name string, c imds.Change, in cloudevent.Circumstances) {
		in.Time, in.Incarnation, in.Observer = messageTime.clock(), "7", dbHost
		all[name] = deliveryOf(cloudevent.Wrap(c, in))[0]
	}
	rules := []cloudevent.Rule{{Name: "rule 1", After: []string{"drain"}}}
	agreed := &cloudevent.Asked{By: "rule 1", Time: messageTime.clock(), Answered: true}
	for suffix, rules := range map[string][]cloudevent.Rule{"": nil, " by rule": rules} {
		in := cloudevent.Circumstances{Rules: rules}
		tell("scheduled"+suffix, imds.Change{Kind: imds.Scheduled, Event: plan}, in)
		tell("moved"+suffix, imds.Change{Kind: imds.Updated, Event: later, Previous: &plan, Fields: []string{"NotBefore"}}, in)
		tell("reminder"+suffix, imds.Change{Kind: imds.Reminder, Event: plan, Lead: time.Hour}, in)
	}
	for result, asked := range map[string]*cloudevent.Asked{cloudevent.ResultApproved: agreed, cloudevent.ResultWithheld: nil} {
		approval := &cloudevent.Approval{Result: result, By: "rule 1", Decided: messageTime.clock()}
		tell(result, imds.Change{Kind: imds.Approved, Event: plan}, cloudevent.Circumstances{Approval: approval, Asked: asked})
		tell(result+" when begun", imds.Change{Kind: imds.Approved, Event: begun}, cloudevent.Circumstances{Approval: approval, Asked: asked})
	}
	tell("promised", imds.Change{Kind: imds.Approved, Event: plan}, cloudevent.Circumstances{Rules: rules,
		Approval: &cloudevent.Approval{Result: cloudevent.ResultPromised, By: "rule 1", Decided: messageTime.clock()}})
	tell("refused", imds.Change{Kind: imds.Approved, Event: plan}, cloudevent.Circumstances{
		Approval: &cloudevent.Approval{Result: cloudevent.ResultRefused, By: "root", Decided: messageTime.clock()}})
	tell("started", imds.Change{Kind: imds.Started, Event: begun}, cloudevent.Circumstances{})
	late := all["started"]
	late.Missed = []delivery.Missed{{Change: "updated", Time: messageTime.clock()}}
	all["started, a move was missed"] = late
	late.Missed = []delivery.Missed{{Change: "reminder", Time: messageTime.clock()}}
	all["started, a reminder was missed"] = late
	for name, pause := range map[string]time.Duration{"over": 4 * time.Second, "over late": 40 * time.Second} {
		tell(name, imds.Change{Kind: imds.Vanished, Event: begun},
			cloudevent.Circumstances{End: cloudevent.End{Outcome: cloudevent.OutcomeCompleted, LongestPause: pause}})
	}
	for name, outcome := range map[string]cloudevent.Outcome{"cancelled": cloudevent.OutcomeCanceled, "gone": cloudevent.OutcomeUnknown} {
		tell(name, imds.Change{Kind: imds.Vanished, Event: plan}, cloudevent.Circumstances{End: cloudevent.End{Outcome: outcome}})
	}
	return all
}

// A pause of known length up to 10 s is one mail, which says that another follows only if something changes or it lasts
// clearly longer. So it is: neither a reminder nor what comes of an approval is mailed while what was told of its time holds.
// Whoever got a second mail is told all that follows, and so the end.
func TestAShortPauseIsOneMailUnlessSomethingChanges(t *testing.T) {
	for _, tt := range []struct{ told, mailed string }{
		{"scheduled/started/over", "scheduled"},
		{"scheduled/reminder/started/over", "scheduled"},
		{"scheduled/started/over late", "scheduled/over late"},
		{"scheduled/started, a reminder was missed/over", "scheduled"},
		{"scheduled/started, a move was missed/over", "scheduled/started, a move was missed/over"},
		{"started/over", "started"},
		{"reminder/started/over", "reminder"},
		{"over", "over"},
		{"scheduled/moved/started/over", "scheduled/moved/started/over"},
		{"moved/started/over", "moved/started/over"},
		{"scheduled/cancelled", "scheduled/cancelled"},
		{"scheduled/moved/cancelled", "scheduled/moved/cancelled"},
		{"scheduled/gone", "scheduled"},
		{"scheduled/moved/gone", "scheduled/moved/gone"},
		{"scheduled by rule/approved/started/over", "scheduled by rule"},
		{"scheduled by rule/reminder by rule/approved when begun/over", "scheduled by rule"},
		{"scheduled by rule/withheld/started/over", "scheduled by rule/withheld/started/over"},
		{"scheduled by rule/reminder/over", "scheduled by rule/reminder/over"},
		{"scheduled by rule/withheld when begun/over", "scheduled by rule"},
		{"scheduled/approved/started/over", "scheduled/approved/started/over"},
		{"scheduled/refused/started/over", "scheduled"},
		{"scheduled/promised/approved/over", "scheduled/promised/approved/over"},
		{"scheduled by rule/moved by rule/withheld/cancelled", "scheduled by rule/moved by rule/withheld/cancelled"},
	} {
		b := &mailbox{}
		s := mustOpen(t, "email", plainMail(t, b)+"to: [ops@example.com]\n", testHost(t))
		all, mailed, last := pauseNews(), []string{}, 0
		var receipt []byte
		for _, name := range strings.Split(tt.told, "/") {
			d := all[name]
			d.Receipt = receipt
			answer, err := s.Deliver(t.Context(), []delivery.Delivery{d})
			if err != nil {
				t.Fatal(err)
			}
			if answer.Receipt != nil {
				receipt = answer.Receipt
			}
			if n := len(b.all()); n > last {
				mailed, last = append(mailed, name), n
			}
		}
		if got := strings.Join(mailed, "/"); got != tt.mailed {
			t.Errorf("told of %s, it mails %s; want %s", tt.told, got, tt.mailed)
		}
		for i, m := range b.all() {
			promise := strings.Contains(readMail(t, m.raw).text, "You hear again only if something changes or it lasts clearly longer.")
			if may := i == 0 && oneOf(strings.TrimSuffix(mailed[0], " by rule"), "scheduled", "started", "reminder"); promise != may {
				t.Errorf("told of %s, the mail about %s says so: %v\n%s", tt.told, mailed[i], promise, m.raw)
			}
		}
	}
}

// A mail about many events promises no silence about one of them, and what was told in it counts.
func TestAShortPauseThatMovedInAGroupIsToldToItsEnd(t *testing.T) {
	b := &mailbox{}
	s := mustOpen(t, "email", plainMail(t, b)+"to: [ops@example.com]\n", testHost(t))
	all := pauseNews()
	answer, _ := s.Deliver(t.Context(), []delivery.Delivery{all["scheduled"]})
	moved := []delivery.Delivery{all["moved"], deliveries(t)[1]}
	moved[0].Receipt = answer.Receipt
	answer, _ = s.Deliver(t.Context(), moved)
	over := all["over"]
	over.Receipt = answer.Receipt
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{over}); err != nil || len(b.all()) != 3 {
		t.Errorf("%d mails and error %v, want three: it was announced, moved and over", len(b.all()), err)
	}
}
