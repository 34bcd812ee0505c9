package imds

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// answers is an http.RoundTripper that gives the same answer to every request.
type answers struct {
	status       int // 0 for none
	server, body string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.status == 0 {
		return nil, errors.New("no route to host")
	}
	return &http.Response{StatusCode: a.status, Status: http.StatusText(a.status), Header: http.Header{"Server": {a.server}},
		Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

func (a *answers) client() *Client {
	return NewClient("http://one.test", DefaultAPIVersion, slog.New(slog.DiscardHandler), a)
}

func TestProbeTellsAzureFromOtherServers(t *testing.T) {
	const isAzure, other, silent = "Azure", "another server", "nobody"
	for _, c := range []struct {
		answers
		want string
	}{
		{answers{status: 200, body: `{"apiVersions":["2020-07-01"]}`}, isAzure},
		{answers{status: 200, body: `{"apiVersions":[]}`}, other},
		{answers{status: 200, body: `{}`}, other},
		{answers{status: 200, body: `<html>`}, other},
		{answers{status: 404, body: `{"apiVersions":["2020-07-01"]}`}, other},
		{answers{status: 404, server: "IMDS/150.870"}, isAzure},
		{answers{status: 410}, isAzure},
		{answers{status: 429}, isAzure},
		{answers{status: 500}, isAzure},
		{answers{status: 503}, isAzure},
		{answers{status: 502}, other},
		{answers{}, silent},
	} {
		err := c.client().Probe(t.Context())
		got := silent
		switch {
		case err == nil:
			got = isAzure
		case errors.Is(err, ErrNotAzure):
			got = other
		}
		if got != c.want {
			t.Errorf("%d from %q with %q is %s (%v), want %s", c.status, c.server, c.body, got, err, c.want)
		}
	}
}

func TestAnswerErrorSaysWhetherItLasts(t *testing.T) {
	for status, want := range map[int][2]bool{ // final, lasting
		200: {false, true}, 204: {false, true}, 302: {false, true}, 399: {false, true},
		400: {true, false}, 403: {true, false}, 404: {false, true}, 408: {false, false}, 410: {false, true},
		429: {false, false}, 499: {true, false}, 500: {false, false}, 503: {false, false},
	} {
		a := &answers{status: status, body: "no metadata"}
		_, err := a.client().Instance(t.Context())
		e, ok := errors.AsType[*AnswerError](err)
		if !ok {
			t.Errorf("%d gives %v, want an AnswerError", status, err)
			continue
		}
		if got := [2]bool{e.Final(), e.Lasting()}; got != want {
			t.Errorf("%d is final and lasting: %v, want %v", status, got, want)
		}
	}
}

func TestApprovalsAndRemindersAreNotFromAzure(t *testing.T) {
	for kind, want := range map[ChangeKind]bool{
		Scheduled: true, Updated: true, Started: true, Vanished: true, Approved: false, Reminder: false,
	} {
		if got := kind.OfAzure(); got != want {
			t.Errorf("%s is of Azure: %v, want %v", kind, got, want)
		}
	}
}

// The times of CloudEvents are in RFC 3339, which allows the years 0 to 9999.
func TestNotBeforeHasAYearOfFourDigits(t *testing.T) {
	for text, want := range map[string]bool{
		"0000-01-01T00:00:00Z": true, "0000-01-01T00:00:00+01:00": false,
		"9999-12-31T23:59:59Z": true, "9999-12-31T23:59:59-01:00": false,
	} {
		if at, err := parseNotBefore(text); (err == nil) != want {
			t.Errorf("%s is %v, %v", text, at.Format(time.RFC3339), err)
		}
	}
}

func TestBoundsOfFields(t *testing.T) {
	long := strings.Repeat("A", 64)
	for id, kept := range map[string]bool{long: true, long + "A": false} {
		e, err := UnmarshalEvent([]byte(`{"EventId":"` + id + `"}`))
		if err != nil || (e.ID == id) != kept || len(e.ID) > 64 {
			t.Errorf("an EventId of %d characters becomes %s (%v)", len(id), e.ID, err)
		}
	}
	for text, want := range map[string]int{ // -1 stands for unknown
		"2147483647": 2147483647, "2147483648": -1, "-1": -1,
	} {
		if e, err := UnmarshalEvent([]byte(`{"EventId":"A","DurationInSeconds":` + text + `}`)); err != nil || e.Duration != want {
			t.Errorf("%s seconds are %d (%v), want %d", text, e.Duration, err, want)
		}
	}
	for text, want := range map[string]string{ // U+FDD0 to U+FDEF are no characters
		"a\ufdcfb": "a\ufdcfb", "a\ufdd0b": "a b", "a\ufdefb": "a b", "a\ufdf0b": "a\ufdf0b",
	} {
		if got := Printable(text, 100); got != want {
			t.Errorf("%+q is printed as %+q, want %+q", text, got, want)
		}
	}
}

// CutText does not cut a rune in half.
func TestTextIsCutBetweenRunes(t *testing.T) {
	for n, want := range []string{"", "a", "a", "aé", "aé", "aé", "aé€"} {
		if got := CutText("aé€", n); got != want {
			t.Errorf("cut at %d bytes it is %q, want %q", n, got, want)
		}
	}
}

// Of text that has no place for a cut, because it is not UTF-8, CutText leaves nothing.
func TestTextWithoutAPlaceForACutIsLeftOut(t *testing.T) {
	for n := range 3 {
		if got := CutText("\x80\x80\x80", n); got != "" {
			t.Errorf("cut at %d bytes it is %q, want nothing", n, got)
		}
	}
}
