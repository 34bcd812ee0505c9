package imds

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	refusal = `{"error":"Bad request. api-version is invalid or was not specified in the request. For more information ` +
		`refer to aka.ms/azureimds","newest-versions":["2025-04-07","2024-07-17","2024-03-15"]}`
	refusal2018 = `{"error":"Bad request. api-version was not specified in the request.","newest-versions":["2017-08-01"]}`
)

// An azureHost knows some api-versions of Scheduled Events and refuses the others in the service's words.
type azureHost struct {
	accepts []string
	wording string         // "" for the usual one
	status  map[string]int // instead, by version
	asked   []string       // version, and the condition
}

// client returns a client of the host, and what it logs.
func (h *azureHost) client(configured string) (*Client, *strings.Builder) {
	log := &strings.Builder{}
	return NewClient("http://azure.test", configured, slog.New(slog.NewTextHandler(log, nil)), host(h.answer)), log
}

func (h *azureHost) answer(r *http.Request) (int, http.Header, string) {
	version := r.URL.Query().Get("api-version")
	h.asked = append(h.asked, version+r.Header.Get("If-None-Match"))
	switch {
	case h.status[version] != 0:
		return h.status[version], nil, `{"error":"Bad request. Required metadata header not specified"}`
	case slices.Contains(h.accepts, version):
		return 200, http.Header{"Etag": {"7"}}, document7
	case h.wording != "":
		return 400, nil, h.wording
	}
	return 400, nil, refusal
}

// wantAsked checks the api-versions of the requests since its last call.
func (h *azureHost) wantAsked(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(h.asked, want) {
		t.Errorf("asked for %q, want %q", h.asked, want)
	}
	h.asked = nil
}

// If a host refuses the configured api-version, the same poll tries older ones. The log says once what they lack.
func TestRefusedVersionFallsBackToAnOlderOne(t *testing.T) {
	for _, tt := range []struct {
		claim      string
		configured string
		host       azureHost
		asked      []string
		missing    string // in the log, "" when nothing is said
	}{
		{"the configured one is taken", "2020-07-01", azureHost{accepts: []string{"2020-07-01", "2019-08-01"}},
			[]string{"2020-07-01"}, ""},
		{"the next is taken", "2020-07-01", azureHost{accepts: []string{"2019-08-01", "2017-08-01"}},
			[]string{"2020-07-01", "2019-08-01"}, "DurationInSeconds"},
		{"the last is taken", "2020-07-01", azureHost{accepts: []string{"2017-08-01"}},
			[]string{"2020-07-01", "2019-08-01", "2017-08-01"},
			"Description, DurationInSeconds, EventSource, Preempt, Terminate"},
		{"of an older one only older ones stand in", "2019-08-01", azureHost{accepts: []string{"2020-07-01", "2017-08-01"}},
			[]string{"2019-08-01", "2017-08-01"}, "Description, EventSource, Preempt, Terminate"},
		{"the wording of 2018 is understood", "2019-01-01", azureHost{accepts: []string{"2017-08-01"}, wording: refusal2018},
			[]string{"2019-01-01", "2017-08-01"}, "Preempt, Terminate"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			c, log := tt.host.client(tt.configured)
			used := tt.asked[len(tt.asked)-1]
			for _, asked := range [][]string{tt.asked, {used}, {used}} {
				p := c.Poll(t.Context(), "")
				wantPoll(t, p, PollDocument, "")
				if p.Document.APIVersion != used || c.APIVersion() != used {
					t.Errorf("document of %s, client on %s, want %s", p.Document.APIVersion, c.APIVersion(), used)
				}
				tt.host.wantAsked(t, asked...)
			}
			said := strings.ReplaceAll(log.String(), `"`, "")
			line := fmt.Sprintf("configured=%s used=%s missing=%s\n", tt.configured, used, tt.missing)
			warned := strings.Count(said, "level=WARN") == 1 && strings.HasSuffix(said, line)
			if said != "" != (tt.missing != "") || said != "" && !warned {
				t.Errorf("the log says %q, want one warning if something is missing: %q", said, tt.missing)
			}
		})
	}
}

// A host answers 404 to a version that is newer than it. That says nothing of the version that Azure documents: there
// it is a failure that may pass.
func TestAVersionNewerThanTheHostIsRefusedWith404(t *testing.T) {
	h := &azureHost{accepts: []string{"2020-07-01"}, status: map[string]int{"2024-07-09": 404}}
	c, log := h.client("2024-07-09")
	wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
	h.wantAsked(t, "2024-07-09", "2020-07-01")
	if said := log.String(); !strings.Contains(said, "configured=2024-07-09 used=2020-07-01") {
		t.Errorf("the log says %s", said)
	}
	h.status["2020-07-01"] = 404
	wantPoll(t, c.Poll(t.Context(), ""), PollRetry, "404")
	h.wantAsked(t, "2020-07-01")
}

// An ETag belongs to the document of one api-version and is not sent with another. A client without a log falls back
// too.
func TestETagIsNotSentWithAnotherVersion(t *testing.T) {
	h := &azureHost{accepts: []string{"2020-07-01"}}
	c := host(h.answer).client()
	c.Poll(t.Context(), "")
	h.wantAsked(t, "2020-07-01")
	h.accepts = []string{"2017-08-01"}
	wantPoll(t, c.Poll(t.Context(), "#7"), PollDocument, "")
	h.wantAsked(t, "2020-07-01#7", "2019-08-01", "2017-08-01")
	wantPoll(t, c.Poll(t.Context(), "#7"), PollDocument, "")
	h.wantAsked(t, "2017-08-01#7")
}

// An hour after a fallback the configured api-version is tried again, and then once an hour.
func TestConfiguredVersionIsTriedAgainAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &azureHost{accepts: []string{"2019-08-01"}, status: map[string]int{}}
		c, log := h.client("2020-07-01")
		poll := func(class PollClass, asked ...string) {
			t.Helper()
			wantPoll(t, c.Poll(t.Context(), ""), class, "")
			h.wantAsked(t, asked...)
		}
		hourPasses := func() {
			t.Helper()
			time.Sleep(time.Hour - time.Second)
			poll(PollDocument, "2019-08-01")
			time.Sleep(time.Second)
		}
		poll(PollDocument, "2020-07-01", "2019-08-01")
		hourPasses()
		poll(PollDocument, "2020-07-01", "2019-08-01")
		poll(PollDocument, "2019-08-01")
		hourPasses()
		h.status["2020-07-01"] = 503 // it fails in another way
		poll(PollRetry, "2020-07-01")
		poll(PollDocument, "2019-08-01")
		hourPasses()
		delete(h.status, "2020-07-01") // the VM is on another host
		h.accepts = []string{"2019-08-01", "2020-07-01"}
		poll(PollDocument, "2020-07-01")
		poll(PollDocument, "2020-07-01")
		said := log.String()
		if c.APIVersion() != "2020-07-01" || strings.Count(said, "\n") != 2 || !strings.Contains(said, "level=INFO") {
			t.Errorf("on %s, the log says %s", c.APIVersion(), said)
		}
	})
}

// If all api-versions are refused, the poll fails and names the configured one. The next poll starts with it again,
// because the VM may have moved to another host.
func TestAllVersionsRefusedIsALastingFailure(t *testing.T) {
	h := &azureHost{accepts: []string{"2017-08-01"}}
	c := host(h.answer).client()
	wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
	h.asked, h.accepts = nil, nil
	wantPoll(t, c.Poll(t.Context(), ""), PollSettings, "http://azure.test refuses api-version 2020-07-01")
	h.wantAsked(t, "2017-08-01")
	wantPoll(t, c.Poll(t.Context(), ""), PollSettings, "http://azure.test refuses api-version 2020-07-01")
	h.wantAsked(t, "2020-07-01", "2019-08-01", "2017-08-01")
	h.accepts = []string{"2020-07-01"}
	wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
	h.wantAsked(t, "2020-07-01")
}

// A 400 for another reason tries no other api-version.
func TestOtherBadRequestTriesNoOtherVersion(t *testing.T) {
	h := &azureHost{status: map[string]int{"2020-07-01": 400}}
	c, log := h.client("2020-07-01")
	p := c.Poll(t.Context(), "")
	wantPoll(t, p, PollSettings, `400 Bad Request: {"error":"Bad request. Required metadata header`)
	h.wantAsked(t, "2020-07-01")
	if c.APIVersion() != "2020-07-01" || log.String() != "" {
		t.Errorf("on %s, the log says %s", c.APIVersion(), log)
	}
}
