package wording

import (
	"testing"

	"forewarn/bridge/cloudevent"
)

// Why no rule approves an event is said with the rule's name, once, also where each of several rules has its own reason.
func TestWhyARuleDoesNotApproveNamesItOnce(t *testing.T) {
	const both = `rule 1: sink "drain" failed: exit 1; rule 2: sink "cordon" failed and is tried again: exit 75`
	for _, tt := range []struct {
		said cloudevent.Approval
		want string
	}{
		{cloudevent.Approval{Sink: "drain", Error: "exit 1"}, `not approved by rule 1, because sink "drain" failed: exit 1`},
		{cloudevent.Approval{Sink: "drain", Error: "exit 75", NotYet: true},
			`not approved yet by rule 1, because sink "drain" hasn't succeeded: exit 75`},
		{cloudevent.Approval{Error: "the wait of 1h lasts until 3:40"},
			"not approved by rule 1 after all: the wait of 1h lasts until 3:40"},
		{cloudevent.Approval{Error: both}, "not approved after all: " + both},
		{cloudevent.Approval{Error: both, NotYet: true}, "not approved yet: " + both},
	} {
		tt.said.Result, tt.said.By = cloudevent.ResultWithheld, "rule 1"
		if got := ApprovalWords(tt.said); got != tt.want {
			t.Errorf("%+v is described as %q, want %q", tt.said, got, tt.want)
		}
	}
}
