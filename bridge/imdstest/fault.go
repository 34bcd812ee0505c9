package imdstest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The endpoints that a fault can spoil, one fault each and one for each VM.
const (
	ScheduledEvents = "scheduledevents" // GET of the document
	Approvals       = "approvals"       // POST to it
	InstanceFacts   = "instance"
	Identity        = "identity"
)

// A Fault spoils the answers of one endpoint while it lasts. The zero Fault spoils nothing; what is set is combined
// where that makes sense: {Status: 502, HTML: true} is a proxy's page, {Delay: 2 * time.Minute, Times: 1} the slow
// first answer.
type Fault struct {
	// Path is the endpoint; ScheduledEvents when "".
	Path string `json:"path,omitempty"`
	// VM is the machine whose answers alone are spoilt, by this fault instead of the endpoint's; "" is all of them.
	VM string `json:"vm,omitempty"`

	// For ends the fault by the clock; 0 lasts until ClearFaults.
	For time.Duration `json:"for,omitempty"`
	// Times ends it after so many answers; 0 spoils all.
	Times int `json:"times,omitempty"`

	// Hang gives no answer until the client goes away.
	Hang bool `json:"hang,omitempty"`
	// Delay gives the answer late, as it is then.
	Delay time.Duration `json:"delay,omitempty"`

	// Status answers with that code instead, without a body; a 429 has the real one's text.
	Status int `json:"status,omitempty"`
	// RetryAfter is the Retry-After header as it is.
	RetryAfter string `json:"retryAfter,omitempty"`
	// Body is sent instead of the answer's.
	Body string `json:"body,omitempty"`
	// Empty sends no body at all with Content-Length 0.
	Empty bool `json:"empty,omitempty"`
	// HTML sends the page of a proxy instead.
	HTML bool `json:"html,omitempty"`
	// ISODates writes NotBefore as ISO 8601.
	ISODates bool `json:"isoDates,omitempty"`
	// NoETag sends the document without an ETag, and in full to whoever asks with one.
	NoETag bool `json:"noETag,omitempty"`
	// NewID gives an event another EventId when it starts, as Microsoft's own mock does.
	NewID bool `json:"newId,omitempty"`
	// NewestVersion refuses every later api-version, as a host does that was not updated yet.
	NewestVersion string `json:"newestVersion,omitempty"`

	// Truncate breaks the connection off after so many bytes of the body; 0 sends all. The Content-Length stays.
	Truncate int `json:"truncate,omitempty"`
	// NoLength sends neither Content-Length nor chunks: the body ends with the connection, so that one cut by
	// Truncate looks whole.
	NoLength bool `json:"noLength,omitempty"`
	// ContentLength is sent as the body's length instead of the true one; 0 sends the true one.
	ContentLength int `json:"contentLength,omitempty"`

	// Approve is what becomes of approvals, with the Path Approvals: one of the words below; "" takes them.
	Approve string `json:"approve,omitempty"`
	// ApproveDelay is the time from an approval to Started, instead of the server's; 0 is the server's.
	ApproveDelay time.Duration `json:"approveDelay,omitempty"`

	// Incarnation starts the count of the document over at that number, once, when the fault is set.
	Incarnation int `json:"incarnation,omitempty"`
}

// What can become of an approval.
const (
	ApproveRefuse = "refuse" // it is answered as a malformed one is
	ApproveIgnore = "ignore" // it is accepted and shortens nothing, as when other tenants of the host do not agree
	// ApproveLate: it counts when it comes, and the rest of the fault is for the answer: late with Delay, lost with Hang,
	// or another one with Status.
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

// UnmarshalJSON reads a fault strictly; its durations are texts such as "30s".
func (f *Fault) UnmarshalJSON(data []byte) error {
	if err := decode(data, f); err != nil {
		return err
	}
	return f.check()
}

// check returns a keyError for a value that cannot be served.
func (f Fault) check() error {
	endpoints := []string{"", ScheduledEvents, Approvals, InstanceFacts, Identity}
	if !slices.Contains(endpoints, f.Path) {
		return wrong([]string{"path"}, "expected %s, %s, %s or %s, got %q",
			ScheduledEvents, Approvals, InstanceFacts, Identity, f.Path)
	}
	if known := knownVersions(f.Path); f.NewestVersion != "" && !slices.Contains(known, f.NewestVersion) {
		return wrong([]string{"newestVersion"}, "expected one of %s, got %q", strings.Join(known, ", "), f.NewestVersion)
	}
	if words := []string{"", ApproveRefuse, ApproveIgnore, ApproveLate}; !slices.Contains(words, f.Approve) {
		return wrong([]string{"approve"}, "expected %s, got %q", strings.Join(words[1:], ", "), f.Approve)
	}
	for key, given := range map[string]bool{"approve": f.Approve != "", "approveDelay": f.ApproveDelay != 0} {
		if given && f.Path != Approvals {
			return wrong([]string{key}, "expected path %s beside it, got %q", Approvals, f.Path)
		}
	}
	if f.NewID && (f.Path != "" && f.Path != ScheduledEvents || f.VM != "") {
		return wrong([]string{"newId"}, "expected path %s and no vm beside it: the document is that of all", ScheduledEvents)
	}
	if f.Status != 0 && (f.Status < 200 || f.Status > 599) {
		return wrong([]string{"status"}, "expected a code from 200 to 599, got %d", f.Status)
	}
	for _, n := range []struct {
		key   string
		value int
	}{
		{"times", f.Times}, {"truncate", f.Truncate}, {"contentLength", f.ContentLength}, {"incarnation", f.Incarnation},
	} {
		if n.value < 0 {
			return wrong([]string{n.key}, "expected a number that is not negative, got %d", n.value)
		}
	}
	return nil
}

// fault is a Fault that is set.
type fault struct {
	Fault
	until time.Time // zero when it does not end by the clock
	left  int       // answers still to spoil, when Times says so
}

// place is what only one fault can spoil at a time.
func (f Fault) place() string { return strings.TrimSuffix(f.Path+" "+strings.ToLower(f.VM), " ") }

// SetFault replaces the fault of f's endpoint, or that of its VM there.
func (s *Server) SetFault(f Fault) {
	s.setFault(f.scaled(s.opts.Speed))
}

// scaled is the fault at that speed.
func (f Fault) scaled(speed float64) Fault {
	f.For, f.Delay, f.ApproveDelay = scale(f.For, speed), scale(f.Delay, speed), scale(f.ApproveDelay, speed)
	return f
}

// setFault is SetFault for a fault whose durations are scaled.
func (s *Server) setFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	if f.Path == "" {
		f.Path = ScheduledEvents
	}
	set := &fault{Fault: f, left: f.Times}
	if f.For > 0 {
		set.until = s.opts.Now().Add(f.For)
	}
	s.faults[f.place()] = set
	if f.Incarnation != 0 {
		s.incarnation = f.Incarnation
	}
}

// ClearFaults ends all faults. An answer that hangs goes on hanging until its client goes away.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.faults)
}

// fault returns the fault that spoils the next answer of that endpoint to that VM, and counts it.
func (s *Server) fault(endpoint, vm string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	f, ok := s.faults[Fault{Path: endpoint, VM: vm}.place()]
	if !ok {
		f, ok = s.faults[endpoint]
	}
	if !ok {
		return Fault{}
	}
	if f.Times > 0 {
		f.left--
	}
	return f.Fault
}

// expire forgets the faults that are over.
func (s *Server) expire() {
	now := s.opts.Now()
	for place, f := range s.faults {
		byClock := !f.until.IsZero() && !now.Before(f.until)
		byCount := f.Times > 0 && f.left == 0
		if byClock || byCount {
			delete(s.faults, place)
		}
	}
}

// wait holds the answer back as the fault wants. It fails when the client goes away before that is over.
func (f Fault) wait(ctx context.Context) error {
	if f.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return sleep(ctx, f.Delay)
}

// instead returns the answer that is given in place of the true one, when nothing of that is left.
func (f Fault) instead() (a answer, ok bool) {
	if f.Status == 0 && f.Body == "" && !f.HTML && !f.Empty {
		return answer{}, false
	}
	a = answer{status: f.Status, kind: jsonType, body: []byte(f.Body)}
	switch {
	case f.Empty:
		a.body = nil
	case f.Body == "" && f.HTML:
		a.body = []byte(proxyPage)
	case f.Body == "" && f.Status == http.StatusTooManyRequests:
		a = tooMany()
	}
	if f.HTML {
		a.kind = "text/html; charset=utf-8"
	}
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a, true
}

const proxyPage = "<html><head><title>Proxy</title></head><body><h1>This page is not available</h1></body></html>\n"

// spoil alters the answer as it goes over the wire.
func (f Fault) spoil(a *answer) {
	a.retryAfter = f.RetryAfter
	a.cut = f.Truncate
	a.noLength = f.NoLength
	a.length = f.ContentLength
}
