package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/statustest"
	"forewarn/cmd/forewarn/internal/wording"
)

// pageOf is the handler of a page that shows what look finds.
func pageOf(look func() pageFacts) (*webPage, http.Handler) {
	p := newPage(look)
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

// Without any script the page says everything: what needs somebody first, then what is announced, with the countdown as
// it was and the time in both zones, then the past, then who is told, those that need somebody first. What was given up
// comes last: however much it is, it does not hide what is ahead.
func TestPageIsCompleteWithoutScript(t *testing.T) {
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
}

// However many ask for the page at a time, it is made once for all of them; and whoever comes later gets a new one.
func TestPageIsMadeOnceForAllWhoAsk(t *testing.T) {
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

// However much there is, the page shows some of it and says how much more there is.
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
		"And 9950 more: sudo forewarn status", "And 300 more: sudo forewarn status",
		"Older events are left out: sudo forewarn history",
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

// People never read the words of programs for an end and for a sink that somebody must see to.
func TestPageSpeaksToPeople(t *testing.T) {
	text := strings.ToLower(shown(t, sampleFacts(time.Now())))
	for _, word := range []string{"vanished", "blocked", "orphaned", "superseded", "<no value>", "cannot be said"} {
		if strings.Contains(text, word) {
			t.Errorf("the page says %q:\n%s", word, text)
		}
	}
}

// Where there is nothing, the page says so in words, and says nothing that is not known.
func TestPageSaysWhatIsEmpty(t *testing.T) {
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
		{"not answered since the start", bridge.Status{Events: sampleFacts(now).Status.Events}, nil,
			"These events are from before forewarn started.", "announces nothing"},
		{"a wave", bridge.Status{Ready: true, IMDS: answered, Events: slices.Repeat(sampleFacts(now).Status.Events, 30)}, nil,
			"And 10 more: sudo forewarn status", "announces nothing"},
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

// What comes from outside stays text, wherever on the page it stands, also in what is sent to the script. Marks that
// turn the direction of writing are gone.
func TestPageShowsOutsideTextAsText(t *testing.T) {
	tags := regexp.MustCompile(`</?[a-zA-Z]+`)
	all := func(body string) []string {
		found := slices.Sorted(slices.Values(tags.FindAllString(body, -1)))
		return slices.Compact(found)
	}
	_, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	own := append(all(visit(t, h, "/").Body.String()), "<b", "</b") // who is told of what is in bold
	p, h := pageOf(func() pageFacts { return hostileFacts(time.Now()) })
	bodies := []string{visit(t, h, "/").Body.String()}
	parts, _, err := p.current()
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

// The page loads nothing from elsewhere and holds no script and no style of its own, so that its policy can forbid
// both.
func TestPageLoadsOnlyItsOwn(t *testing.T) {
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

// Every answer forbids a browser what the page does not need; a name that a web page could have rebound to this address
// is refused everywhere; nothing can be sent to the page.
func TestPageGuardsItself(t *testing.T) {
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

// What the page loads is asked for once; after that the answer is that nothing changed.
func TestPageFilesAreKept(t *testing.T) {
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

// follow opens the stream of a page. Closing ends it.
func follow(t *testing.T, url string) (*bufio.Scanner, *http.Response) {
	t.Helper()
	resp, err := http.Get(url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return lines, resp
}

// next is the next message of a stream.
func next(t *testing.T, lines *bufio.Scanner) pageNews {
	t.Helper()
	for lines.Scan() {
		if body, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var news pageNews
			if err := json.Unmarshal([]byte(body), &news); err != nil {
				t.Fatalf("%v: %.300s", err, body)
			}
			return news
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return pageNews{}
}

// A browser that follows the page hears all parts at first, then only those that changed; that time passes changes
// none.
func TestPageSendsWhatChanged(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var mu sync.Mutex
	facts := sampleFacts(now)
	_, h := pageOf(func() pageFacts {
		mu.Lock()
		defer mu.Unlock()
		return facts
	})
	url, _ := served(t, "127.0.0.1:0", h)
	lines, _ := follow(t, url)
	if got := next(t, lines).Parts; len(got) != len(pageParts) {
		t.Fatalf("the first message has %d parts, want all %d", len(got), len(pageParts))
	}
	if news := next(t, lines); len(news.Parts) > 0 && news.Parts["timeline"] == "" { // whose days may just have moved on
		t.Errorf("with nothing changed, a message has the parts %v", news.Parts)
	}
	mu.Lock()
	facts.Status.Events = facts.Status.Events[:1] // the reboot is over
	mu.Unlock()
	news := next(t, lines)
	for len(news.Parts) == 0 {
		news = next(t, lines)
	}
	if !strings.Contains(news.Parts["open"], "pause has begun") || strings.Contains(news.Parts["open"],
		"will reboot") || news.Parts["sinks"] != "" {
		t.Errorf("after one event of two has gone, the parts are %v", news.Parts)
	}
	if want := "needs you · 1 event · vm-db-1 · forewarn"; news.Title != want {
		t.Errorf("the title is %q, want %q", news.Title, want)
	}
}

// Only so many browsers follow the page at a time; the others are asked to come back. A place is free again when its
// browser has gone, and no request outlives the server.
func TestPageStreamsAreBoundedAndEnd(t *testing.T) {
	p, h := pageOf(func() pageFacts { return sampleFacts(time.Now()) })
	url, stop := served(t, "127.0.0.1:0", h)
	open := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			p.mu.Lock()
			n := p.streams
			p.mu.Unlock()
			if n == want {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%d streams are open, want %d", n, want)
			}
		}
	}
	var all []*http.Response
	for range maxStreams {
		lines, resp := follow(t, url)
		next(t, lines)
		all = append(all, resp)
	}
	_, refused := follow(t, url)
	if refused.StatusCode != http.StatusServiceUnavailable || refused.Header.Get("Retry-After") == "" {
		t.Errorf("one browser too many hears %d, Retry-After %q; want 503 and a time", refused.StatusCode,
			refused.Header.Get("Retry-After"))
	}
	all[0].Body.Close()
	open(maxStreams - 1)
	lines, _ := follow(t, url)
	next(t, lines)
	stop()
	open(0)
	if _, err := io.Copy(io.Discard, all[1].Body); err == nil {
		t.Log("the stream was ended in order") // either way it has ended
	}
}

// The history of a month is in memory only as long as somebody looks at it.
func TestPageForgetsTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
		log := slog.New(slog.DiscardHandler)
		box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		b := bridge.New(bridge.Options{
			Client: imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log,
				azure.RoundTripper()), Outbox: box, Log: log,
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		azure.Schedule(imdstest.Event{Type: "Reboot"})
		time.Sleep(2 * time.Second)

		look := bridgeFacts(b)
		seen := func() weak.Pointer[bridge.EventHistory] {
			f := look()
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

		p := newPage(look)
		if parts, _, err := p.current(); err != nil || len(parts) == 0 || !p.enter() {
			t.Fatalf("the page has %d parts: %v", len(parts), err)
		}
		p.leave()
		if len(p.parts) > 0 {
			t.Error("the last browser went away, and the page is still in memory")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A server that gives every request little time lets the stream go on.
func TestPageStreamOutlivesTheTimesOfTheServer(t *testing.T) {
	t.Parallel()
	looks := 0 // under the lock of the page
	_, h := pageOf(func() pageFacts {
		looks++
		return pageFacts{Status: bridge.Status{Version: fmt.Sprint("look ", looks)}}
	})
	server := httptest.NewUnstartedServer(h)
	server.Config.ReadTimeout, server.Config.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	server.Start()
	defer server.Close()
	lines, resp := follow(t, server.URL)
	defer resp.Body.Close() // for which Close waits
	for range 3 {           // a second apart
		if news := next(t, lines); !strings.Contains(news.Parts["foot"], "look ") {
			t.Errorf("a look later the parts are %v", news.Parts)
		}
	}
}

// A time is shown in the zone of the settings and in UTC, with its day when that is not today.
func TestPageTimes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		zone *time.Location
		at   time.Time
		want string
	}{
		{time.UTC, now.Add(10 * time.Minute), "04:10:00 UTC"},
		{berlin, now.Add(10 * time.Minute), "05:10:00 CET (04:10:00 UTC)"},
		{berlin, now.Add(20 * time.Hour), "Sun 22 Nov, 01:00:00 CET (00:00:00 UTC)"},
		{berlin, now.AddDate(0, -5, 0), "Sun 21 Jun, 06:00:00 CEST (04:00:00 UTC)"},
		{time.UTC, now.AddDate(1, 0, 0), "21 Nov 2027, 04:00:00 UTC"},
		{time.UTC, time.Time{}, ""},
	} {
		if got := (pageWriter{now: now, zone: tt.zone}).moment(tt.at); got.Text != tt.want {
			t.Errorf("%v in %v reads %q, want %q", tt.at, tt.zone, got.Text, tt.want)
		}
	}
}

// Of the machines of an event this VM is named first, so that it is never among those that are left out.
func TestPageNamesThisVMFirst(t *testing.T) {
	f := calmFacts(time.Now())
	var vms []string
	for i := range wording.ShownVMs + 5 {
		vms = append(vms, fmt.Sprint("vm-", i))
	}
	f.Status.Events[0].Event = statustest.Event(statustest.EventID("reboot"), "Reboot", "Platform", "",
		f.Status.Events[0].NotBefore, -1, append(vms, "vm-db-1")...)
	if text := shown(t, f); !strings.Contains(text, "VMs vm-db-1 (this VM) vm-0 vm-1 ") || !strings.Contains(text,
		"vm-18 and 6 more") {
		t.Errorf("the page says:\n%s\nwant this VM before the others, and how many are left out", text)
	}
}

// What came of an approval stands beside the event; before one, why there is none.
func TestPageShowsApprovals(t *testing.T) {
	f := calmFacts(time.Now())
	f.Status.Events[0].Approval = "it waits for ops-chat"
	if text := shown(t, f); !strings.Contains(text, "Approval Not approved: it waits for ops-chat.") {
		t.Errorf("of an event that waits for its approval the page says:\n%s", text)
	}
	life := &f.Histories[len(f.Histories)-1]
	life.Changes = append(life.Changes, bridge.HistoryChange{
		Change: imds.Approved, Time: time.Now(), Approval: &cloudevent.Approval{Result: cloudevent.ResultApproved,
			By: "rule 1", Status: "200 OK"},
	})
	if text := shown(t, f); !strings.Contains(text, "Approval Approved by rule 1, Azure answered 200 OK, ") {
		t.Errorf("of an event that was approved the page says:\n%s", text)
	}
}

// However many events there were, bars of one type that are near each other stand below each other, all within the
// drawing, and only the newest are drawn.
func TestPageTimelineKeepsBarsApart(t *testing.T) {
	now := time.Now()
	var f pageFacts
	for i := range timelineBars + 30 {
		ago := 29*24*time.Hour - time.Duration(i)*3*time.Hour
		f.Histories = append(f.Histories,
			sampleHistory(now, fmt.Sprint(i), "Reboot", ago, 15*time.Minute, time.Duration(i%40)*time.Hour+16*time.Minute,
				cloudevent.OutcomeCompleted, "vm-0"))
	}
	v := pageWriter{now: now, zone: time.UTC}.timeline(f)
	if len(v.Rows) != 1 || len(v.Rows[0].Bars) != timelineBars || v.Older != "30 older events are" {
		t.Fatalf("there are %d rows and %q left out, want 1 row of %d bars and 30 older events", len(v.Rows), v.Older,
			timelineBars)
	}
	share := func(s string) float64 {
		x, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	ends := map[int]float64{}
	for i, b := range v.Rows[0].Bars {
		from, start, to := share(b.From), share(b.Start), share(b.To)
		if from < 0 || start < from || to < start || to > 100 || b.Y > v.Axis {
			t.Errorf("bar %d goes from %v over %v to %v at %d of %d", i, from, start, to, b.Y, v.Axis)
		}
		if end, ok := ends[b.Y]; ok && from < end+minBar-0.02 {
			t.Errorf("bar %d begins at %v, where another one in its lane ends at %v", i, from, end)
		}
		ends[b.Y] = to
	}
}

// Text can be read and bars can be seen in both themes: their contrast is what WCAG 2.2 asks for at level AA.
func TestPageContrast(t *testing.T) {
	css, err := pageFiles.ReadFile("assets/page.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(string(css), -1)
	if len(blocks) != 2 {
		t.Fatalf("page.css has %d sets of colours, want a light and a dark one", len(blocks))
	}
	for i, theme := range []string{"light", "dark"} {
		colours := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllStringSubmatch(blocks[i][1], -1) {
			colours[m[1]] = luminance(t, m[2])
		}
		ratio := func(a, b string) float64 {
			x, y := colours[a], colours[b]
			if colours[a] == 0 || colours[b] == 0 {
				t.Fatalf("%s: there is no colour %s or %s", theme, a, b)
			}
			return (max(x, y) + 0.05) / (min(x, y) + 0.05)
		}
		for _, text := range []string{"text", "quiet", "link", "alarm", "warn", "good", "reboot", "redeploy", "freeze",
			"preempt", "terminate", "other"} {
			for _, ground := range []string{"ground", "card", "alarm-ground"} {
				if r := ratio(text, ground); r < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f, want at minBar 4.5", theme, text, ground, r)
				}
			}
		}
		if r := ratio("focus", "ground"); r < 3 {
			t.Errorf("%s: the focus has a contrast of %.2f, want at minBar 3", theme, r)
		}
	}
	if n := strings.Count(string(css), "#"); n > strings.Count(blocks[0][1]+blocks[1][1], "#")+strings.Count(string(css),
		"#main")+strings.Count(string(css), "#live")+strings.Count(string(css), "#summary") {
		t.Errorf("page.css has a colour that is in neither set, so its contrast is not held")
	}
}

// luminance is the relative luminance of a colour.
func luminance(t *testing.T, hex string) float64 {
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	part := func(shift uint) float64 {
		c := float64(n>>shift&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}

// The card of an event says which sinks have its newest change, which do not have it yet and which never will, and
// leads to this VM in Azure's portal. An event of another machine leads nowhere.
func TestPageShowsWhoWasNotifiedOfAnEvent(t *testing.T) {
	now := time.Now()
	f := sampleFacts(now)
	for i := range f.Histories {
		if changes := f.Histories[i].Changes; f.Histories[i].Event == statustest.EventID("reboot") {
			changes[len(changes)-1].Deliveries = []bridge.HistoryDelivery{
				{Sink: "audit", State: outbox.StateAccepted}, {Sink: "ops-chat", State: outbox.StateSuperseded},
				{Sink: "mail", State: outbox.StatePending}, {Sink: "runbook", State: outbox.StateDead},
			}
		}
	}
	if text := shown(t, f); !strings.Contains(text, "Delivered to audit, ops-chat; pending: mail; dead letter: runbook") {
		t.Errorf("the card does not say who was told: %s", text)
	}
	_, h := pageOf(func() pageFacts { return f })
	links := strings.Count(visit(t, h, "/").Body.String(), `<a href="https://portal.azure.com/`)
	if links != 1 {
		t.Errorf("the page has %d links to the portal, want one, in the card of this VM's reboot", links)
	}
}
