package bridge_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// An approvalStage is a stage for the approval of a reboot of vm-0 that a user asked for. Azure begins nothing within
// an hour of its approval.
type approvalStage struct {
	*stage
	*running                    // since up
	drain, audit *recorder      // a sink that rules wait for, and one that hears of everything
	routes       []bridge.Route // to both, unless a test has others
}

// approvalTest is a bubble with an approvalStage.
func approvalTest(t *testing.T, f func(t *testing.T, s *approvalStage)) {
	t.Helper()
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		a := &approvalStage{stage: s, drain: &recorder{}, audit: &recorder{}}
		a.routes = []bridge.Route{a.drain.all("drain"), a.audit.all("audit")}
		f(t, a)
	})
}

// approvalSubtest is an approvalTest with a name.
func approvalSubtest(t *testing.T, name string, f func(t *testing.T, s *approvalStage)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { approvalTest(t, f) })
}

// up starts a bridge with the routes and rules of the stage, and lets it poll for the first time.
func (s *approvalStage) up() {
	s.t.Helper()
	s.running = s.stage.up(s.routes...)
}

// announce starts a bridge with these rules, and has it announce the reboot.
func (s *approvalStage) announce(rules ...bridge.Rule) {
	s.t.Helper()
	s.opts.Rules = rules
	s.up()
	s.userReboot(idA)
	pause(1500 * time.Millisecond)
}

// setRules has a reload replace the rules.
func (s *approvalStage) setRules(rules ...bridge.Rule) {
	s.t.Helper()
	s.Reload(s.routes, rules, bridge.SettingsInfo{})
}

// approveNow approves the reboot for somebody who has just been shown it.
func (s *approvalStage) approveNow(by string) cloudevent.Approval {
	s.t.Helper()
	return s.ApproveNow(s.t.Context(), idA, s.shown(idA), by)
}

// wantWhy checks why the reboot isn't approved by the status; "" for no reason.
func (s *approvalStage) wantWhy(want string) {
	s.t.Helper()
	for _, e := range s.Status().Events {
		if e.Known.ID == idA {
			wantEqual(s.t, "why it isn't approved, by the status", e.Approval, want)
			return
		}
	}
	s.t.Error("the status doesn't list the event")
}

// mute mutes a sink.
func (r *running) mute(sink string, d time.Duration) {
	r.s.t.Helper()
	r.mutes(bridge.Mute{Sink: sink}, d)
}

// unmute ends all mutes.
func (r *running) unmute() {
	r.s.t.Helper()
	if _, err := r.Unmute(nil, true, "alice"); err != nil {
		r.s.t.Fatal(err)
	}
}

// userReboot schedules a reboot of vm-0 that a user asked for.
func (s *stage) userReboot(id string) { s.userRebootIn(15*time.Minute, id) }

func (s *stage) userRebootIn(notice time.Duration, id string) {
	s.azure.Schedule(imdstest.Event{
		ID: id, Type: "Reboot", Source: "User", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(notice),
	})
}

// rebootOf schedules a reboot of these VMs.
func (s *stage) rebootOf(notice time.Duration, id string, vms ...string) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: vms, NotBefore: time.Now().Add(notice)})
}

// beginsLate makes an Azure that begins nothing within an hour of its approval.
func (s *stage) beginsLate() {
	s.azure = imdstest.New(imdstest.Options{VMs: s.azure.VMs(), ApproveDelay: time.Hour})
}

// answersApprovals makes Azure answer approvals with a status.
func (s *stage) answersApprovals(status int) {
	s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: status})
}

// refusesApprovals makes Azure refuse approvals.
func (s *stage) refusesApprovals() {
	s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse})
}

// approvals returns the ids of what Azure was asked to begin.
func (s *stage) approvals() (ids []string) {
	for _, a := range s.azure.Approvals() {
		ids = append(ids, strings.ToUpper(a.EventID))
	}
	return ids
}

// sent returns how many approvals were sent to Azure, whatever it answered.
func (s *stage) sent() (n int) {
	for _, r := range s.azure.Requests() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

// shown returns the digest of the event as somebody would be shown it now; "" when Azure doesn't list it.
func (s *stage) shown(id string) string {
	s.t.Helper()
	client := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, s.logger(), s.azure.RoundTripper())
	doc, err := client.Document(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range doc.Events {
		if e.ID == id {
			return e.Digest()
		}
	}
	return ""
}

// rebootRule approves every reboot of this VM alone, at once.
var rebootRule = bridge.Rule{Only: bridge.Match{Types: []string{"Reboot"}}}

// drainRule approves what users asked for, once the route drain has taken it.
var drainRule = bridge.Rule{
	Only:  bridge.Match{Types: bridge.TypesValues, Sources: []string{"User"}},
	After: []string{"drain"}, Wait: 5 * time.Second,
}

// namedRule is drainRule with a name.
func namedRule() bridge.Rule {
	r := drainRule
	r.Name = "drain first"
	return r
}

// waiting returns the rule with another wait, for these sinks.
func waiting(r bridge.Rule, wait time.Duration, after ...string) bridge.Rule {
	r.Wait, r.After = wait, after
	return r
}

// data decodes what was accepted, which must be about Azure events.
func (e *recorder) data(t *testing.T) (list []cloudevent.Data) {
	t.Helper()
	for _, h := range e.accepted() {
		list = append(list, dataIn(t, h.Event))
	}
	return list
}

// results returns what became of the approvals that the recorder heard of.
func (e *recorder) results(t *testing.T) (list []string) {
	t.Helper()
	for _, d := range e.data(t) {
		if d.Approval != nil {
			list = append(list, d.Approval.Result)
		}
	}
	return list
}

// lastApproval returns the approval in what was accepted last; the zero Approval if that is about something else.
func (e *recorder) lastApproval(t *testing.T) cloudevent.Approval {
	t.Helper()
	a := e.last(t).Approval
	if a == nil {
		t.Error("what was told last is not about an approval")
		return cloudevent.Approval{}
	}
	return *a
}

// withheld returns why each CloudEvent says that an event is not started early after all: "not yet: " if that may pass,
// the sink that failed, if one did, and the error.
func (e *recorder) withheld(t *testing.T) (whys []string) {
	t.Helper()
	for _, d := range e.data(t) {
		a := d.Approval
		if a == nil || a.Result != cloudevent.ResultWithheld {
			continue
		}
		why := a.Error
		if a.Sink != "" {
			why = a.Sink + ": " + why
		}
		if a.NotYet {
			why = "not yet: " + why
		}
		whys = append(whys, why)
	}
	return whys
}

// promised returns the names of the rules that each CloudEvent about an event says will approve it, "-" for none.
func (e *recorder) promised(t *testing.T) (list []string) {
	t.Helper()
	for _, d := range e.data(t) {
		names := "-"
		for i, r := range d.Rules {
			if i == 0 {
				names = ""
			}
			names += fmt.Sprintf("%s after %s and %vs;", r.Name, strings.Join(r.After, "+"), r.Wait)
		}
		list = append(list, names)
	}
	return list
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// intercept has f make the requests of the next bridge to Azure.
func (s *stage) intercept(f func(r *http.Request, azure http.RoundTripper) (*http.Response, error)) {
	s.proxy = func(azure http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) { return f(r, azure) })
	}
}

// beforeApprovals calls f before each approval that the next bridge sends. If it returns an error, nothing is sent.
func (s *stage) beforeApprovals(f func() error) {
	s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPost {
			err := f()
			if err != nil {
				return nil, err
			}
		}
		return azure.RoundTrip(r)
	})
}

// afterApprovals calls f after each approval that the next bridge sends, before it gets the answer. If f returns an
// error, it gets none.
func (s *stage) afterApprovals(f func(*http.Response) error) {
	s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
		resp, err := azure.RoundTrip(r)
		if err == nil && r.Method == http.MethodPost {
			err = f(resp)
			if err != nil {
				resp.Body.Close()
				return nil, err
			}
		}
		return resp, err
	})
}

// refusesLooks makes each request for the whole document fail while the result is true, such as the last look before an
// approval. Polls that know the document go through.
func (s *stage) refusesLooks() *atomic.Bool {
	var refuses atomic.Bool
	s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
		if refuses.Load() && isLook(r) {
			return nil, errSinkDown
		}
		return azure.RoundTrip(r)
	})
	return &refuses
}

// isLook reports whether somebody asks for the whole document, as the last look before an approval does, and not
// whether it has changed, as polls do.
func isLook(r *http.Request) bool {
	isDocument := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/scheduledevents")
	return isDocument && r.Header.Get("If-None-Match") == ""
}

// A person is in the context of what somebody asks for by hand.
type person struct{}

func byPerson(t *testing.T) context.Context { return context.WithValue(t.Context(), person{}, true) }

func isByPerson(r *http.Request) bool { return r.Context().Value(person{}) != nil }

// announceAndCrash has a bridge with this rule announce the reboot, and crash when it calls what is given to at.
func (s *approvalStage) announceAndCrash(rule bridge.Rule, at func(die func() error)) {
	s.t.Helper()
	dying := make(chan struct{}, 1)
	at(func() error {
		dying <- struct{}{}
		time.Sleep(2 * time.Second)
		return http.ErrServerClosed
	})
	s.announce(rule)
	<-dying
	s.crash()
	s.proxy = nil
}

// wantEnd ends the event, and checks what is told of how it ended.
func (s *approvalStage) wantEnd(want cloudevent.Outcome) {
	s.t.Helper()
	s.azure.End(idA)
	pause(3 * time.Second)
	s.audit.wantEnd(s.t, want)
}

// wantAsked checks who is said to have asked Azure to begin the event, "" for nobody, and whether Azure has agreed.
func wantAsked(t *testing.T, where string, asked *cloudevent.Asked, by string, answered bool) {
	t.Helper()
	if asked == nil {
		asked = &cloudevent.Asked{}
	}
	if asked.By != by || asked.Answered != answered {
		t.Errorf("%s: %+v has asked, want %q, and an answer: %v", where, *asked, by, answered)
	}
}
