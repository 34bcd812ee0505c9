package imdstest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The endpoints that a fault can affect. Each has at most one fault, and one more for each VM.
const (
	ScheduledEvents = "scheduledevents" // GET of the document
	Approvals       = "approvals"       // POST to it
	InstanceFacts   = "instance"
	Identity        = "identity"
)

// A Fault changes the answers of one endpoint while it lasts. The zero Fault changes nothing. Fields combine where that
// makes sense: {Status: 502, HTML: true} is a proxy's error page, {Delay: 2 * time.Minute, Times: 1} a slow first
// answer.
type Fault struct {
	// Path is the endpoint; "" means ScheduledEvents.
	Path string `json:"path,omitempty"`
	// VM limits the fault to one VM, which then has this fault instead of the endpoint's; "" means all VMs.
	VM string `json:"vm,omitempty"`

	// For is the duration of the fault; 0 means until ClearFaults.
	For time.Duration `json:"for,omitempty"`
	// Times is how many answers the fault affects; 0 means all.
	Times int `json:"times,omitempty"`

	// Hang keeps the client waiting until it gives up.
	Hang bool `json:"hang,omitempty"`
	// Delay delays the answer, which shows the state at that later time.
	Delay time.Duration `json:"delay,omitempty"`

	// Status answers with that code and no body; a 429 has the text of the real one.
	Status int `json:"status,omitempty"`
	// RetryAfter is the value of the Retry-After header.
	RetryAfter string `json:"retryAfter,omitempty"`
	// Body replaces the body of the answer.
	Body string `json:"body,omitempty"`
	// Empty sends no body, with Content-Length 0.
	Empty bool `json:"empty,omitempty"`
	// HTML sends the error page of a proxy.
	HTML bool `json:"html,omitempty"`
	// ISODates writes NotBefore as ISO 8601.
	ISODates bool `json:"isoDates,omitempty"`
	// NoETag sends the document without an ETag, and ignores If-None-Match.
	NoETag bool `json:"noETag,omitempty"`
	// NewID changes the EventId of an event when it starts, as Microsoft's own mock does.
	NewID bool `json:"newId,omitempty"`
	// NewestVersion refuses every later api-version, as a host does that has not been updated yet.
	NewestVersion string `json:"newestVersion,omitempty"`

	// Truncate breaks the connection after so many bytes of the body; 0 means never. The Content-Length stays.
	Truncate int `json:"truncate,omitempty"`
	// NoLength sends neither Content-Length nor chunks: the body ends with the connection. A truncated body then looks
	// complete.
	NoLength bool `json:"noLength,omitempty"`
	// ContentLength is the length to claim for the body; 0 means the true one.
	ContentLength int `json:"contentLength,omitempty"`

	// Approve, with the Path Approvals, is what becomes of approvals: one of the constants below; "" means accepted.
	Approve string `json:"approve,omitempty"`
	// ApproveDelay is the time from an approval to Started; 0 means Options.ApproveDelay.
	ApproveDelay time.Duration `json:"approveDelay,omitempty"`

	// Incarnation sets the document's incarnation, once, when the fault is set.
	Incarnation int `json:"incarnation,omitempty"`
}

// The values of Fault.Approve.
const (
	ApproveRefuse = "refuse" // the approval is refused as malformed
	ApproveIgnore = "ignore" // it is accepted without effect, as when other tenants of the host do not agree
	// ApproveLate approves at once, and the rest of the fault is for the answer: late with Delay, lost with Hang, another
	// code with Status.
	ApproveLate = "late"
)

// MarshalJSON writes the fault as UnmarshalJSON and the control API take it.
func (f Fault) MarshalJSON() ([]byte, error) {
	type plain Fault
	text := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(struct {
		plain
		For          string `json:"for,omitempty"`
		Delay        string `json:"delay,omitempty"`
		ApproveDelay string `json:"approveDelay,omitempty"`
	}{plain(f), text(f.For), text(f.Delay), text(f.ApproveDelay)})
}

// UnmarshalJSON reads a fault strictly. Durations are texts such as "30s".
func (f *Fault) UnmarshalJSON(data []byte) error {
	if err := decode(data, f); err != nil {
		return err
	}
	return f.check()
}

// check returns a keyError for an impossible value.
func (f Fault) check() error {
	endpoints := []string{"", ScheduledEvents, Approvals, InstanceFacts, Identity}
	if !slices.Contains(endpoints, f.Path) {
		return keyErrorf([]string{"path"}, "expected %s, %s, %s or %s, got %q",
			ScheduledEvents, Approvals, InstanceFacts, Identity, f.Path)
	}
	if known := knownVersions(f.Path); f.NewestVersion != "" && !slices.Contains(known, f.NewestVersion) {
		return keyErrorf([]string{"newestVersion"}, "expected one of %s, got %q",
			strings.Join(known, ", "), f.NewestVersion)
	}
	if words := []string{"", ApproveRefuse, ApproveIgnore, ApproveLate}; !slices.Contains(words, f.Approve) {
		return keyErrorf([]string{"approve"}, "expected %s, got %q", strings.Join(words[1:], ", "), f.Approve)
	}
	for key, given := range map[string]bool{"approve": f.Approve != "", "approveDelay": f.ApproveDelay != 0} {
		if given && f.Path != Approvals {
			return keyErrorf([]string{key}, "expected path %s beside it, got %q", Approvals, f.Path)
		}
	}
	if f.NewID && (f.Path != "" && f.Path != ScheduledEvents || f.VM != "") {
		return keyErrorf([]string{"newId"}, "expected path %s and no vm beside it: the document is that of all",
			ScheduledEvents)
	}
	if f.Status != 0 && (f.Status < 200 || f.Status > 599) {
		return keyErrorf([]string{"status"}, "expected a code from 200 to 599, got %d", f.Status)
	}
	for _, n := range []struct {
		key   string
		value int
	}{
		{"times", f.Times}, {"truncate", f.Truncate}, {"contentLength", f.ContentLength}, {"incarnation", f.Incarnation},
	} {
		if n.value < 0 {
			return keyErrorf([]string{n.key}, "expected a number that is not negative, got %d", n.value)
		}
	}
	return nil
}

// fault is a Fault in force.
type fault struct {
	Fault
	until     time.Time // zero if it has no end
	remaining int       // answers it still affects, if Times is set
}

// key is what Server.faults is keyed by: one fault can be in force per endpoint, and one per VM there.
func (f Fault) key() string { return strings.TrimSuffix(f.Path+" "+strings.ToLower(f.VM), " ") }

// SetFault replaces the fault of f's endpoint, or of f's VM there.
func (s *Server) SetFault(f Fault) {
	s.setFault(f.scaled(s.opts.Speed))
}

// scaled returns the fault with its durations divided by speed.
func (f Fault) scaled(speed float64) Fault {
	f.For, f.Delay, f.ApproveDelay = scale(f.For, speed), scale(f.Delay, speed), scale(f.ApproveDelay, speed)
	return f
}

// setFault is SetFault for a fault whose durations are already scaled.
func (s *Server) setFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	if f.Path == "" {
		f.Path = ScheduledEvents
	}
	set := &fault{Fault: f, remaining: f.Times}
	if f.For > 0 {
		set.until = s.opts.Now().Add(f.For)
	}
	s.faults[f.key()] = set
	if f.Incarnation != 0 {
		s.incarnation = f.Incarnation
	}
}

// ClearFaults ends all faults. An answer that hangs goes on hanging until its client gives up.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.faults)
}

// takeFault returns the fault for the next answer of that endpoint to that VM, and uses up one of its Times.
func (s *Server) takeFault(endpoint, vm string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExpiredFaults()
	f, ok := s.faults[Fault{Path: endpoint, VM: vm}.key()]
	if !ok {
		f, ok = s.faults[endpoint]
	}
	if !ok {
		return Fault{}
	}
	if f.Times > 0 {
		f.remaining--
	}
	return f.Fault
}

// removeExpiredFaults removes the faults that have ended.
func (s *Server) removeExpiredFaults() {
	now := s.opts.Now()
	for key, f := range s.faults {
		byClock := !f.until.IsZero() && !now.Before(f.until)
		byCount := f.Times > 0 && f.remaining == 0
		if byClock || byCount {
			delete(s.faults, key)
		}
	}
}

// wait holds the answer back as long as the fault says. It fails if the client gives up first.
func (f Fault) wait(ctx context.Context) error {
	if f.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return sleep(ctx, f.Delay)
}

// replacement returns the answer to send instead of the true one, if the fault has one.
func (f Fault) replacement() (a answer, ok bool) {
	if f.Status == 0 && f.Body == "" && !f.HTML && !f.Empty {
		return answer{}, false
	}
	a = answer{status: f.Status, contentType: jsonType, body: []byte(f.Body)}
	switch {
	case f.Empty:
		a.body = nil
	case f.Body == "" && f.HTML:
		a.body = []byte(proxyPage)
	case f.Body == "" && f.Status == http.StatusTooManyRequests:
		a = tooMany()
	}
	if f.HTML {
		a.contentType = "text/html; charset=utf-8"
	}
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a, true
}

const proxyPage = "<html><head><title>Proxy</title></head><body><h1>This page is not available</h1></body></html>\n"

// applyTo sets how the answer is sent.
func (f Fault) applyTo(a *answer) {
	a.retryAfter = f.RetryAfter
	a.cut = f.Truncate
	a.noLength = f.NoLength
	a.length = f.ContentLength
}
