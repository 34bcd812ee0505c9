package sinks

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// answerOf returns what is shown of a sink's first delivery.
func answerOf(t *testing.T, kind, settings string) string {
	t.Helper()
	s := mustOpen(t, kind, settings, testHost(t))
	answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
	return fmt.Sprint(answer.Status, " ", answer.ID, " ", err)
}

// A receiver of signatures knows the key by its bytes, and may print these instead of the setting's base64.
func TestTheBytesOfASigningKeyAreNotShown(t *testing.T) {
	key := []byte("\x8f\x02k9\xc3\xa9#\xf0\x11Zq\xffw\x80L\x19\xaa\x05\xd2=e\x9bv\x1c")
	secret := base64.StdEncoding.EncodeToString(key)
	for how, written := range map[string]string{
		"hex":              hex.EncodeToString(key),
		"hex with spaces":  fmt.Sprintf("% x", key),
		"numbers":          fmt.Sprint(key),
		"Go":               fmt.Sprintf("%q", key),
		"a URL":            each(key, "%%%02X"),
		"base64url":        base64.RawURLEncoding.EncodeToString(key),
		"base64 with more": base64.StdEncoding.EncodeToString(append([]byte("v"), key...)),
	} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, "bad signature with key "+written)
		}))
		got := answerOf(t, "webhook", "url: "+srv.URL+"\nsigning_secrets: [whsec_"+secret+"]")
		if !strings.Contains(got, notShown) {
			t.Errorf("as %s it shows %s", how, got)
		}
	}
}

// What looks like a key is one wherever it stands in the settings: some services want it in the body.
func TestWhatLooksLikeAKeyIsNotShown(t *testing.T) {
	const key = "R03A9vx7kq2LmZ5tYb81Wc"
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusUnauthorized)
		w.Write(body)
	}))
	for _, tt := range []struct{ kind, settings string }{
		{"webhook", "url: " + srv.URL + "\nbody_text: '{\"routing_key\": \"" + key + "\", \"type\": {{json .type}}}'"},
		{"webhook", "url: " + srv.URL + "\ncontent_type: text/plain\nbody_text_file: " +
			writeFile(t, "body", "key="+key+" {{.type}}")},
		{"exec", asCommand(t, "exit", "1", "--key="+key)},
	} {
		got := answerOf(t, tt.kind, tt.settings)
		if strings.Contains(got, key[:8]) || !strings.Contains(got, "repeats a secret") {
			t.Errorf("%s with %s shows %s", tt.kind, tt.settings, got)
		}
	}
	got := answerOf(t, "webhook", "content_type: text/plain\nurl: "+srv.URL+
		"\nbody_text: 'the maintenanceNotificationType 12345678901234567890 is wrong'")
	if !strings.Contains(got, "maintenanceNotificationType 12345678901234567890 is wrong") {
		t.Errorf("of words and numbers it shows %s", got)
	}
}

// A service of one's own may say a key in its URL, its path or a header, where nothing counts as secret by itself.
func TestAKeyThatAServiceSaysIsNotShown(t *testing.T) {
	url, path, header := "R03A9vx7kq2LmZ5tYb81Wc", "S14BpQ8wNd3fHj6uGs20Xe", "T25CrM4yKa9oVi1zLc73Ub"
	c := credentials{
		url:     source{Value: Value{Text: NewSecret("https://hooks.example.com/" + url)}, key: "url", open: true},
		headers: sources{{Value: Value{Text: NewSecret(header)}, key: "headers.X-Tool", name: "X-Tool", open: true}},
		path:    "/api/" + path, host: testHost(t),
	}
	a, err := c.read()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{url, path, header} {
		if got := a.redact.line("no such tool: "+key, maxShown); got != notShown {
			t.Errorf("shown is %q", got)
		}
	}
}

// Tags between its letters, as where lines may break, and the colours of a terminal hide no secret.
func TestTagsAndColoursHideNoSecret(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cr3t/t0ken")
	for _, written := range []string{
		"s3cr<wbr>3t/t<wbr/>0ken", "<b>s3cr</b><b class='x'>3t/t0</b>ken", "\x1b[31ms3cr\x1b[0m3t/\x1b[1;32mt0\x1b[Kken",
		`s3cr\u003cwbr\u003e3t/t0ken`, "&lt;i&gt;s3cr&lt;/i&gt;3t/t0ken",
	} {
		if got := redact.line("no such token: "+written, maxShown); got != notShown {
			t.Errorf("shown is %q", got)
		}
	}
	const page = "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center>" +
		"<hr><center>nginx/1.24.0 (Ubuntu)</center></body></html>"
	if got := redact.line(page, maxShown); got != page {
		t.Errorf("of a page it shows %q", got)
	}
}

// What stands in place of a text that repeats a secret can be read within the sentences that quote it.
func TestASentenceWithoutASecretCanBeRead(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cr3t-t0ken")
	header := http.Header{"Location": {"https://s3cr3t-t0ken.test/a"}}
	_, err := judge(nil, response{status: 302, header: header, body: "no s3cr3t-t0ken"}, "https://hook.test", redact)
	slack := &slackAPI{sink: new(slackSink), redact: redact}
	for got, want := range map[string]string{
		fmt.Sprint(err): "302 Found from https://hook.test, redirected to " + notShown + ", which is not followed: " + notShown,
		slack.refusal(slackReply{Error: "s3cr3t-t0ken"}).Error():               "Slack answered " + notShown,
		describeLeft([]leftover{{pid: 1, name: "s3cr3t-t0ken"}}, redact, true): "left 1 process running (" + notShown + "), which was ended",
		redact.lines("+ PASS=s3cr3t-t0ken\n"):                                  notShown,
	} {
		if got != want || notShown != "[this text repeats a secret, so it isn't shown]" {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

// The private key of a client certificate is a secret of all sinks, such as one whose command prints the file.
func TestThePrivateKeyOfACertificateIsNotShown(t *testing.T) {
	cert, key := pemOf(t, newAuthority(t).issue(t, "vm-0", time.Hour))
	files := "tls: {cert_file: " + writeFile(t, "cert", string(cert)) + ", key_file: " + writeFile(t, "key", string(key)) + "}"
	for kind, settings := range map[string]string{
		"webhook": "url: https://hook.test\n" + files, "slack": "token: x\nchannel: '#ops'\n" + files,
		"nats": "url: tls://nats.test\n" + files, "syslog": "url: tls://log.test\n" + files,
	} {
		h := testHost(t)
		h.Known, h.Name = new(KnownSecrets), kind
		mustOpen(t, kind, settings, h)
		own := h
		h.Name = "command"
		redact := h.redactor()
		lines := strings.Split(string(key), "\n")
		for _, text := range []string{string(key), lines[1], lines[2], lines[2][:20], "+ echo '" + lines[1] + "'"} {
			if got := redact.lines(text); got != notShown {
				t.Errorf("beside %s a command shows %s", kind, got)
			}
		}
		for i := range 100 { // its tokens are renewed
			own.redactor().hide(strings.Repeat(fmt.Sprintf("t0ken-%d-", i), 100))
		}
		for text, shown := range map[string]bool{string(key): false, "-----BEGIN PRIVATE KEY-----": true} {
			if got := redact.lines(text); (got == text) != shown {
				t.Errorf("beside %s a command then shows %s", kind, got)
			}
		}
	}
}

// A list of directories like PATH is no secret, though not all of them are on this machine: or every error that names a
// program would be hidden.
func TestAListOfDirectoriesIsNoSecret(t *testing.T) {
	here, list := t.TempDir(), ""
	for _, dir := range []string{here, filepath.Join(here, "missing3.12", "bin")} {
		list += dir + string(filepath.ListSeparator)
	}
	redact := Host{Name: "drain", Known: new(KnownSecrets)}.redactor()
	redact.hideSetting(strings.TrimSuffix(list, string(filepath.ListSeparator)))
	said := filepath.Join(here, "hooktool") + ": No such file or directory"
	if got := redact.line(said, maxShown); got == notShown {
		t.Errorf("%q isn't shown", said)
	}
}

// Of a mail server's reply that repeats a secret what was done and the code are shown.
func TestTheCodeOfAMailServersReplyIsShown(t *testing.T) {
	redact := Host{Name: "mail", Known: new(KnownSecrets)}.redactor()
	redact.hide("authentication2026!")
	reply := &textproto.Error{Code: 535, Msg: "5.7.8 Error: authentication failed"}
	got, want := shownReply(redact, fmt.Errorf("logging in by PLAIN: %w", reply)), "logging in by PLAIN: 535 "+notShown
	if got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if got := shownReply(redact, errors.New("authentication failed 535")); got != notShown {
		t.Errorf("it says %q, want nothing", got)
	}
}
