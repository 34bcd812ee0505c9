package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/sinks"
)

// marker is in every secret of the files in testdata/typos, and often enough that a typo inside a secret leaves some of
// them whole.
const marker = "hunter2"

// A settings file with a typo, wherever it is, reveals no secret: not in the output of check, as text or JSON, nor in
// the log, on the page, in status.json or in the metrics of a run that reloads it. If the file is still valid, its
// sinks reveal none about destinations that are unreachable, have another's certificate, or echo what they receive.
func TestNoTypoShowsASecret(t *testing.T) {
	systemtest.LeftToGate(t)
	// Not in parallel: its exec sinks are in this process, and what another test starts meanwhile has their marks too.
	rounds := 10 // .ci/run tries 1,000
	if s := os.Getenv("FOREWARN_TYPOS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	files := typoFiles(t)
	w := newTypist(t)
	for _, text := range files { // without a typo they are right
		if said := w.says(text, 0); strings.Contains(said["check"], "forewarn: ") {
			t.Errorf("the settings are not right: %s", said["check"])
		}
	}
	for _, once := range [][2]string{ // showed a secret
		{"mode: binary, bearer", "mode: binary bearer"},
		{"SECRET@", "SECRET/@"},
	} {
		old, typed := typoSecrets.Replace(once[0]), typoSecrets.Replace(once[1])
		for _, text := range files {
			if !strings.Contains(text, old) {
				continue
			}
			for way := range uint64(len(failingWays)) {
				w.mustNotShow(t, strings.Replace(text, old, typed, 1), way)
			}
		}
	}
	var typists sync.WaitGroup
	var next atomic.Uint64
	for range runtime.GOMAXPROCS(0) {
		w := newTypist(t)
		typists.Go(func() {
			for i := next.Add(1) - 1; i < uint64(rounds); i = next.Add(1) - 1 {
				w.mustNotShow(t, typo(files[i%uint64(len(files))], rand.New(rand.NewPCG(1, i))), i)
			}
		})
	}
	typists.Wait()
}

// What looks like a key is shown by nothing that is said of the settings, also where none belongs: in a command, a
// template, a condition, or the file of a template or a service.
func TestNoKeyInATextIsShown(t *testing.T) {
	key := strings.Repeat(marker, 3) + "AB"
	const url = "url: https://hook.example/x1"
	sinks := map[string]string{
		"a program with arguments":       `exec: {command: "/bin/true --pw ` + marker + ` --key KEY"}`,
		"a name that is no program":      `exec: {command: [KEY-drain]}`,
		"an argument":                    `exec: {command: [/bin/true, --pw=KEY]}`,
		"a program that prints a token":  `email: {host: a.example, from: a@a.example, to: b@a.example, auth: xoauth2, username: u, token_command: "/bin/true --pw KEY"}`,
		"a function in a body":           `webhook: {` + url + `, body_text: '{{KEY "X"}}'}`,
		"a part of a word in a body":     `webhook: {` + url + `, body_text: '{{if}} KEY'}`,
		"a word that ends a body":        `webhook: {` + url + `, body_text: '{{.type "KEY"}}'}`,
		"a name in a body":               `webhook: {` + url + `, body_text: '{{.KEY}}'}`,
		"what fails in a body":           `webhook: {` + url + `, body_text: '{{index .type "KEY"}}'}`,
		"a body":                         `webhook: {` + url + `, body_text: '{"key": "KEY", "type": {{json .type}}}'}`,
		"a body that is not JSON":        `webhook: {` + url + `, body_text: 'KEY'}`,
		"a function in a body's file":    `webhook: {` + url + `, body_text_file: function}`,
		"a name in a body's file":        `webhook: {` + url + `, body_text_file: name}`,
		"what fails in a body's file":    `webhook: {` + url + `, body_text_file: fails}`,
		"a body's file":                  `webhook: {` + url + `, body_text_file: right}`,
		"a condition of success":         `webhook: {` + url + `, success: json.a == KEY}`,
		"a condition of success, typed":  `webhook: {` + url + `, success: 'status == "KEY"'}`,
		"a link":                         `webhook: {` + url + `, body_text: '{}', runbook_url: 'https://a.example/{{KEY}}'}`,
		"the subject of a mail":          `email: {host: a.example, from: a@a.example, to: b@a.example, subject: '{{KEY}}'}`,
		"the HTML of a mail":             `email: {host: a.example, from: a@a.example, to: b@a.example, html: '<a href="{{.type | KEY}}">'}`,
		"the text of a chat":             `slack: {token: x, channel: "#ops", text: '{{KEY}}'}`,
		"the subject of a stream":        `nats: {url: nats://127.0.0.1, subject: 'a.{{KEY}}.{{.id}}'}`,
		"the text of a line for syslog":  `syslog: {url: udp://127.0.0.1, text: '{{KEY}}'}`,
		"a condition":                    "when: KEY == 1\n    file: {path: \"-\"}",
		"a condition, typed":             "when: 'azeventtype == \"KEY\" + 1'\n    file: {path: \"-\"}",
		"a condition that fails":         "when: 'int(azeventtype) == 1 || azeventtype == \"KEY\"'\n    file: {path: \"-\"}",
		"a condition that ends too soon": "when: '\"KEY'\n    file: {path: \"-\"}",
		"a service's body":               "own: {url: https://hook.example/x1}\nservices: own.yaml",
	}
	files := map[string]string{
		"function": `{{KEY "X"}}`, "name": "{{.KEY}}", "fails": `{{index .type "KEY"}}`, "right": `{"key": "KEY"}`,
		"own.yaml": "title: Own\nfor: own\nbody: '{{KEY \"X\"}}'\n",
	}
	for what, sink := range sinks {
		t.Run(what, func(t *testing.T) {
			w := newTypist(t)
			dir := filepath.Dir(w.path)
			var err error
			for name, text := range files {
				text = strings.ReplaceAll(text, "KEY", key)
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			text := "imds: {endpoint: \"http://127.0.0.1:1\", vm_name: vm-0}\nstate: state\nlisten: \"\"\nsinks:\n" +
				"  - name: a\n    " + strings.ReplaceAll(sink, "KEY", key) + "\n"
			w.mustNotShow(t, text, uint64(len(failingWays)-1))
		})
	}
}

// A secret of the settings is not shown by an error about another key that repeats it, wherever the secret stands: in the
// file itself, in one that it names, or below a key that nobody knows. The error has its place, its key, and what was
// expected.
func TestNoErrorRepeatsASecretOfTheSettings(t *testing.T) {
	const long, short = "tok_" + marker + "_9f8_" + marker, marker
	for _, tt := range []struct{ sink, secret, key string }{
		{"webhook: {URL, bearer: KEY, success: json.token == KEY}", long, "webhook.success"},
		{"webhook: {URL, bearer: KEY, success: json.token == KEY}", short, "webhook.success"},
		{"webhook: {URL, bearer_file: holds, success: json.token == KEY}", long, "webhook.success"},
		{"webhook: {URL, bearer_file: KEY, success: json.token == KEY}", long, "webhook.success"},
		{"webhook: {URL, bearer_env: KEY, success: json.token == KEY}", long, "webhook.success"},
		{"webhook: {URL, headers: {X-Key: {file: holds}}, success: json.token == KEY}", long, "webhook.success"},
		{"webhook: {url: 'https://hook.example/KEY', success: json.token == KEY}", long, "webhook.success"},
		{"webhook: {URL, bearer: KEY, method: KEY}", long, "webhook.method"},
		{"timeout: KEY, webhook: {URL, bearer: KEY}", long, "timeout"},
		{"when: azeventtype == KEY, webhook: {URL, bearer: KEY}", long, "when"},
		{"when: severity == KEY, webhook: {URL, bearer: KEY}", short, "when"},
		{"max_age: KEY, else: {token: KEY}", long, "max_age"},
		{"email: {MAIL, password: KEY, auth: KEY}", long, "email.auth"},
		{"email: {MAIL, password: KEY, auth: KEY}", short, "email.auth"},
		{"email: {MAIL, password: hunter, auth: hunter}", short, "email.auth"},
		{"slack: {token: xoxb-KEY, channel: C1, mention: xoxb-KEY}", long, "slack.mention.text"},
	} {
		w := newTypist(t)
		sink := strings.NewReplacer("KEY", tt.secret, "URL", "url: https://hook.example/",
			"MAIL", "host: a.example, from: a@a.example, to: b@a.example, username: u").Replace(tt.sink)
		err := os.WriteFile(filepath.Join(filepath.Dir(w.path), "holds"), []byte(tt.secret+"\n"), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		text := "imds: {endpoint: \"http://127.0.0.1:1\", vm_name: vm-0}\nstate: state\nlisten: \"\"\nsinks:\n- {name: a, " + sink + "}\n"
		w.mustNotShow(t, text, 0)
		says := regexp.MustCompile(`yaml:5:\d+: ` + tt.key + ": it repeats a secret, so it isn't shown; expected ")
		if said := w.command("check"); !says.MatchString(said) || strings.Contains(said, `"hunter"`) {
			t.Errorf("%s: check says %s, want %v", sink, said, says)
		}
	}
}

// Nor does a note repeat one. It says whose it is, and what repeats nothing is shown as ever.
func TestANoteThatRepeatsASecretDoesNotShowIt(t *testing.T) {
	const secret = "s3cr3tK3yV4lue"
	w := newTypist(t)
	text := "state: state\nlisten: \"\"\napprove: [{name: " + secret + ", only: {types: [Reboot]}}]\nsinks:\n" +
		"- {name: a, webhook: {url: 'http://hook.example/', insecure: true, headers: {" + secret + ": x}}}\n" +
		"- {name: b, webhook: {url: 'https://hook.example/', bearer: " + secret + "}}\n" +
		"- {name: c, email: {host: a.example, from: a@a.example, to: b@a.example, tls: {mode: none}}}\n"
	if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(regexp.MustCompile(`(?m)^note: .*`).FindAllString(w.command("check"), -1), "\n")
	for _, want := range []string{
		"note: a: a note repeats a secret, so it isn't shown", "note: approve: a note repeats a secret, so it isn't shown",
		"note: c: tls.mode is none: mail can be read and changed on its way",
	} {
		if !strings.Contains(notes, want) || strings.Contains(notes, secret) {
			t.Errorf("the notes are\n%s\nwant %q, and no secret", notes, want)
		}
	}
}

// An error that repeats no secret is shown whole, also if a secret is a part of its words.
func TestAnErrorIsShownWhoseWordsAreLikeASecret(t *testing.T) {
	for _, secret := range []string{"x", "pass", "a1", "v2", "expect", "lid", "em"} {
		w := newTypist(t)
		text := "state: state\nsinks:\n- {name: a, email: {host: a.example, from: a@a.example, to: b@a.example, " +
			"username: u, password: " + secret + ", auth: kerberos}}\n- {name: b, webhook: {url: 'https://a.example/" +
			secret + "', bearer: " + secret + "}}\n"
		err := os.WriteFile(w.path, []byte(text), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if said := w.command("check"); !strings.Contains(said, `email.auth: "kerberos" is not valid; expected `) {
			t.Errorf("with the secret %s, check says %s", secret, said)
		}
	}
}

// The files in which typos are made have every secret key of every kind of sink.
func TestTyposAreMadeInEverySecret(t *testing.T) {
	all := strings.Join(typoFiles(t), "\n")
	var walk func(kind string, typ reflect.Type)
	walk = func(kind string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for f := range typ.Fields() {
			key := f.Tag.Get("yaml")
			switch f.Type {
			case reflect.TypeFor[sinks.Secret](), reflect.TypeFor[map[string]sinks.Value](), reflect.TypeFor[[]sinks.Value]():
				if !strings.Contains(all, key+":") && !strings.Contains(all, key+`":`) {
					t.Errorf("no file has the key %s of %s", key, kind)
				}
			default:
				walk(kind, f.Type)
			}
		}
	}
	for name, kind := range sinks.Kinds() {
		_, err := kind.Open(func(to any) error {
			walk(name, reflect.TypeOf(to))
			return context.Canceled
		}, sinks.Host{})
		if err == nil {
			t.Errorf("%s opens without settings", name)
		}
	}
}

// FuzzTypos makes typos of the fuzzer's choice.
func FuzzTypos(f *testing.F) {
	files := typoFiles(f)
	w := newTypist(f)
	for i := range files {
		f.Add(uint8(i), uint64(i), uint64(0))
	}
	f.Fuzz(func(t *testing.T, file uint8, a, b uint64) {
		w.mustNotShow(t, typo(files[int(file)%len(files)], rand.New(rand.NewPCG(a, b))), a)
	})
}

// typoSecrets puts the secrets into a file of testdata/typos; that of a key is base64 of 24 bytes.
var typoSecrets = strings.NewReplacer("SECRET", strings.Repeat(marker, 3), "KEY\n", strings.Repeat(marker, 4)+"hunt\n",
	"whsec_KEY", "whsec_"+strings.Repeat(marker, 4)+"hunt")

// typoFiles are the files of testdata/typos with secrets in them.
func typoFiles(t testing.TB) (texts []string) {
	t.Helper()
	names, err := filepath.Glob("testdata/typos/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("Glob = %v, %v, want files", names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, programsHere(typoSecrets.Replace(string(text))))
	}
	for services := range slices.Chunk(sinks.Services(), 2) { // few, because with each typo all of a file are tried
		text := "imds: {endpoint: \"http://127.0.0.1:1\", vm_name: vm-0}\nstate: state\nlisten: \"\"\nsinks:\n"
		for _, s := range services {
			text += withSecrets(s)
		}
		texts = append(texts, typoSecrets.Replace(text))
	}
	return texts
}

// withSecrets is a sink for a service with a secret in each place for one.
func withSecrets(s *sinks.Service) string {
	text := fmt.Sprintf("  - name: a-%s\n    bridge: none\n    %[1]s:\n      url: https://%[1]s.example/\n", s.Name)
	for _, k := range s.Keys {
		switch {
		case k.Secret:
			text += "      " + k.Name + ": SECRET\n"
		case k.Required:
			text += "      " + k.Name + ": word\n"
		}
	}
	return text
}

// typo is the text with one slip of a hand in it: a character, a line or an indentation that is missing, doubled, wrong
// or in the place of another.
func typo(text string, r *rand.Rand) string {
	lines := strings.SplitAfter(text, "\n")
	at, line := r.IntN(len(text)-1), r.IntN(len(lines)-2)
	const signs = ":,'\"{}[]|>&*#-!?%@\\ \t\nx0"
	sign := string(signs[r.IntN(len(signs))])
	switch r.IntN(10) {
	case 0, 1: // a character is missing
		return text[:at] + text[at+1:]
	case 2, 3: // one too many
		return text[:at] + sign + text[at:]
	case 4: // a wrong one
		return text[:at] + sign + text[at+1:]
	case 5: // two changed places
		return text[:at] + text[at+1:at+2] + text[at:at+1] + text[at+2:]
	case 6: // a line is missing
		lines = slices.Delete(slices.Clone(lines), line, line+1)
	case 7: // two lines changed places, or one was pasted twice
		lines = slices.Clone(lines)
		if lines[line], lines[line+1] = lines[line+1], lines[line]; r.IntN(2) == 0 {
			lines[line+1] = lines[line]
		}
	case 8: // a line slipped to the right or to the left
		lines = slices.Clone(lines)
		if n := 1 + r.IntN(4); r.IntN(2) == 0 {
			lines[line] = strings.Repeat(" ", n) + lines[line]
		} else {
			lines[line] = strings.Replace(lines[line], strings.Repeat(" ", n), "", 1)
		}
	case 9: // two lines became one
		lines = slices.Clone(lines)
		lines[line] = strings.TrimSuffix(lines[line], "\n") + " "
	}
	return strings.Join(lines, "")
}

// A typist hands settings to the program and hears what it says of them.
type typist struct {
	t    testing.TB
	path string
	said map[string]bool // what check has said, without places; what was said once is not looked at again
	ca   tls.Certificate // another's
	p    *program
	b    *bridge.Bridge
	old  *settings.Settings
	log  *bytes.Buffer
	page http.Handler
}

func newTypist(t testing.TB) *typist {
	dir := t.TempDir()
	secrets := filepath.Join("testdata", "secrets") // which the files name
	if err := os.CopyFS(filepath.Join(dir, secrets), os.DirFS(secrets)); err != nil {
		t.Fatal(err)
	}
	w := &typist{t: t, path: filepath.Join(dir, "forewarn.yaml"), said: map[string]bool{}, log: new(bytes.Buffer),
		ca: othersCertificate(t)}
	w.p = &program{config: w.path, logLevel: "debug", environment: environment{
		getenv: func(string) string { return "" }, defaults: linuxDefaults, out: new(bytes.Buffer), err: w.log,
	}}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	box, err := outbox.Open(filepath.Join(dir, "outbox"), outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { box.Close() })
	if w.old, err = w.p.loader(log).Parse("", []byte("state: state\n"+settings.Builtin)); err != nil {
		t.Fatal(err)
	}
	w.b, err = bridge.New(w.p.bridgeOptions(w.old, box, log))
	if err != nil {
		t.Fatal(err)
	}
	w.page = page.Handler(w.b, box, page.NewMetrics().Handler(w.b.Status), "127.0.0.1:8169")
	return w
}

// secretHosts matches an address in which a typo has made a secret part of the host: the / before it is missing, or the @
// behind it. Hosts are shown, since a typo in one is the likeliest error of all.
var secretHosts = regexp.MustCompile(`(?i)://([a-z0-9.-]*` + marker + `[a-z0-9.-]*)(?:[/?:"'\s,}\]]|$)`)

// mustNotShow fails the test when anything that is said of the settings holds a part of a secret, unless that is a host.
// way says how their destinations are not reached.
func (w *typist) mustNotShow(t *testing.T, text string, way uint64) {
	t.Helper()
	for where, said := range w.says(text, way) {
		for _, address := range secretHosts.FindAllStringSubmatch(text, -1) {
			said = strings.ReplaceAll(said, address[1], "HOST")
		}
		if i := strings.Index(strings.ToLower(said), marker); i >= 0 {
			t.Errorf("%s shows a secret: …%s…\nthe settings:\n%s", where, said[max(0, i-200):min(len(said), i+100)], text)
		}
	}
}

// says is what the program says of the settings, by where it says it.
func (w *typist) says(text string, way uint64) map[string]string {
	if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{"check": w.command("check")}
	if !strings.HasPrefix(all["check"], "forewarn: ") {
		all["the sinks"] = w.deliver(failingWays[way%uint64(len(failingWays))])
	}
	known := strings.TrimLeft(strings.TrimPrefix(all["check"], "forewarn: "+w.path), ":0123456789 ")
	if w.said[known] {
		return all
	}
	w.said[known] = true
	if !strings.HasPrefix(all["check"], "forewarn: ") {
		all["check -o json"], all["render"] = w.command("check", "-o", "json"), w.command("render")
	}
	w.log.Reset()
	log := slog.New(slog.NewTextHandler(w.log, nil))
	// right ones would be taken by a bridge that runs, and here none does
	if _, err := w.p.loader(log).Load(w.path); err != nil {
		w.p.reloaderOf(w.b, w.old, log).reload(context.Background(), "a typist")
	}
	all["the log"] = w.log.String()
	for _, path := range []string{"/", "/status.json", "/metrics"} {
		got := httptest.NewRecorder()
		w.page.ServeHTTP(got, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8169"+path, nil))
		all[path] = fmt.Sprint(got.Code, got.Body)
	}
	return all
}

// command is what a command prints.
func (w *typist) command(args ...string) string {
	var out bytes.Buffer
	run(context.Background(), environment{
		args: append(args, "--config", w.path), out: &out, err: &out,
		getenv: func(string) string { return "" }, defaults: linuxDefaults,
	})
	return out.String()
}

// deliver sends a test message through the sinks as send does, and connects to them as check does. What they write to a
// file stays away, because its path may have the typo.
func (w *typist) deliver(way failingWay) string {
	var log bytes.Buffer
	p := &program{config: w.path, logLevel: "debug", environment: w.p.environment}
	p.out, p.err = &log, &log
	p.dial = func(ctx context.Context, network, address string) (net.Conn, error) { return way(w, network, address) }
	s, err := p.loader(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))).Load(w.path)
	if err != nil {
		return err.Error()
	}
	sample, err := (&sampleRequest{sample: "reboot"}).newSample(imds.Observer{Name: "vm-0"})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range s.Routes {
		if r.Kind == "file" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		result, _, err := sendTo(ctx, r, sample, imds.Observer{Name: "vm-0"})
		fmt.Fprintf(&log, "%+v %v\n", result, err)
		if c, ok := r.Sink.(delivery.Connecter); ok {
			answer, err := c.Connect(ctx)
			fmt.Fprintln(&log, answer, err)
		}
		cancel()
		if c, ok := r.Sink.(io.Closer); ok {
			c.Close()
		}
	}
	return log.String()
}

// A failingWay connects to a destination as package net does, without leaving the machine.
type failingWay func(w *typist, network, address string) (net.Conn, error)

var failingWays = []failingWay{
	func(_ *typist, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err == nil {
			err = &net.DNSError{Err: "no such host", Name: host, Server: "10.0.0.2:53", IsNotFound: true}
		}
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	},
	func(_ *typist, network, address string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 4), Port: 443},
			Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	},
	func(w *typist, _, address string) (net.Conn, error) {
		ours, its := net.Pipe()
		go w.repeat(its, address)
		return ours, nil
	},
}

// repeat is a destination that answers what it hears, by the protocol of its port, over TLS with another's certificate.
func (w *typist) repeat(conn net.Conn, address string) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	_, port, _ := net.SplitHostPort(address)
	switch port {
	case "4222":
		fmt.Fprintf(conn, "INFO {\"max_payload\":1048576,\"server_name\":%q}\r\n", address)
	case "587":
		fmt.Fprintf(conn, "220 %s\r\n", address)
	}
	in := bufio.NewReader(conn)
	if first, err := in.Peek(1); err == nil && first[0] == 0x16 { // of a handshake
		tls.Server(&readConn{conn, in}, &tls.Config{Certificates: []tls.Certificate{w.ca}}).Handshake()
		return
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch line = strings.TrimSpace(line); port {
		case "4222":
			fmt.Fprintf(conn, "-ERR 'no %s at %s'\r\n", line, address)
		case "587":
			fmt.Fprintf(conn, "550 no %s at %s\r\n", line, address)
		default:
			fmt.Fprintf(conn, "HTTP/1.1 403 no\r\nConnection: close\r\n\r\nno %s at %s", line, address)
			for err == nil && line != "" {
				line, err = in.ReadString('\n')
				line = strings.TrimSpace(line)
				fmt.Fprintln(conn, line)
			}
			return
		}
	}
}

// A readConn is a connection that somebody has begun to read.
type readConn struct {
	net.Conn
	r io.Reader
}

func (c *readConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// othersCertificate is one for another name.
func othersCertificate(t testing.TB) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	its := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"other.example"},
		NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(crand.Reader, its, its, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}
