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

// rewritesDocuments makes the endpoint serve documents that rewrite returns. quietly means that their ETag says nothing of
// it, so that only who asks without one sees it, as the last look before an approval does.
func (s *stage) rewritesDocuments(quietly bool, rewrite func(body string) string) {
	s.proxy = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if !quietly {
				r.Header.Del("If-None-Match")
			}
			resp, err := next.RoundTrip(r)
			if err != nil || r.Method != http.MethodGet || resp.StatusCode != http.StatusOK || !strings.HasSuffix(r.URL.Path, "/scheduledevents") {
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
}

var (
	sourceField = regexp.MustCompile(`"EventSource": ?"[^"]*",?`)
	entryBegins = regexp.MustCompile(`"Events": ?\[`)
)

// insteadOf returns a function that puts text in the place of what the pattern matches in a document with an event.
func insteadOf(pattern *regexp.Regexp, text string) func(string) string {
	return func(body string) string { return pattern.ReplaceAllString(body, text) }
}

// before returns a function that lists another entry before the others.
func before(entry string) func(string) string {
	return func(body string) string {
		if !strings.Contains(body, idA) {
			return body
		}
		return entryBegins.ReplaceAllString(body, `"Events":[`+entry+`,`)
	}
}

// doubtfulDocuments are what documents may become that say something else of a reboot than was told, or two things, while
// most of it is no change that is told.
var doubtfulDocuments = []struct {
	claim   string
	becomes func(string) string
}{
	{"nobody asked for it any more", insteadOf(sourceField, ``)},
	{"it is null who asked", insteadOf(sourceField, `"EventSource":null,`)},
	{"somebody asked whose name looks like a user", insteadOf(sourceField, `"EventSource":"Uſer",`)},
	{"somebody asked whose name has an invisible character", insteadOf(sourceField, `"EventSource":"User\u200b",`)},
	{"two asked, the user last", insteadOf(sourceField, `"EventSource":"Platform","EventSource":"User",`)},
	{"two asked, under keys of different case", insteadOf(sourceField, `"EventSource":"User","eventsource":"Platform",`)},
	{"two asked, under keys that look alike", insteadOf(sourceField, `"Event\u200bSource":"Platform","EventSource":"User",`)},
	{"it is listed before in braces", before(`{"EventId":"{` + idA + `}","EventType":"Reboot","EventStatus":"Scheduled",` +
		`"EventSource":"User","Resources":["vm-0"]}`)},
	{"two lists of events", insteadOf(entryBegins, `"Events":[],"Events":[`)},
	{"it was to terminate two VMs before", before(`{"EventId":"` + idA + `","EventType":"Terminate",` +
		`"EventStatus":"Scheduled","Resources":["vm-0","vm-9"]}`)},
	{"it is listed before without anything", before(`{"EventId":"` + strings.ToLower(idA) + `"}`)},
	{"nobody says how long it takes", insteadOf(regexp.MustCompile(`,"DurationInSeconds": ?-?\d+`), ``)},
	{"nobody says why", insteadOf(regexp.MustCompile(`"Description": ?"[^"]*",?`), ``)},
}

// A document that says something else of an event than was told, or two things, approves nothing: neither when the poll
// loop sees it, nor when only the last look does, and not by hand. It is said why, once. When the doubt is over, the
// rules decide.
func TestADoubtInTheNewestDocumentMeansNo(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range doubtfulDocuments {
		for seenBy, quietly := range map[string]bool{"polls": false, "the last look": true} {
			t.Run(tt.claim+", seen by "+seenBy, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *stage) {
					var doubtful atomic.Bool
					s.rewritesDocuments(quietly, func(body string) string {
						if doubtful.Load() {
							return tt.becomes(body)
						}
						return body
					})
					s.beginsLate()
					rule := rebootRule
					rule.Only.Sources, rule.Wait = []string{"User"}, 10*time.Second
					s.opts.Rules = []bridge.Rule{rule}
					b := s.start((&recorder{}).all("audit"))
					pause(1500 * time.Millisecond)
					s.userReboot(idA)
					pause(5 * time.Second)
					wantIDs(t, s.approvals())
					shown := s.shown(idA)
					doubtful.Store(true)
					pause(40 * time.Second) // without an unconditional poll
					wantIDs(t, s.approvals())
					if a := b.ApproveNow(t.Context(), idA, shown, "root"); a.Result != cloudevent.ResultMoot {
						t.Errorf("by hand: %+v", a)
					}
					wantIDs(t, s.approvals())
					for _, e := range b.Status().Events {
						if e.Approval == "" {
							t.Errorf("the status does not say why it is not approved: %+v", e)
						}
					}
					doubtful.Store(false)
					pause(70 * time.Second) // with one
					wantIDs(t, s.approvals(), idA)
					if n := strings.Count(s.log.String(), `event not approved yet" event=`+idA); n < 2 || n > 5 {
						t.Errorf("the log says %d times why it waits:\n%s", n, s.log)
					}
					b.end()
				})
			})
		}
	}
}

// Documents that say something else of an event at each look approve nothing, until they agree.
func TestADocumentThatChangesAtEachLook(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		var looked atomic.Int64
		var told atomic.Bool
		s.rewritesDocuments(false, func(body string) string {
			if n := looked.Add(1); told.Load() && strings.Contains(body, idA) {
				return doubtfulDocuments[int(n)%len(doubtfulDocuments)].becomes(body)
			}
			return body
		})
		s.beginsLate()
		rule := rebootRule
		rule.Only.Sources, rule.Wait = []string{"User"}, 3*time.Second
		s.opts.Rules = []bridge.Rule{rule}
		b := s.start((&recorder{}).all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		told.Store(true)
		pause(10 * time.Minute)
		wantIDs(t, s.approvals())
		told.Store(false)
		pause(10 * time.Second)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// What the newest document has that speaks against an approval stands in the status.
func TestStatusSaysWhatInTheDocumentKeepsFromApproving(t *testing.T) {
	for becomes, want := range map[string]string{
		``: "rule 1: Azure's newest document differs in EventSource",
		`"EventSource":"Platform","EventSource":"User",`: "rule 1: it has a field twice",
		`"EventSource":"User","Eventſource":"Platform",`: `rule 1: it has a field "Event\u017fource", which looks like EventSource`,
		`"EventSource":"Uſer",`:                          `rule 1: "U\u017fer" has characters that Azure doesn't use`,
	} {
		bubble(t, func(t *testing.T, s *stage) {
			var doubtful atomic.Bool
			s.rewritesDocuments(false, func(body string) string {
				if doubtful.Load() {
					return sourceField.ReplaceAllString(body, becomes)
				}
				return body
			})
			rule := rebootRule
			rule.Only.Sources, rule.Wait = []string{"User"}, 3*time.Second
			s.opts.Rules = []bridge.Rule{rule}
			b := s.start((&recorder{}).all("audit"))
			pause(1500 * time.Millisecond)
			s.userReboot(idA)
			pause(1500 * time.Millisecond)
			doubtful.Store(true)
			pause(10 * time.Second)
			if st := b.Status(); len(st.Events) != 1 || st.Events[0].Approval != want {
				t.Errorf("%s: %+v, want %q", becomes, st.Events, want)
			}
			b.end()
		})
	}
}

// What can't be read of a document may be about any event: nothing is approved then, by a rule or by hand.
func TestAnUnreadableEntryKeepsFromApproving(t *testing.T) {
	for seenBy, quietly := range map[string]bool{"polls": false, "the last look": true} {
		t.Run(seenBy, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				var unreadable atomic.Bool
				s.rewritesDocuments(quietly, func(body string) string {
					if unreadable.Load() {
						return before(`{"EventId":7}`)(body)
					}
					return body
				})
				s.beginsLate()
				rule := rebootRule
				rule.Only.Sources, rule.Wait = []string{"User"}, 10*time.Second
				s.opts.Rules = []bridge.Rule{rule}
				b := s.start((&recorder{}).all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(5 * time.Second)
				unreadable.Store(true)
				if !quietly {
					pause(2 * time.Second) // the rule's wait isn't over
					if why := b.Status().Events[0].Approval; !strings.Contains(why, "can't be read") {
						t.Errorf("before its wait is over the status says that it isn't approved because of %q", why)
					}
				}
				pause(40 * time.Second) // without an unconditional poll
				wantIDs(t, s.approvals())
				if st := b.Status(); !strings.Contains(st.Events[0].Approval, "can't be read") {
					t.Errorf("the status does not say why: %+v", st.Events)
				}
				shown := s.shown(idA)
				if a := b.ApproveNow(t.Context(), idA, shown, "root"); a.Result != cloudevent.ResultMoot {
					t.Errorf("by hand: %+v", a)
				}
				unreadable.Store(false)
				if a := b.ApproveNow(t.Context(), idA, shown, "root"); a.Result != cloudevent.ResultApproved {
					t.Errorf("by hand, once all can be read: %+v", a)
				}
				b.end()
			})
		})
	}
}

// What Azure would not write is told, and never approved, neither by a rule nor by hand, also after a restart, when what
// is known of it comes from the disk.
func TestWhatAzureWouldNotWriteIsToldAndNotApproved(t *testing.T) {
	for claim, rewrite := range map[string]struct {
		becomes  func(string) string
		id, says string
	}{
		"a field looks like another": {
			insteadOf(sourceField, `"EventSource":"User","Eventſource":"Platform",`), idA,
			`it has a field "Event\u017fource", which looks like EventSource`,
		},
		"its EventId is in braces": {
			insteadOf(regexp.MustCompile(idA), `{`+idA+`}`), "-" + idA + "--F4CC7440DC6EE02C",
			`its EventId "{` + idA + `}" has characters that Azure doesn't use`,
		},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.rewritesDocuments(false, rewrite.becomes)
				s.opts.Rules = []bridge.Rule{rebootRule}
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(time.Minute)
				b.end()
				b = s.start(audit.all("audit"))
				pause(time.Minute)
				shown := b.Status().Events[0].Known
				a := b.ApproveNow(t.Context(), shown.ID, shown.Digest(), "root")
				if a.Result != cloudevent.ResultMoot || a.Error != rewrite.says {
					t.Errorf("by hand: %+v, want it refused because %s", a, rewrite.says)
				}
				wantIDs(t, s.approvals())
				wantIDs(t, audit.ids(), rewrite.id+"-scheduled")
				if why := b.Status().Events[0].Approval; why != "rule 1: "+rewrite.says {
					t.Errorf("the status says %q, want %q", why, "rule 1: "+rewrite.says)
				}
				b.end()
			})
		})
	}
}

// By what is unclear no rule approves, also after a restart, and none is promised to. Somebody who sees it may.
func TestWhatIsUnclearIsApprovedOnlyByHand(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.rewritesDocuments(false, insteadOf(regexp.MustCompile(`"NotBefore":"[^"]+"`), `"NotBefore":"tomorrow"`))
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(time.Minute)
		b.end()
		b = s.start(audit.all("audit"))
		pause(time.Minute)
		wantIDs(t, s.approvals())
		wantIDs(t, audit.promised(t), "-")
		if why := b.Status().Events[0].Approval; why != `rule 1: NotBefore "tomorrow" is not a time in GMT` {
			t.Errorf("the status says %q", why)
		}
		shown := b.Status().Events[0].Known
		a := b.ApproveNow(t.Context(), shown.ID, shown.Digest(), "root")
		if a.Result != cloudevent.ResultApproved {
			t.Errorf("by hand: %+v", a)
		}
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// A document of an api-version that lacks the fields that a rule's when looks at approves nothing by that rule, also after
// a restart, and promises nothing. The status says which field is missing.
func TestAWhenOfARuleApprovesNothingByWhatAzureDidNotSend(t *testing.T) {
	for when, field := range map[string]string{`azeventsource != "Platform"`: "EventSource", `duration <= 10`: "DurationInSeconds"} {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, NewestVersion: "2017-08-01"})
			rule := rebootRule
			rule.Only.Sources, rule.When = nil, mustParseWhen(t, when)
			s.opts.Rules = []bridge.Rule{rule}
			audit := &recorder{}
			b := s.start(audit.all("audit"))
			pause(1500 * time.Millisecond)
			s.reboot(idA)
			pause(time.Minute)
			b.end()
			b = s.start(audit.all("audit"))
			pause(time.Minute)
			wantIDs(t, s.approvals())
			wantIDs(t, audit.promised(t), "-")
			want := "rule 1: Azure does not say " + field + " (when)"
			if st := b.Status(); len(st.Events) != 1 || st.Events[0].Approval != want {
				t.Errorf("%s: %+v, want %q", when, st.Events, want)
			}
			b.end()
		})
	}
}

// What an event says of this VM, if it was seen before its name was known, decides no rule: by a condition that is to keep
// the rule from this very VM it would be approved.
func TestAWhenOfARuleApprovesNothingByANameThatWasNotKnown(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		rule := rebootRule
		rule.When = mustParseWhen(t, `observer != "vm-0"`)
		s.opts.Rules = []bridge.Rule{rule}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 2 * time.Minute})
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA) // it begins too soon to be held until the name is known
		pause(5 * time.Minute)
		wantIDs(t, audit.ids(), idA+"-scheduled")
		wantIDs(t, s.approvals())
		want := "rule 1: the name of this VM was not known when the event was seen (when)"
		if got := b.Status().Events[0].Approval; got != want {
			t.Errorf("the status says %q, want %q", got, want)
		}
		b.end()
	})
}
