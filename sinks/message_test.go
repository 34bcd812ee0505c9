package sinks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

// A link to the runbook leads somewhere, whatever the event has and lacks, or there is none.
func TestRunbookLinksLeadSomewhere(t *testing.T) {
	for _, tt := range []struct{ template, azeventtype, want string }{
		{"https://wiki.example/x", "", "https://wiki.example/x"},
		{"https://wiki.example/{{.azeventtype}}", "Reboot", "https://wiki.example/Reboot"},
		{"https://wiki.example/{{.azeventtype}}", "", ""},
		{"https://wiki.example/{{lower .azeventtype}}?q={{.observer}}", "", ""},
		{"https://wiki.example/{{.azeventtype | urlquery}}", "", ""},
		{"https://wiki.example/{{default \"any\" .azeventtype}}", "", "https://wiki.example/any"},
		{"https://wiki.example/{{with .azeventtype}}types/{{.}}{{end}}", "", "https://wiki.example/"},
		{"https://wiki.example/{{.azeventtype}}", "Some \"New\" Type|<x> 100%",
			"https://wiki.example/Some%20%22New%22%20Type%7C%3Cx%3E%20100%25"},
		{"https://wiki.example/{{.azeventtype | urlquery}}", "New Type", "https://wiki.example/New+Type"},
		{"https://wiki.example/{{.azeventtype}}", "Neustart für\u202e", "https://wiki.example/Neustart%20f%C3%BCr%E2%80%AE"},
		{"https://wiki.example/{{.data.event.Nowhere}}", "Reboot", ""},
		{"{{if .azeventtype}}https://wiki.example/{{end}}", "", ""},
	} {
		template, err := templates.Parse("runbook_url", tt.template)
		if err != nil {
			t.Fatal(err)
		}
		f := (&Host{}).fields(situations()["scheduled"].batch, messageTime.clock())
		f["azeventtype"] = tt.azeventtype
		if got, err := (runbook{template}).link(f); err != nil || got != tt.want {
			t.Errorf("%s with type %q is %q, %v; want %q", tt.template, tt.azeventtype, got, err, tt.want)
		}
	}
}

// A message that waited for its lead says the time that the event has now, and is late only since it was due.
func TestAMessageWithALeadSaysThePresentTime(t *testing.T) {
	d := situations()["scheduled"].batch[0]
	seen := d.Event.Time()
	d.NotBefore = seen.Add(100 * time.Hour)
	h := &Host{Lead: time.Hour}
	approved := situations()["approved"].batch[0] // it waits with the change
	approved.NotBefore = d.NotBefore
	if f := h.fields([]delivery.Delivery{approved}, seen.Add(99*time.Hour)); f["age"] != 0.0 {
		t.Errorf("what came of an approval is %v s late, want that it came in time", f["age"])
	}
	for after, age := range map[time.Duration]float64{0: 0, 3 * time.Minute: 180} {
		f := h.fields([]delivery.Delivery{d}, seen.Add(99*time.Hour+after))
		left := (time.Hour - after).Seconds()
		if f["aznotbefore"] != d.NotBefore.Format(time.RFC3339) || f["left"] != left || f["age"] != age {
			t.Errorf("%v after it was due: %v, %v s left, %v s late; want %v, %v, %v", after, f["aznotbefore"], f["left"], f["age"],
				d.NotBefore, left, age)
		}
	}
	d.NotBefore = time.Time{}
	for _, h := range []*Host{{}, {Lead: time.Hour}} {
		f := h.fields([]delivery.Delivery{d}, seen.Add(time.Hour))
		if f["age"] != 3600.0 || f["aznotbefore"] == nil {
			t.Errorf("lead %v, without a time: %v s late, not before %v", h.Lead, f["age"], f["aznotbefore"])
		}
	}
	d.Repeated = true
	if f := (&Host{}).fields([]delivery.Delivery{d}, seen.Add(time.Hour)); f["age"] != 0.0 {
		t.Errorf("what is repeated is %v s late, want that it came in time", f["age"])
	}
}

// The texts for people can say every sample; the blocks are JSON.
func TestDefaultTextsSayEverySample(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	for name, text := range map[string]*templates.Template{
		"slack text": templates.SlackText, "slack whole": templates.SlackWhole, "slack blocks": templates.SlackBlocks,
		"email subject": templates.EmailSubject, "email text": templates.EmailText, "email html": templates.EmailHTML,
	} {
		if err := tryOn(true, func(f map[string]any) error {
			var b bytes.Buffer
			if err := text.Execute(&b, f); err != nil {
				return err
			}
			if bytes.Contains(b.Bytes(), []byte("<no value>")) {
				return fmt.Errorf("a value is missing in\n%s", b.Bytes())
			}
			if name == "slack blocks" {
				return json.Unmarshal(b.Bytes(), new(any))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// The readers of a fallback learn in few words what is wrong with the sink that it stands in for, and nothing of where
// that one delivers to.
func TestAFallbackSaysWhyInWordsThatGiveNothingAway(t *testing.T) {
	for why, want := range map[string]string{
		"blocked: Slack answered invalid_auth: put a new token into /etc/forewarn/slack-token": "refuses: invalid_auth",
		"blocked: Slack answered " + notShown:                                                  "accepts nothing until somebody mends it",
		"blocked: 401 Unauthorized from https://hook.internal: who are you?":                   "refuses: 401 Unauthorized",
		"blocked: hook.internal: no such host":                                                 "accepts nothing until somebody mends it",
		"rejected: 422 Unprocessable Entity from https://hook.internal: s3cr3t":                "refused it: 422 Unprocessable Entity",
		"rejected: exit 78: s3cr3t":                                                            "refused it",
		"nothing listens at hook.internal:443 (connection refused)":                            "couldn't deliver it: connection refused",
		"503 Service Unavailable from https://hook.internal":                                   "couldn't deliver it: 503 Service Unavailable",
		"no answer from https://hook.internal: deadline":                                       "didn't answer",
		"exit 75: Slack answered s3cr3t":                                                       "couldn't deliver it",
		"hook.internal: said (connection refused) and then s3cr3t too":                         "couldn't deliver it",
	} {
		if got := reasonForPeople(why); got != want {
			t.Errorf("of %q readers are told %q, want %q", why, got, want)
		}
	}
}

// Who hears of an event for the first time when it has begun is told what it does: because nothing came before, because
// it was not delivered, because another sink should have told it, or because the settings keep what comes before away.
func TestAnEventThatHasBegunIsExplainedToThoseWhoHearOfItFirst(t *testing.T) {
	const effect = "The VM restarts. Anything only in memory is lost."
	known, unknown := situations()["started"], situations()["started-unannounced"]
	missed, instead := situations()["started-late"], situations()["started"]
	instead.batch[0].FallbackFor = &delivery.FallbackFor{Sink: "ops-chat", Error: "no answer"}
	for _, tt := range []struct {
		claim string
		situation
		host Host
		told bool
	}{
		{"it was announced here", known, Host{}, true},
		{"it begins unannounced", unknown, Host{}, false},
		{"the announcement was not delivered", missed, Host{}, false},
		{"another sink should have told it", instead, Host{}, false},
		{"the settings keep the announcement away", known, Host{NoStart: true}, false},
	} {
		text := render(t, texts.text, tt.host.fields(tt.batch, tt.now.clock()))
		if strings.Contains(text, effect) == tt.told {
			t.Errorf("%s: the mail is\n%s", tt.claim, text)
		}
	}
}

// A connection that is refused is told as such, with the place that the settings name.
func TestARefusedConnectionSaysThatNothingListens(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 4), Port: 443},
		Err: os.NewSyscallError("connect", systemtest.Refused)}
	byProxy := &net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused}
	for _, tt := range []struct {
		from string
		err  error
		want string
	}{
		{"smtp.example.com:587", refused, "nothing listens at smtp.example.com:587 (connection refused)"},
		{"smtp.example.com:587", fmt.Errorf("%w%s", refused, ""), "nothing listens at smtp.example.com:587 (connection refused)"},
		{"https://chat.example.com", refused, "nothing listens at chat.example.com:443 (connection refused)"},
		{"http://[::1]:8080", refused, "nothing listens at [::1]:8080 (connection refused)"},
		{"tcp://log.example.com:514", refused, "nothing listens at log.example.com:514 (connection refused)"},
		{"https://chat.example.com", byProxy, "nothing listens at the proxy for https://chat.example.com (connection refused)"},
		{"https://chat.example.com", errors.New("refused"), "https://chat.example.com: refused"},
	} {
		if got := failure(t.Context(), new(redactor), tt.from, nil, tt.err).Error(); got != tt.want {
			t.Errorf("the error of %s, %v, is %q, want %q", tt.from, tt.err, got, tt.want)
		}
	}
}

// What a message stands for happened when the event says so. The sink may have been owed it only later: when its lead came,
// or when another sink had failed for long enough.
func TestWhatWasMissedHappenedWhenTheEventSaysSo(t *testing.T) {
	owed := at("03:58:00").clock()
	begun := situations()["started"]
	d := begun.batch[0]
	d.Missed = []delivery.Missed{{Change: "scheduled", Time: owed}, {Change: "updated", Time: owed}, {Change: "started", Time: owed}}
	f := MessageFields(d, time.UTC, begun.now.clock())
	var got []string
	for _, m := range f["missed"].([]map[string]any) {
		got = append(got, fmt.Sprint(m["change"], " ", m["time"]))
	}
	want := []string{
		fmt.Sprint("scheduled ", f["announced"]), "updated " + owed.Format(time.RFC3339), fmt.Sprint("started ", f["begun"]),
	}
	if f["announced"] == "" || f["begun"] == "" || !slices.Equal(got, want) {
		t.Errorf("missed are %q, want %q", got, want)
	}
}
