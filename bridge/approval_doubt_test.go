package bridge_test

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// rewritesDocuments makes the endpoint serve documents that rewrite returns. quietly means that their ETag says nothing
// of it, so that only who asks without one sees it, as the last look before an approval does.
func (s *stage) rewritesDocuments(quietly bool, rewrite func(body string) string) {
	s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
		if !quietly {
			r.Header.Del("If-None-Match")
		}
		resp, err := azure.RoundTrip(r)
		isDocument := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/scheduledevents")
		if err != nil || !isDocument || resp.StatusCode != http.StatusOK {
			return resp, err
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		body = []byte(rewrite(string(body)))
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return resp, nil
	})
}

// doubts rewrites documents while the result is true.
func (s *stage) doubts(quietly bool, rewrite func(body string) string) *atomic.Bool {
	var doubtful atomic.Bool
	s.rewritesDocuments(quietly, func(body string) string {
		if doubtful.Load() {
			return rewrite(body)
		}
		return body
	})
	return &doubtful
}

var (
	sourceField = regexp.MustCompile(`"EventSource": ?"[^"]*",?`)
	entryBegins = regexp.MustCompile(`"Events": ?\[`)
)

// insteadOf returns a function that puts text in the place of what the pattern matches in a document with an event.
func insteadOf(pattern *regexp.Regexp, text string) func(string) string {
	return func(body string) string { return pattern.ReplaceAllString(body, text) }
}

// asks returns a function that puts text in the place of who asked for the event.
func asks(text string) func(string) string { return insteadOf(sourceField, text) }

// before returns a function that lists another entry before the others.
func before(entry string) func(string) string {
	return func(body string) string {
		if !strings.Contains(body, idA) {
			return body
		}
		return entryBegins.ReplaceAllString(body, `"Events":[`+entry+`,`)
	}
}

const twoThings = "the document says two different things about it"

// doubtfulDocuments are what documents may become that say something else of a reboot than was told, or two things,
// while most of it is no change that is told, or that can't be read in part, which may be about any event.
var doubtfulDocuments = []struct {
	claim   string
	becomes func(string) string
	why     string // it isn't approved
}{
	{"nobody asked for it any more", asks(``), "Azure's newest document differs in EventSource"},
	{"it is null who asked", asks(`"EventSource":null,`), "Azure does not say whether it comes from User (only.sources)"},
	{"somebody asked whose name looks like a user", asks(`"EventSource":"Uſer",`),
		`"U\u017fer" has characters that Azure doesn't use`},
	{"somebody asked whose name has an invisible character", asks(`"EventSource":"User\u200b",`),
		`"User\u200b" has characters that Azure doesn't use`},
	{"two asked, the user last", asks(`"EventSource":"Platform","EventSource":"User",`), "it has a field twice"},
	{"two asked, under keys of different case", asks(`"EventSource":"User","eventsource":"Platform",`),
		`it has a field "eventsource", which looks like EventSource`},
	{"two asked, under keys that look alike", asks(`"EventSource":"User","Eventſource":"Platform",`),
		`it has a field "Event\u017fource", which looks like EventSource`},
	{"two asked, under a key with an invisible character", asks(`"Event\u200bSource":"Platform","EventSource":"User",`),
		`it has a field "Event\u200bSource", which looks like EventSource`},
	{"it is listed before in braces", before(`{"EventId":"{` + idA + `}","EventType":"Reboot",` +
		`"EventStatus":"Scheduled","EventSource":"User","Resources":["vm-0"]}`), twoThings},
	{"two lists of events", insteadOf(entryBegins, `"Events":[],"Events":[`), twoThings},
	{"it was to terminate two VMs before", before(`{"EventId":"` + idA + `","EventType":"Terminate",` +
		`"EventStatus":"Scheduled","Resources":["vm-0","vm-9"]}`), twoThings},
	{"it is listed before without anything", before(`{"EventId":"` + strings.ToLower(idA) + `"}`), twoThings},
	{"an entry can't be read", before(`{"EventId":7}`), "part of Azure's document can't be read"},
	{"nobody says how long it takes", insteadOf(regexp.MustCompile(`,"DurationInSeconds": ?-?\d+`), ``),
		"Azure's newest document differs in DurationInSeconds"},
	{"nobody says why", insteadOf(regexp.MustCompile(`"Description": ?"[^"]*",?`), ``),
		"Azure's newest document differs in Description"},
}

// userRule approves what a user asked for, after a while.
func userRule(wait time.Duration) bridge.Rule {
	rule := waiting(rebootRule, wait)
	rule.Only.Sources = []string{"User"}
	return rule
}

// A document that says something else of an event than was told, or two things, approves nothing: neither when the poll
// loop sees it, nor when only the last look does, and not by hand. The log and the status say why; the log not each
// time. When the doubt is over, the rules decide.
func TestADoubtInTheNewestDocumentMeansNo(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range doubtfulDocuments {
		for seenBy, quietly := range map[string]bool{"polls": false, "the last look": true} {
			approvalSubtest(t, tt.claim+", seen by "+seenBy, func(t *testing.T, s *approvalStage) {
				doubtful := s.doubts(quietly, tt.becomes)
				s.announce(userRule(10 * time.Second))
				pause(3 * time.Second)
				wantIDs(t, s.approvals())
				shown := s.shown(idA)
				doubtful.Store(true)
				if !quietly {
					pause(2 * time.Second) // the rule's wait isn't over
					s.wantWhy("rule 1: " + tt.why)
				}
				pause(40 * time.Second) // without an unconditional poll
				s.wantWhy("rule 1: " + tt.why)
				a := s.ApproveNow(t.Context(), idA, shown, "root")
				wantEqual(t, "the approval by hand", a.Result, cloudevent.ResultMoot)
				wantIDs(t, s.approvals())
				doubtful.Store(false)
				pause(70 * time.Second) // with one
				wantIDs(t, s.approvals(), idA)
				logged := s.log.Count(`event not approved yet" event=` + idA)
				wantWithin(t, "times that the log says why it waits", logged, 2, 5)
			})
		}
	}
}

// Documents that say something else of an event at each look approve nothing, until they agree.
func TestADocumentThatChangesAtEachLook(t *testing.T) {
	systemtest.Alone(t)
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		var looked atomic.Int64
		doubtful := s.doubts(false, func(body string) string {
			return doubtfulDocuments[int(looked.Add(1))%len(doubtfulDocuments)].becomes(body)
		})
		s.announce(userRule(3 * time.Second))
		doubtful.Store(true)
		pause(10 * time.Minute)
		wantIDs(t, s.approvals())
		doubtful.Store(false)
		pause(10 * time.Second)
		wantIDs(t, s.approvals(), idA)
	})
}

// What Azure would not write, or what can't be understood, is told, and never approved by a rule, nor is a rule said
// to, also after a restart, when what is known of it comes from the disk. By what is unclear somebody who sees it may
// approve it.
func TestWhatAzureWouldNotWriteIsToldAndNotApproved(t *testing.T) {
	for claim, tt := range map[string]struct {
		becomes func(string) string
		id      string
		why     string
		byHand  string
	}{
		"a field looks like another": {
			asks(`"EventSource":"User","Eventſource":"Platform",`), idA,
			`it has a field "Event\u017fource", which looks like EventSource`, cloudevent.ResultMoot,
		},
		"its EventId is in braces": {
			insteadOf(regexp.MustCompile(idA), `{`+idA+`}`), "-" + idA + "--F4CC7440DC6EE02C",
			`its EventId "{` + idA + `}" has characters that Azure doesn't use`, cloudevent.ResultMoot,
		},
		"its time is unclear": {
			insteadOf(regexp.MustCompile(`"NotBefore":"[^"]+"`), `"NotBefore":"tomorrow"`), idA,
			`NotBefore "tomorrow" is not a time in GMT`, cloudevent.ResultApproved,
		},
	} {
		approvalSubtest(t, claim, func(t *testing.T, s *approvalStage) {
			s.rewritesDocuments(false, tt.becomes)
			s.announce(rebootRule)
			pause(time.Minute)
			s.end()
			s.up()
			pause(time.Minute)
			wantIDs(t, s.approvals())
			wantIDs(t, s.audit.ids(), tt.id+"-scheduled")
			wantIDs(t, s.audit.promised(t), "-")
			event := s.Status().Events[0]
			wantEqual(t, "why it isn't approved", event.Approval, "rule 1: "+tt.why)
			a := s.ApproveNow(t.Context(), event.Known.ID, event.Known.Digest(), "root")
			wantEqual(t, "the approval by hand", a.Result, tt.byHand)
			if tt.byHand == cloudevent.ResultMoot {
				wantEqual(t, "why it isn't approved by hand", a.Error, tt.why)
			}
		})
	}
}

// A document of an api-version that lacks the fields that a rule's when looks at approves nothing by that rule, also
// after a restart, and promises nothing. The status says which field is missing.
func TestAWhenOfARuleApprovesNothingByWhatAzureDidNotSend(t *testing.T) {
	for when, field := range map[string]string{
		`azeventsource != "Platform"`: "EventSource", `duration <= 10`: "DurationInSeconds",
	} {
		approvalSubtest(t, when, func(t *testing.T, s *approvalStage) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, NewestVersion: "2017-08-01"})
			rule := rebootRule
			rule.When = mustParseWhen(t, when)
			s.announce(rule)
			pause(time.Minute)
			s.end()
			s.up()
			pause(time.Minute)
			wantIDs(t, s.approvals())
			wantIDs(t, s.audit.promised(t), "-")
			s.wantWhy("rule 1: Azure does not say " + field + " (when)")
		})
	}
}

// What an event says of this VM, if it was seen before its name was known, decides no rule: by a condition that is to
// keep the rule from this very VM it would be approved.
func TestAWhenOfARuleApprovesNothingByANameThatWasNotKnown(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		rule := rebootRule
		rule.When = mustParseWhen(t, `observer != "vm-0"`)
		s.metadata(imdstest.Fault{Status: 503, For: 2 * time.Minute})
		s.announce(rule) // it begins too soon to be held until the name is known
		pause(5 * time.Minute)
		wantIDs(t, s.audit.ids(), idA+"-scheduled")
		wantIDs(t, s.approvals())
		s.wantWhy("rule 1: the name of this VM was not known when the event was seen (when)")
	})
}
