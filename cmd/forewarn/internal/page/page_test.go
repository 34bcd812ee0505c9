package page

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/fleet"
	"forewarn/cmd/forewarn/internal/wording"
)

// pageOf is the handler of a page that shows what facts returns.
func pageOf(facts func() pageFacts) (*webPage, http.Handler) {
	p := newPage(facts)
	mux := http.NewServeMux()
	p.routes(mux)
	return p, localHost(mux, "127.0.0.1")
}

// visit asks the handler for a path on loopback.
func visit(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8169"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// shown is what a person reads of the page that shows f: its text, without the tags.
func shown(t *testing.T, f pageFacts) string {
	t.Helper()
	_, h := pageOf(func() pageFacts { return f })
	w := visit(t, h, "/")
	if w.Code != http.StatusOK {
		t.Fatalf("GET / = %d: %s", w.Code, w.Body)
	}
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(w.Body.String(), " ")
	return strings.Join(strings.Fields(html.UnescapeString(text)), " ")
}

// Without JavaScript the page has everything, in this order: what needs attention, announced events with the countdown
// and both times, past events, sinks with the blocked ones first, and dead letters, so that they never hide what is
// ahead.
func TestPageIsCompleteWithoutScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which it isn't midnight soon
		now := time.Now()
		text := shown(t, sampleFacts(now))
		berlin, _ := time.LoadLocation("Europe/Berlin")
		due := now.Add(14*time.Minute + 12*time.Second)
		rest := text
		for _, want := range []string{
			"1 thing needs you. 1 message is a dead letter. Azure announces 2 events, the next for " +
				due.In(berlin).Format("15:04:05 MST"),
			`"ops-chat" (slack) needs you.`, "Reason: invalid_auth. Nothing is lost yet: 3 messages are waiting",
			"Has begun", "vm-db-3: pause has begun", "about 5 s, says Azure.",
			"Announced", "vm-db-1 will reboot", "in 14 min 1", due.In(berlin).Format("15:04:05 MST"),
			due.UTC().Format("(15:04:05 UTC)"), "at the earliest",
			`Azure maintenance: "Host server is undergoing maintenance."`, "vm-db-1 (this VM)", "vm-db-2",
			"sudo forewarn approve",
			"The last 30 days", "Reboot, 3 events", "vm-db-1: reboot cancelled, nothing happened", "vm-db-1: reboot is over",
			"Redeploy, 1 event", "Freeze, 6 events",
			"Sinks", "ops-chat slack Needs you 3, oldest 2 h 0 min ago", "invalid_auth. Next try in 3", "audit file Works",
			"Dead letters These", "runbook/812", "Freeze announced", "refused by the destination: 422 Unprocessable Entity",
			"forewarn 1.0.0, started",
		} {
			i := strings.Index(rest, want)
			if i < 0 {
				t.Fatalf("the page lacks %q after %q; it says:\n%s", want, text[:len(text)-len(rest)], text)
			}
			rest = rest[i+len(want):]
		}
	})
}

// Of a dead letter that came too late the page says whether a newer change took its place or its time had passed.
func TestPageSaysWhyADeadLetterIsLate(t *testing.T) {
	for overtaken, want := range map[bool]string{
		true:  "replaced by a newer change: exit status 75",
		false: "its time had passed: exit status 75",
	} {
		now := time.Now()
		f := sampleFacts(now)
		late := &f.Dead[0]
		late.Reason, late.Overtaken, late.Error = delivery.ReasonLate, overtaken, "exit status 75"
		text := shown(t, f)
		if !strings.Contains(text, "Freeze announced (event "+late.Group[:8]+")") || !strings.Contains(text, want) {
			t.Errorf("of a late dead letter the page says:\n%s\nwant %q", text, want)
		}
		r := newFakeRelay()
		r.dead[0].Reason, r.dead[0].Overtaken = delivery.ReasonLate, overtaken
		list, _ := (&lastDead{relay: r}).read(1)
		if len(list) != 1 || list[0].Overtaken != overtaken {
			t.Errorf("a relay's page has %+v", list)
		}
	}
}

// The page is rendered once for all concurrent requests. A later request gets a new one.
func TestPageIsRenderedOnceForConcurrentRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		_, h := pageOf(func() pageFacts {
			made.Add(1)
			time.Sleep(time.Second) // a full outbox
			return pageFacts{}
		})
		ask := func() {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if w := visit(t, h, "/"); w.Code != http.StatusOK || w.Body.Len() == 0 {
						t.Errorf("GET / = %d with %d bytes", w.Code, w.Body.Len())
					}
				})
			}
			all.Wait()
		}
		ask()
		ask()
		if n := made.Load(); n != 1 {
			t.Errorf("for two times 50 who ask, the page was made %d times, want 1", n)
		}
		time.Sleep(pageAge)
		ask()
		if n := made.Load(); n != 2 {
			t.Errorf("with those who ask later, the page was made %d times, want 2", n)
		}
	})
}

// However much there is, the page shows a limited number and says how many more there are.
func TestPageOfAFullOutboxIsShort(t *testing.T) {
	now := time.Now()
	f := sampleFacts(now)
	sample := f.Status.Events
	f.Status.Events, f.Status.Sinks, f.MoreHistories, f.MoreDead = nil, nil, true, 9_000
	for i := range 10_000 {
		e := sample[i%len(sample)]
		e.NotBefore = now.Add(time.Duration(i) * time.Second)
		f.Status.Events = append(f.Status.Events, e)
	}
	for i := range 500 {
		f.Status.Sinks = append(f.Status.Sinks, bridge.SinkStatus{Name: fmt.Sprint("sink-", i), State: bridge.SinkOK})
	}
	text := shown(t, f)
	for _, want := range []string{
		"More events Type Events Begun The next at Freeze 4990", "Reboot 5000", "And 300 more: " + wording.Sudo + "forewarn status",
		"Older events are left out: " + wording.Sudo + "forewarn history",
		wording.Plural(len(f.Dead)+9_000, "message is a dead letter", "messages are dead letters"),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if len(text) > 100_000 {
		t.Errorf("the page has %d characters of text", len(text))
	}
}

// People never read the internal words for an end and for a sink that needs attention.
func TestPageUsesNoInternalWords(t *testing.T) {
	text := strings.ToLower(shown(t, sampleFacts(time.Now())))
	for _, word := range []string{"vanished", "blocked", "orphaned", "superseded", "<no value>", "cannot be said"} {
		if strings.Contains(text, word) {
			t.Errorf("the page says %q:\n%s", word, text)
		}
	}
}

// An empty list says so in words. Nothing unknown is claimed.
func TestPageSaysWhenAListIsEmpty(t *testing.T) {
	synctest.Test(t, saysWhenAListIsEmpty) // a second of the clock decides
}

func saysWhenAListIsEmpty(t *testing.T) {
	now := time.Now()
	answered := bridge.IMDSStatus{LastAnswer: now}
	for _, tt := range []struct {
		name       string
		status     bridge.Status
		err        error
		want, lack string
	}{
		{"calm", bridge.Status{Ready: true, IMDS: answered}, nil, "Nothing needs you. Azure announces nothing.",
			"Dead letters These"},
		{"calm", bridge.Status{Ready: true, IMDS: answered}, nil, "Azure announces nothing for this VM.", "has not answered"},
		{"no sink", bridge.Status{Ready: true, IMDS: answered}, nil, "There are no sinks, so nobody is notified.", "Works"},
		{"no past", bridge.Status{Ready: true, IMDS: answered}, nil, "No events in the last 30 days.", "As a table"},
		{"no answer yet", bridge.Status{Reasons: []string{"the endpoint has not answered yet"}}, nil,
			"Azure has not answered yet, so its plans are unknown.", "announces nothing"},
		{"no answer any more", bridge.Status{IMDS: bridge.IMDSStatus{LastAnswer: now, LastError: "timeout"}}, nil,
			"Azure does not answer. Its last answer, at " + now.UTC().Format("15:04:05 UTC"), "Azure announces nothing"},
		{"a failed answer", bridge.Status{Ready: true, IMDS: bridge.IMDSStatus{LastAnswer: now, LastError: "timeout"}}, nil,
			"Nothing needs you. Azure does not answer; its last answer announced nothing.", "Azure announces nothing"},
		{"no answer any more", bridge.Status{IMDS: bridge.IMDSStatus{LastAnswer: now, LastError: "timeout"},
			Events: sampleFacts(now).Status.Events}, nil,
			"These events are from its last answer, at " + now.UTC().Format("15:04:05 UTC"), "announces nothing"},
		{"a relay without its stream", bridge.Status{Relay: &bridge.RelayStatus{},
			Outbox: bridge.OutboxStatus{Error: "refused"}, Reasons: []string{"refused"}}, nil,
			"The stream can't be read, so Azure's plans are unknown.", "announces nothing"},
		{"a relay without its stream", bridge.Status{Relay: &bridge.RelayStatus{},
			Outbox: bridge.OutboxStatus{Error: "refused"}, Reasons: []string{"refused"},
			Events: sampleFacts(now).Status.Events}, nil,
			"The stream can't be read. These events are from before that.", "Azure announces"},
		{"not answered since the start", bridge.Status{Events: sampleFacts(now).Status.Events}, nil,
			"These events are from before forewarn started.", "announces nothing"},
		{"a wave", bridge.Status{Ready: true, IMDS: answered, Events: slices.Repeat(sampleFacts(now).Status.Events, 30)}, nil,
			"More events Type Events Begun The next at Freeze 20 20 – Reboot 30 0 ", "announces nothing"},
		{"not ready", bridge.Status{Reasons: []string{"the outbox cannot be written: disk full"}, IMDS: answered}, nil,
			"Not ready. 1 thing needs you.", "Nothing needs you"},
		{"not ready", bridge.Status{Reasons: []string{"the outbox cannot be written: disk full"}, IMDS: answered}, nil,
			"Not ready: the outbox cannot be written: disk full.", "Nothing needs you"},
		{"no history", bridge.Status{Ready: true, IMDS: answered}, errors.New("database not open"),
			"The history cannot be read: database not open.", "No events in"},
		{"refused settings", bridge.Status{Ready: true, IMDS: answered, Settings: bridge.SettingsInfo{LastError: "line 3"}},
			nil,
			"The newest settings are wrong; older ones are in force. line 3", "Nothing needs you"},
		{"a sink that is silent", bridge.Status{Ready: true, IMDS: answered, Sinks: []bridge.SinkStatus{{
			Name: "hook", Kind: "webhook", State: bridge.SinkRetrying, Pending: 2, OldestPendingSeconds: 301,
			LastError: "timeout"}}}, nil,
			`1 thing needs you. Azure announces nothing. Needs you "hook" (webhook) needs you. Reason: timeout.`,
			"Trying again"},
		{"a sink that is not silent yet", bridge.Status{Ready: true, IMDS: answered, Sinks: []bridge.SinkStatus{{
			Name: "hook", State: bridge.SinkRetrying, Pending: 2, OldestPendingSeconds: 7200,
			LastAccepted: now.Add(-299 * time.Second)}}}, nil,
			"hook Trying again", "1 thing needs you"},
		{"a sink that refused the last", bridge.Status{Ready: true, IMDS: answered, Sinks: []bridge.SinkStatus{{
			Name: "hook", State: bridge.SinkOK, DeadLetters: 1, LastError: "rejected: 422 Unprocessable Entity"}}}, nil,
			"hook Last failed 0 0 1 not since start 422 Unprocessable Entity", "Ready"},
		{"a sink that is gone", bridge.Status{Ready: true, IMDS: answered,
			Sinks: []bridge.SinkStatus{{Name: "old", State: bridge.SinkOrphaned, Pending: 2}}}, nil,
			"The sink old is gone from the settings, and 2 messages are still pending for it.", "Nothing needs you"},
	} {
		text := shown(t, pageFacts{Status: tt.status, Err: tt.err})
		if !strings.Contains(text, tt.want) || strings.Contains(text, tt.lack) {
			t.Errorf("%s: the page says\n%s\nwant %q in it, and not %q", tt.name, text, tt.want, tt.lack)
		}
	}
}

// Text from outside is escaped everywhere on the page, also in the updates. Bidirectional control characters are
// removed.
func TestPageEscapesOutsideText(t *testing.T) {
	tags := regexp.MustCompile(`</?[a-zA-Z]+`)
	all := func(body string) []string {
		found := slices.Sorted(slices.Values(tags.FindAllString(body, -1)))
		return slices.Compact(found)
	}
	_, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	own := append(all(visit(t, h, "/").Body.String()), "<b", "</b") // who is told of what is in bold
	p, h := pageOf(func() pageFacts { return hostileFacts(time.Now()) })
	bodies := []string{visit(t, h, "/").Body.String()}
	parts, _, err := p.currentParts(fleet.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		bodies = append(bodies, part)
	}
	for _, body := range bodies {
		for _, tag := range all(body) {
			if !slices.Contains(own, tag) {
				t.Errorf("the page has a tag %q that is not its own:\n%s", tag, body)
			}
		}
		if strings.Contains(body, "\u202e") || strings.Contains(body, "\\u202e") {
			t.Errorf("the page lets the direction of writing be turned:\n%s", body)
		}
	}
	if n := strings.Count(bodies[0], "onerror"); n < 20 {
		t.Errorf("the hostile text stands on the page %d times, so this test sees little of it", n)
	}
}

// The page loads nothing from other sites and has no inline script or style, so that its policy can forbid them.
func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	_, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	body := visit(t, h, "/").Body.String()
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(body, -1) {
		switch path := m[1]; {
		case strings.HasPrefix(path, "#"), path == "/", path == "/status.json":
		case strings.HasPrefix(path, "https://portal.azure.com/") && !strings.Contains(body, `src="`+path):
			body = strings.ReplaceAll(body, path, "") // a link that a person may follow
		default:
			if w := visit(t, h, path); w.Code != http.StatusOK {
				t.Errorf("the page loads %s, which answers %d", path, w.Code)
			}
		}
	}
	for _, bad := range []string{`\sstyle\s*=`, `\son[a-z]+\s*=`, `<style`, `<script>`, `javascript:`, `//[a-z]`} {
		if found := regexp.MustCompile(bad).FindString(strings.ReplaceAll(body, "http://169.254.169.254", "")); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
	for _, id := range pageParts {
		if !strings.Contains(body, `id="`+id+`"`) {
			t.Errorf("the page has no element %s for the part of that name", id)
		}
	}
}

// Every answer forbids the browser what the page does not need. A name that DNS rebinding could use is refused
// everywhere, and so is every method that sends data.
func TestPageHasSecurityHeaders(t *testing.T) {
	_, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	for _, path := range []string{"/", "/page.css", "/page.js", "/icon.svg", "/nothing"} {
		w := visit(t, h, path)
		policy := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
			"img-src 'self'",
			"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("GET %s: the policy %q lacks %q", path, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("GET %s: the policy is %q", path, policy)
		}
		if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("GET %s: X-Content-Type-Options is %q, want nosniff", path, got)
		}
		if got := w.Header().Get("Referrer-Policy"); got != "no-referrer" {
			t.Errorf("GET %s: Referrer-Policy is %q, want no-referrer", path, got)
		}

		r := httptest.NewRequest(http.MethodGet, "http://evil.example"+path, nil)
		refused := httptest.NewRecorder()
		h.ServeHTTP(refused, r)
		if refused.Code != http.StatusMisdirectedRequest {
			t.Errorf("GET %s as evil.example = %d, want %d", path, refused.Code, http.StatusMisdirectedRequest)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "http://127.0.0.1/", strings.NewReader("x")))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s / = %d, want %d", method, w.Code, http.StatusMethodNotAllowed)
		}
	}
}

// The browser loads each file once, and then gets a 304.
func TestPageFilesAreCached(t *testing.T) {
	_, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	for path, kind := range map[string]string{"/page.css": "text/css", "/page.js": "text/javascript",
		"/icon.svg": "image/svg+xml"} {
		w := visit(t, h, path)
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got,
			kind) || w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Errorf("GET %s = %d, %q with %d bytes, want 200, %s", path, w.Code, got, w.Body.Len(), kind)
		}
		again := visit(t, h, path, "If-None-Match", w.Header().Get("ETag"))
		if again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("GET %s again = %d with %d bytes, want 304 with none", path, again.Code, again.Body.Len())
		}
	}
}

// The history of a month is in memory only while somebody looks at the page.
func TestPageDropsTheHistoryWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
		log := slog.New(slog.DiscardHandler)
		box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		b, err := bridge.New(bridge.Options{
			Client: imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log,
				azure.RoundTripper()), Outbox: box, Log: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		azure.Schedule(imdstest.Event{Type: "Reboot"})
		time.Sleep(2 * time.Second)

		facts := bridgeFacts(b, box)
		seen := func() weak.Pointer[bridge.EventHistory] {
			f := facts()
			if f.Err != nil || len(f.Histories) == 0 {
				t.Fatalf("the page knows of %d events, %v; want the one that is announced", len(f.Histories), f.Err)
			}
			return weak.Make(&f.Histories[0])
		}
		first := seen()
		runtime.GC()
		if first.Value() == nil {
			t.Error("the history is gone at once, want it kept for the next look")
		}
		time.Sleep(historyCache)
		synctest.Wait()
		runtime.GC()
		if first.Value() != nil {
			t.Errorf("the history is in memory %v after the last look, want it gone", historyCache)
		}
		seen() // and read again

		p := newPage(facts)
		if parts, _, err := p.currentParts(fleet.Filter{}); err != nil || len(parts) == 0 || !p.addStream() {
			t.Fatalf("the page has %d parts: %v", len(parts), err)
		}
		p.removeStream()
		if len(p.rendered) > 0 {
			t.Error("the last browser went away, and the page is still in memory")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// While the history can't be read, as on a disk that hangs, the page shows what is open, and says so. One read goes on,
// however often somebody looks.
func TestThePageDoesNotWaitForAHistoryThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, reads := make(chan struct{}), atomic.Int32{}
		h := newPast(func(time.Time) ([]bridge.EventHistory, bool, error) {
			reads.Add(1)
			<-hang
			return make([]bridge.EventHistory, 1), false, nil
		})
		for range 3 {
			began, f := time.Now(), pageFacts{}
			h.show(&f, "changed "+began.String())
			if took := time.Since(began); took != historyPatience || f.Err != errSlow {
				t.Errorf("it took %v and says %v", took, f.Err)
			}
		}
		close(hang)
		synctest.Wait()
		var f pageFacts
		h.show(&f, "as before")
		if len(f.Histories) != 1 || f.Err != nil || reads.Load() > 2 {
			t.Errorf("then it shows %d events, %v, after %d reads", len(f.Histories), f.Err, reads.Load())
		}
	})
}
