package imdstest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// StartRequests are accepted in every form that Azure documents, in every version. Anything else is refused and
// approves nothing.
func TestStartRequestsAreAcceptedInEveryDocumentedForm(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) { approveInEveryForm(t, "/metadata/scheduledevents?api-version="+version) })
	}
}

func approveInEveryForm(t *testing.T, url string) {
	const id = "602D9444-D2CD-49C7-8624-8643E7171297"
	for _, tt := range []struct {
		body   string
		status int
	}{
		{`{"StartRequests":[{"EventId":"` + id + `"}]}`, 200},
		{`{"StartRequests" : [{"EventId": "` + strings.ToLower(id) + `"}]}`, 200},
		{`{"DocumentIncarnation":"5","StartRequests":[{"EventId":"` + id + `"}]}`, 200},
		{`{"DocumentIncarnation":5,"StartRequests":[{"EventId":"` + id + `"}]}`, 200},
		{`{"StartRequests":[{"EventId":"unknown"}]}`, 400},
		{`{"StartRequests":[{"EventId":"` + id + `"},{"EventId":"unknown"}]}`, 400},
		{`{"StartRequests":[{"EventId":7}]}`, 400},
		{`{"StartRequests":[{}]}`, 400},
		{`{"StartRequests":[]}`, 400},
		{`{"StartRequests":{"EventId":"` + id + `"}}`, 400},
		{`{}`, 400},
		{`StartRequests=1`, 400},
		{``, 400},
	} {
		s := New(Options{})
		s.Schedule(Event{ID: id})
		resp := ask(s, "POST", url, tt.body, "Content-Type", "application/x-www-form-urlencoded")
		body := text(resp)
		if resp.StatusCode != tt.status || (body == "") != (tt.status == 200) {
			t.Errorf("%s: %d %q, want %d", tt.body, resp.StatusCode, body, tt.status)
		}
		if e, _ := s.Event(id); (e.Status == Started) != (tt.status == 200) {
			t.Errorf("%s: the event is %s after %d", tt.body, e.Status, tt.status)
		}
		if got := len(s.Approvals()); (got == 1) != (tt.status == 200) {
			t.Errorf("%s: %d approvals after %d", tt.body, got, tt.status)
		}
	}
}

// An approval from any VM starts the event for all VMs after the delay. Approving again changes nothing.
func TestApprovedEventStartsAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{VMs: []string{"vm_0", "vm_1"}, ApproveDelay: 30 * time.Second, Speed: 3})
		a := s.Schedule(Event{Resources: []string{"vm_0"}})
		b := s.Schedule(Event{Resources: []string{"vm_1"}})
		approve := func() {
			t.Helper()
			body := fmt.Sprintf(`{"StartRequests":[{"EventId":%q},{"EventId":%q}]}`, a.ID, b.ID)
			resp := ask(s, "POST", "/vm/VM_1/metadata/scheduledevents?api-version=2019-08-01", body)
			if resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, text(resp))
			}
		}
		approve()
		if got := s.Approvals(); len(got) != 2 || got[0].VM != "vm_1" || got[1].EventID != b.ID {
			t.Errorf("approvals %+v", got)
		}
		time.Sleep(9 * time.Second)
		approve()
		if got := s.Incarnation(); got != 3 {
			t.Errorf("incarnation %d before the delay, want 3", got)
		}
		time.Sleep(time.Second)
		if got := s.Incarnation(); got != 5 {
			t.Errorf("incarnation %d after the delay, want 5", got)
		}
		approve()
		for _, e := range s.Events() {
			if e.Status != Started || !e.NotBefore.IsZero() {
				t.Errorf("%+v, want it started with no NotBefore", e)
			}
		}
	})
}

// Azure does not document its answer to the approval of an unknown event, so an option sets it.
func TestStatusForApprovalOfAnUnknownEventIsAnOption(t *testing.T) {
	s := New(Options{UnknownApproval: 200})
	e := s.Schedule(Event{})
	resp := ask(s, "POST", eventsURL, `{"StartRequests":[{"EventId":"unknown"},{"EventId":"`+e.ID+`"}]}`)
	if resp.StatusCode != 200 || len(s.Approvals()) != 1 {
		t.Errorf("%d, %v, want 200 and the known one approved", resp.StatusCode, s.Approvals())
	}
}

// A SpotRebalanceRecommendation cannot start: approving it is accepted and changes nothing.
func TestApprovalOfAnAdviceHasNoEffect(t *testing.T) {
	s := New(Options{})
	e := s.Schedule(Event{Type: "SpotRebalanceRecommendation", Status: "Advisory"})
	resp := ask(s, "POST", eventsURL, `{"StartRequests":[{"EventId":"`+e.ID+`"}]}`)
	if got, _ := s.Event(e.ID); resp.StatusCode != 200 || got.Status != "Advisory" || !got.NotBefore.IsZero() {
		t.Errorf("%d, %+v", resp.StatusCode, got)
	}
}

// The events of a document set with SetDocument can be approved too. Its bytes stay the same.
func TestEventsOfAFixedDocumentCanBeApproved(t *testing.T) {
	s := New(Options{})
	s.SetDocument([]byte(`{"DocumentIncarnation":2,"Events":[{"EventId":"A"}]}`))
	for id, status := range map[string]int{"a": 200, "B": 400} {
		if resp := ask(s, "POST", eventsURL, `{"StartRequests":[{"EventId":"`+id+`"}]}`); resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", id, resp.StatusCode, status)
		}
	}
}

// The approve fields of a fault are valid only with the path approvals, and only with known values.
func TestInvalidApproveFaultsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"path":"approvals","approve":"never"}`:         `approve: expected refuse, ignore, late, got "never"`,
		`{"approve":"refuse"}`:                           `approve: expected path approvals beside it, got ""`,
		`{"path":"identity","approveDelay":"1s"}`:        `approveDelay: expected path approvals beside it, got "identity"`,
		`{"path":"approvals","approveDelay":"-1s"}`:      `approveDelay: expected a duration`,
		`{"path":"approvals","approveDelay":"tomorrow"}`: `approveDelay: expected a duration`,
	} {
		var f Fault
		if err := f.UnmarshalJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
