package sinks

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"forewarn/bridge/systemtest"
)

// shownBeside returns what is shown of a text to a sink with a secret URL.
func shownBeside(t *testing.T, address, text string) string {
	t.Helper()
	redact := new(redactor)
	redact.hideURL(parsed(t, address))
	return redact.line(text, maxShown)
}

// An answer is made of nothing but escapes, or of escapes of escapes: it is searched in a moment, and never shown if it
// has too many readings to search them all.
func TestAnAnswerOfEscapesIsBounded(t *testing.T) {
	redact := new(redactor)
	redact.hide(strings.Repeat("s3cr3t-token", 100))
	for _, one := range []string{
		`\u005c`, "%25", "&#x26;", "=3D", `\\`, "&amp;", "%255c%26amp;=3D25", `\u0025u005c&#37;25=5C`, "A", "4a", "+ ",
	} {
		began := time.Now()
		got := redact.line(strings.Repeat(one, 1<<20/len(one)), maxShown)
		if len(got) > maxShown {
			t.Errorf("of %q %d bytes are shown", one, len(got))
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%q took %v", one, took)
		}
	}
}

// Whichever way a destination repeats a secret in, what its sink says about it, and logs, doesn't hold it.
func TestNoDestinationGetsASecretShown(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	const secret = "s3cr3t/0f+the=d3stination"
	ca := newAuthority(t)
	cert := ca.issue(t, "127.0.0.1", time.Hour)
	for _, w := range writings {
		written := strings.Join(strings.Fields(w.write("u:"+secret)), " ") // one line, as some protocols have it
		says := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("X-Request-Id", written)
			rw.WriteHeader(http.StatusUnauthorized)
			io.WriteString(rw, "no such token: "+w.write("u:"+secret))
		})
		srv, inPath := serve(t, says), url.PathEscape(secret)
		slack := serve(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(rw, `{"ok":false,"error":%q,"needed":%[1]q,"response_metadata":{"messages":[%[1]q]}}`, written)
		}))
		server, _ := natsFake(t, func(conn net.Conn, r *bufio.Reader) {
			fmt.Fprintf(conn, natsInfo, "")
			r.ReadString('\n')
			fmt.Fprintf(conn, "-ERR 'Authorization Violation of %s'\r\n", written)
			conn.Close()
		})
		refusal := &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCodeNotSet,
			Message: "you said " + strings.Join(strings.Fields(w.write("u:"+mailPassword)), " ")}
		mail := serveMail(t, &mailbox{mechanisms: []string{"PLAIN"},
			refuse: map[string]error{"ops@example.com": refusal}}, "starttls", ca, cert)
		proxy := strings.Replace(srv.URL, "://", "://gatekeeper:"+inPath+"@", 1)
		for _, settings := range []string{
			"webhook {url: '" + srv.URL + "', bearer: '" + secret + "'}",
			"webhook {url: '" + srv.URL + "', basic: {username: u, password: '" + secret + "'}}",
			"webhook {url: '" + srv.URL + "/hook/" + inPath + "'}",
			"webhook {url: '" + srv.URL + "/?key=" + url.QueryEscape(secret) + "'}",
			"webhook {url: '" + srv.URL + "', headers: {X-Api-Key: '" + secret + "'}}",
			"pagerduty {url: '" + srv.URL + "', routing_key: '" + secret + "'}",
			"webhook {url: 'http://hook.example', proxy: '" + proxy + "'}",
			"webhook {url: 'https://hook.example', proxy: '" + proxy + "'}",
			"slack {webhook_url: '" + srv.URL + "/services/" + inPath + "'}",
			"slack {token: '" + secret + "', channel: C1, api_url: '" + slack.URL + "'}",
			"nats {url: 'nats://gatekeeper:" + inPath + "@" + server + "'}",
			"nats {url: 'nats://" + server + "', token: '" + secret + "'}",
			"email " + mail + "to: [ops@example.com]\nusername: azure\npassword: '" + mailPassword + "'",
			"exec " + strings.Replace(asCommand(t, "exit", "1", w.write(secret)), "env:", "env:\n  KEY: '"+secret+"'", 1),
		} {
			kind, keys, _ := strings.Cut(settings, " ")
			var log strings.Builder
			h := testHost(t)
			h.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			s := mustOpen(t, kind, keys, h)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			answer, err := s.Deliver(ctx, deliveries(t)[:1])
			cancel()
			said := fmt.Sprintf("%s %s %v %s", answer.Status, answer.ID, err, &log)
			if err == nil {
				t.Errorf("%s as %s: it is delivered", settings, w.name)
			}
			for _, repeated := range []string{written, w.write(secret[:8]), secret[:8], secret[len(secret)-8:], mailPassword[:8],
				refusal.Message[len("you said "):]} {
				if strings.Contains(said, repeated) {
					t.Errorf("%s as %s shows %q:\n%s", settings, w.name, repeated, said)
				}
			}
		}
	}
}

// What the servers of a relay say is shown in the same way.
func TestErrorsOfARelaysServersShowNoSecret(t *testing.T) {
	const secret = "s3cr3t/0f+the=r3lay"
	settings := NATSSettings{URL: []Value{{Text: NewSecret("tls://gatekeeper:" + url.PathEscape(secret) + "@nats.example")}}}
	servers, err := NewNATS(settings, testHost(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range writings {
		got := servers.Shown(fmt.Errorf("create stream FOREWARN: no right for %s", w.write(secret)))
		if got.Error() != notShown {
			t.Errorf("as %s: %v", w.name, got)
		}
	}
	if got := servers.Shown(io.ErrUnexpectedEOF); got.Error() != io.ErrUnexpectedEOF.Error() {
		t.Errorf("another error is shown as %v", got)
	}
}

// tellOf returns a redactor that has met a secret in one of the places where secrets stand, and whether it must know
// it.
func tellOf(t *testing.T, secret, other string, way int) (redact *redactor, knows bool) {
	t.Helper()
	known := new(KnownSecrets)
	redact = Host{Name: "a", Known: known}.redactor()
	bare := schemes.ReplaceAllString(secret, "")
	long := len(fold(bare)) >= maxRow
	host := fold(secret) == "hook.test" // which is shown
	switch way % 6 {
	case 0: // in an earlier attempt of another sink
		Host{Name: "b", Known: known}.redactor().hide(secret)
		return redact, long && !isWords(secret) // of one in words only the whole is
	case 1:
		redact.hideURL(parsed(t, "https://hook.test/services/"+url.PathEscape(secret)+"/"))
		return redact, !host && len(secret) > maxShortEnd && strings.Trim(secret, "/.") != ""
	case 2:
		redact.hideURL(parsed(t, "https://hook.test/run?a="+url.QueryEscape(other)+"&key="+url.QueryEscape(secret)))
		return redact, !host && !isAddress(secret) && !isVersion(secret) && (len(bare) >= maxRow || !isWord(bare))
	case 3:
		redact.hideURL(parsed(t, "https://"+url.UserPassword("user", secret).String()+"@hook.test/"))
		return redact, !host
	case 4:
		redact.hideSetting(secret)
		return redact, !isAddress(secret) && !isPath(secret) && long
	default:
		redact.hide(secret)
	}
	return redact, true
}
