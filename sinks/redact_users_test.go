package sinks

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"testing"
)

// Many services take a key as the user, without a password or with any. It may be a word.
func TestAUserThatMayBeTheKeyIsNotShown(t *testing.T) {
	for _, user := range []string{"opensesame", "xkqzvwpmhtbn", "QAZWSXEDCRFV", "999", "ab", "k3v9x2m7qd", "ops-alerts"} {
		says := "Invalid API key provided: " + user
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", user)
			code := http.StatusUnauthorized
			if r.URL.Host != "" {
				code = http.StatusProxyAuthRequired
			}
			w.WriteHeader(code)
			io.WriteString(w, says)
		}))
		server, _ := natsFake(t, func(conn net.Conn, r *bufio.Reader) {
			fmt.Fprintf(conn, natsInfo, "")
			for range 2 { // CONNECT and PING; what is left unread resets the connection, on Windows before the error is read
				r.ReadString('\n')
			}
			fmt.Fprintf(conn, "-ERR 'Authorization Violation: %s'\r\n", says)
			conn.Close()
		})
		encoded := base64.StdEncoding.EncodeToString([]byte(user + ":"))
		at := func(login string) string { return strings.Replace(srv.URL, "://", "://"+login+"@", 1) }
		for _, settings := range []string{
			"webhook {url: '" + at(user) + "'}",
			"webhook {url: '" + at(user+":") + "'}",
			"webhook {url: '" + at(user+":9Q4") + "'}",
			"webhook {url: '" + at(user+":s3cr3t-passw0rd") + "'}",
			"webhook {url: 'http://hook.test', proxy: '" + at(user) + "'}",
			"webhook {url: 'http://hook.test', proxy: '" + at(user+":s3cr3t-passw0rd") + "'}",
			"webhook {url: '" + srv.URL + "', basic: {username: '" + user + "', password: 9Q4}}",
			"webhook {url: '" + srv.URL + "', headers: {Authorization: Basic " + encoded + "}}",
			"webhook {url: '" + srv.URL + "', headers: {Authorization: 'Basic  " + encoded + "'}}",
			"webhook {url: '" + srv.URL + "', headers: {Authorization: 'Basic " + encoded + "{{\"\"}}'}}",
			"pagerduty {url: '" + at(user) + "', routing_key: r0uting-k3y}",
			"nats {url: 'nats://" + user + "@" + server + "'}",
			"nats {url: 'nats://" + user + ":@" + server + "'}",
			"nats {url: 'nats://" + user + ":s3cr3t-passw0rd@" + server + "'}",
			"nats {url: 'nats://" + server + "', username: '" + user + "', password: 9Q4}",
			"exec " + asCommand(t, "exit", "1", says) + "  SERVICE: 'amqp://" + user + "@queue.test'\n",
		} {
			kind, keys, _ := strings.Cut(settings, " ")
			got := answerOf(t, kind, keys)
			if strings.Contains(got, user) || !strings.Contains(got, notShown) {
				t.Errorf("%s shows %s", settings, got)
			}
		}
	}
}

// A mail service may take the key as the user too.
func TestTheUserOfAMailServerBesideAShortPasswordIsNotShown(t *testing.T) {
	for password, shown := range map[string]bool{"9Q4": false, "s3cr3t-passw0rd": true} {
		m := mailServer{Host: testHost(t), username: "opensesame", password: source{Value: Value{Text: NewSecret(password)}}}
		redact := m.redactor()
		if _, _, err := m.secret(t.Context(), redact); err != nil {
			t.Fatal(err)
		}
		got := shownReply(redact, &textproto.Error{Code: 535, Msg: "no key opensesame"})
		if strings.Contains(got, "opensesame") != shown {
			t.Errorf("beside the password %s it shows %s", password, got)
		}
	}
}

// A user that is a word is in many answers: it hides those to its own sink alone, while it is in use.
func TestAUserHidesNoOtherSinksAnswers(t *testing.T) {
	known := new(KnownSecrets)
	own, next, other := Host{Name: "a", Known: known}.redactor(), Host{Name: "a", Known: known}, Host{Name: "b", Known: known}
	own.hideURL(parsed(t, "https://notification@hooks.test/"))
	own.hideLogin("maintenance", "")
	for _, text := range []string{"no notification for you", "under maintenance"} {
		if got := own.line(text, maxShown); got != notShown {
			t.Errorf("its own sink shows %s", got)
		}
		for _, redact := range []*redactor{next.redactor(), other.redactor()} {
			if got := redact.line(text, maxShown); got != text {
				t.Errorf("of %q is shown %s", text, got)
			}
		}
	}
}

// A user who has the program's name is in its own texts, and no key.
func TestOurOwnNameAsAUserIsNoSecret(t *testing.T) {
	redact := new(redactor)
	redact.hideURL(parsed(t, "nats://forewarn:s3cr3t-passw0rd@nats.test"))
	redact.hideLogin("Forewarn", "9Q4")
	const text = "stored in stream FOREWARN, message 5"
	if got := redact.line(text, maxShown); got != text {
		t.Errorf("shown is %s", got)
	}
}

// Slack has taken the message: a short user of the proxy that its ids hold by chance makes it be sent no second time.
func TestAShortUserOfAProxyFailsNoDeliveryToSlack(t *testing.T) {
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"ok":true,"channel":"C05UVM9AB","ts":"1732941999.000100"}`)
	}))
	for _, user := range []string{"c", "vm", "999"} {
		proxy := strings.Replace(srv.URL, "://", "://"+user+":s3cr3t-passw0rd@", 1)
		got := answerOf(t, "slack", "{token: xoxb-t0ken, channel: C05UVM9AB, api_url: 'http://slack.test', insecure: true, "+
			"proxy: '"+proxy+"'}")
		if !strings.HasSuffix(got, "<nil>") {
			t.Errorf("with the user %s: %s", user, got)
		}
	}
}
