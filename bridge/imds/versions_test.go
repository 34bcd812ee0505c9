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

// An azureHost knows some api-versions of Scheduled Events and refuses the others in the service's words.
type azureHost struct {
	accepts []string
	wording string
	status  map[string]int // instead, by version
	asked   []string       // version, and the condition
}

func (h *azureHost) client(configured string) (*Client, *strings.Builder) {
	log := &strings.Builder{}
	return NewClient("http://azure.test", configured, slog.New(slog.NewTextHandler(log, nil)), hostFunc(h.answer)), log
}

func (h *azureHost) answer(r *http.Request) (int, http.Header, string) {
	version := r.URL.Query().Get("api-version")
	h.asked = append(h.asked, version+r.Header.Get("If-None-Match"))
	if status, ok := h.status[version]; ok {
		return status, nil, `{"error":"Bad request. Required metadata header not specified"}`
	}
	if !slices.Contains(h.accepts, version) {
		text := h.wording
		if text == "" {
			text = `{"error":"Bad request. api-version is invalid or was not specified in the request. For more information refer to aka.ms/azureimds","newest-versions":["2025-04-07","2024-07-17","2024-03-15"]}`
		}
		return http.StatusBadRequest, nil, text
	}
	return http.StatusOK, http.Header{"Etag": {"7"}}, document7
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
	const old = `{"error":"Bad request. api-version was not specified in the request.","newest-versions":["2017-08-01"]}`
	for _, tt := range []struct {
		claim      string
		configured string
		host       azureHost
		asked      []string
		missing    string // in the log, "" when nothing is said
	}{
		{"the configured one is taken", "2020-07-01", azureHost{accepts: []string{"2020-07-01", "2019-08-01"}}, []string{"2020-07-01"}, ""},
		{"the next is taken", "2020-07-01", azureHost{accepts: []string{"2019-08-01", "2017-08-01"}}, []string{"2020-07-01", "2019-08-01"}, "DurationInSeconds"},
		{"the last is taken", "2020-07-01", azureHost{accepts: []string{"2017-08-01"}}, []string{"2020-07-01", "2019-08-01", "2017-08-01"},
			"Description, DurationInSeconds, EventSource, Preempt, Terminate"},
		{"of an older one only older ones stand in", "2019-08-01", azureHost{accepts: []string{"2020-07-01", "2017-08-01"}}, []string{"2019-08-01", "2017-08-01"},
			"Description, EventSource, Preempt, Terminate"},
		{"the wording of 2018 is understood", "2019-01-01", azureHost{accepts: []string{"2017-08-01"}, wording: old}, []string{"2019-01-01", "2017-08-01"}, "Preempt, Terminate"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			c, log := tt.host.client(tt.configured)
			used := tt.asked[len(tt.asked)-1]
			for i := range 3 {
				p := c.Poll(t.Context(), "")
				wantPoll(t, p, PollDocument, "")
				if p.Document.APIVersion != used || c.APIVersion() != used {
					t.Errorf("document of %s, client on %s, want %s", p.Document.APIVersion, c.APIVersion(), used)
				}
				if i == 0 {
					tt.host.wantAsked(t, tt.asked...)
				} else {
					tt.host.wantAsked(t, used)
				}
			}
			said := log.String()
			line := fmt.Sprintf("configured=%s used=%s missing=%s\n", tt.configured, used, tt.missing)
			switch {
			case tt.missing == "" && said != "":
				t.Errorf("the log says %s", said)
			case tt.missing != "" && (strings.Count(said, "level=WARN") != 1 || !strings.HasSuffix(strings.ReplaceAll(said, `"`, ""), line)):
				t.Errorf("the log says %s, want one warning with %s", said, line)
			}
		})
	}
}

// A host answers 404 to a version that is newer than it. That says nothing of the version that Azure documents: there it is
// a failure that may pass.
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

// An ETag belongs to the document of one api-version and is not sent with another.
func TestETagIsNotSentWithAnotherVersion(t *testing.T) {
	h := &azureHost{accepts: []string{"2020-07-01"}}
	c, _ := h.client("2020-07-01")
	c.Poll(t.Context(), "")
	h.accepts = []string{"2017-08-01"}
	h.asked = nil
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
		poll(PollDocument, "2020-07-01", "2019-08-01")
		time.Sleep(time.Hour - time.Second)
		poll(PollDocument, "2019-08-01")
		time.Sleep(time.Second)
		poll(PollDocument, "2020-07-01", "2019-08-01")
		poll(PollDocument, "2019-08-01")
		time.Sleep(time.Hour - time.Second)
		poll(PollDocument, "2019-08-01")

		h.status["2020-07-01"] = 503 // it fails in another way
		time.Sleep(time.Second)
		poll(PollRetry, "2020-07-01")
		poll(PollDocument, "2019-08-01")
		time.Sleep(time.Hour - time.Second)
		poll(PollDocument, "2019-08-01")

		delete(h.status, "2020-07-01") // the VM is on another host
		h.accepts = []string{"2019-08-01", "2020-07-01"}
		time.Sleep(time.Second)
		poll(PollDocument, "2020-07-01")
		poll(PollDocument, "2020-07-01")
		if c.APIVersion() != "2020-07-01" || strings.Count(log.String(), "\n") != 2 || !strings.Contains(log.String(), "level=INFO") {
			t.Errorf("on %s, the log says %s", c.APIVersion(), log)
		}
	})
}

// A client without a log says nothing of the fallback, nor of the return to the configured version.
func TestAClientWithoutALogFallsBackToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := azureHost{accepts: []string{"2019-08-01"}}
		c := NewClient("http://azure.test", "2020-07-01", nil, hostFunc(h.answer))
		wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
		if v := c.APIVersion(); v != "2019-08-01" {
			t.Errorf("in use is %s", v)
		}
		h.accepts = []string{"2020-07-01"}
		time.Sleep(2 * time.Hour)
		wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
		if v := c.APIVersion(); v != "2020-07-01" {
			t.Errorf("in use is %s", v)
		}
	})
}

// If all api-versions are refused, the poll fails and names the configured one. The next poll starts with it again,
// because the VM may have moved to another host.
func TestAllVersionsRefusedIsALastingFailure(t *testing.T) {
	h := &azureHost{accepts: []string{"2017-08-01"}}
	c, log := h.client("2020-07-01")
	wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
	h.asked, h.accepts = nil, nil
	wantPoll(t, c.Poll(t.Context(), ""), PollSettings, "http://azure.test refuses api-version 2020-07-01")
	h.wantAsked(t, "2017-08-01")
	wantPoll(t, c.Poll(t.Context(), ""), PollSettings, "http://azure.test refuses api-version 2020-07-01")
	h.wantAsked(t, "2020-07-01", "2019-08-01", "2017-08-01")
	h.accepts = []string{"2020-07-01"}
	wantPoll(t, c.Poll(t.Context(), ""), PollDocument, "")
	h.wantAsked(t, "2020-07-01")
	if got := c.APIVersion(); got != "2020-07-01" {
		t.Errorf("on %s\n%s", got, log)
	}
}

// A 400 for another reason tries no other api-version.
func TestOtherBadRequestTriesNoOtherVersion(t *testing.T) {
	h := &azureHost{status: map[string]int{"2020-07-01": 400}}
	c, log := h.client("2020-07-01")
	wantPoll(t, c.Poll(t.Context(), ""), PollSettings, "400 Bad Request: {\"error\":\"Bad request. Required metadata header")
	h.wantAsked(t, "2020-07-01")
	if c.APIVersion() != "2020-07-01" || log.String() != "" {
		t.Errorf("on %s, the log says %s", c.APIVersion(), log)
	}
}

// Instance metadata has its own api-versions, and falls back to older ones too.
func TestInstanceFallsBackToOlderVersions(t *testing.T) {
	var asked []string
	for _, known := range []string{"2021-02-01", "2019-06-04", "2017-08-01"} {
		asked = nil
		c := NewClient("http://azure.test", DefaultAPIVersion, slog.New(slog.DiscardHandler), hostFunc(func(r *http.Request) (int, http.Header, string) {
			version := r.URL.Query().Get("api-version")
			asked = append(asked, version)
			if version != known {
				return http.StatusBadRequest, nil, `{"error":"Bad request. api-version is invalid"}`
			}
			return http.StatusOK, nil, `{"compute":{"name":"vm-0","location":"westeurope","other":{"x":[1]}}}`
		}))
		o, err := c.Instance(t.Context())
		if err != nil || o != (Observer{Name: "vm-0", Location: "westeurope"}) || asked[len(asked)-1] != known {
			t.Errorf("where only %s is known: %+v, %v, asked for %q", known, o, err, asked)
		}
	}
	if want := []string{"2021-02-01", "2019-06-04", "2017-08-01"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}
