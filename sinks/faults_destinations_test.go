package sinks

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A destination is a route of the test, and who hears by it.
type destination struct {
	name, kind, settings string
	latest               bool     // as people hear by default; else every change by itself
	recipients           []string // as faults know them
}

// destinations starts a server of every kind.
func (f *faults) destinations() []destination {
	all := []destination{
		f.webhook("structured", ""), f.webhook("binary", "mode: binary"),
		f.webhook("own-body", "body_text: '{\"content\":{{json .id}}}'"),
		f.slack("channel", false), f.slack("latest", true), f.slackWebhook(),
		f.mail("mail", false), f.mail("latest mail", true),
		f.syslog("tcp"), f.syslog("tls"), f.nats(), f.file(),
	}
	for _, s := range Services() {
		if s.Identity == "" && s.Success == "" { // for there is neither an identity nor an answer here
			d := f.webhook(s.Name, "")
			d.kind, d.settings = s.Name, settingsOf(s, strings.Fields(d.settings)[1])
			all = append(all, d)
		}
	}
	if runtime.GOOS != "windows" {
		all = append(all, f.exec())
	}
	return all
}

// serveHTTP answers requests over a gate. answer says what to answer, and which CloudEvents the recipient has then.
func (f *faults) serveHTTP(name string,
	answer func(r *http.Request, body []byte) (status int, text string, ids []string)) string {
	type key struct{}
	srv := &http.Server{
		ErrorLog:    log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
	}
	srv.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w := r.Context().Value(key{}).(*wire)
		fault := f.one(name, "hang up", "cut the request", "hang", "slow", "500", "503 later", "429 later", "502",
			"lose the answer", "cut the answer")
		if fault == "hang up" {
			w.reset()
			return
		}
		if fault == "cut the request" {
			io.CopyN(io.Discard, r.Body, 100)
			w.reset()
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		number, later := fault, ""
		if n, ok := strings.CutSuffix(fault, " later"); ok {
			number, later = n, strconv.Itoa(1+int(f.below(3)))
		}
		if status, err := strconv.Atoi(number); err == nil {
			if later != "" {
				out.Header().Set("Retry-After", later)
			}
			out.WriteHeader(status)
			return
		}
		switch fault {
		case "hang":
			select {
			case <-r.Context().Done():
			case <-time.After(f.hang(12 * time.Second)):
			}
			w.reset()
			return
		case "slow":
			time.Sleep(f.below(2 * time.Second))
			if r.Context().Err() != nil {
				return
			}
		}
		status, text, ids := answer(r, body)
		for _, id := range ids {
			f.took(w, name, id)
		}
		if fault == "lose the answer" || fault == "cut the answer" {
			if fault == "cut the answer" {
				io.WriteString(w.Conn, "HTTP/1.1 200 OK\r\nContent-Le")
			}
			w.reset()
			return
		}
		out.Header().Set("Content-Length", strconv.Itoa(len(text)))
		out.WriteHeader(status)
		io.WriteString(out, text)
	})
	g := f.gate(name)
	go srv.Serve(g)
	return "http://" + g.Addr().String()
}

// hang is for how long something gives no answer: in a long run longer than a sink waits.
func (f *faults) hang(most time.Duration) time.Duration {
	if os.Getenv(faultsFor) == "" {
		most = 2 * time.Second
	}
	return f.below(most)
}

func (f *faults) webhook(name, settings string) destination {
	address := f.serveHTTP(name, func(r *http.Request, _ []byte) (int, string, []string) {
		return http.StatusOK, "", []string{r.Header.Get("Idempotency-Key")}
	})
	return destination{name, "webhook", "url: " + address + "/hook\n" + settings, false, []string{name}}
}

// listIDs has a text of a sink name the CloudEvents that it stands for, and reads them out of what came of it.
const listIDs = "'{{range .group}}[[{{.id}}]]{{end}}'"

var idsTold = regexp.MustCompile(`\[\[([^\]]+)\]\]`)

func idsListed(text string) (ids []string) {
	for _, m := range idsTold.FindAllStringSubmatch(text, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

// slack returns a channel: each change is posted there, as a message or as the reply to one.
func (f *faults) slack(name string, latest bool) destination {
	space := &workspace{fail: map[string][]slackNo{}, forms: map[string]url.Values{}}
	address := f.serveHTTP(name, func(r *http.Request, body []byte) (int, string, []string) {
		form, _ := url.ParseQuery(string(body))
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		said := httptest.NewRecorder()
		space.ServeHTTP(said, r)
		if !strings.HasSuffix(r.URL.Path, "/chat.postMessage") || !strings.Contains(said.Body.String(), `"ok":true`) {
			return said.Code, said.Body.String(), nil
		}
		return said.Code, said.Body.String(), idsListed(form.Get("text"))
	})
	return destination{name, "slack",
		"token: " + slackToken + "\nchannel: '#ops'\napi_url: " + address + "/api\ntext: " + listIDs, latest, []string{name}}
}

func (f *faults) slackWebhook() destination {
	const name = "slack webhook"
	address := f.serveHTTP(name, func(_ *http.Request, body []byte) (int, string, []string) {
		var m struct{ Text string }
		if err := json.Unmarshal(body, &m); err != nil {
			f.t.Errorf("%s: %v", name, err)
		}
		return http.StatusOK, "ok", idsListed(m.Text)
	})
	return destination{"slack-webhook", "slack", "webhook_url: " + address + "/services/T/B/X\ntext: " + listIDs, false,
		[]string{name}}
}

// A post office takes mail for three recipients, whose mail servers have troubles of their own.
type postOffice struct {
	f    *faults
	name string
}

func (f *faults) mail(name string, latest bool) destination {
	srv := smtp.NewServer(&postOffice{f, name})
	srv.ErrorLog = log.New(io.Discard, "", 0)
	g := f.gate(name)
	go srv.Serve(g)
	f.t.Cleanup(func() { srv.Close() })
	host, port, _ := net.SplitHostPort(g.Addr().String())
	d := destination{strings.ReplaceAll(name, " ", "-"), "email",
		"host: " + host + "\nport: " + port + "\ntls: {mode: none}\n" +
			"from: azure@example.com\nto: [a@example.com, b@example.com, c@example.com]\ntext: " + listIDs, latest, nil}
	for _, to := range []string{"a@example.com", "b@example.com", "c@example.com"} {
		d.recipients = append(d.recipients, name+" "+to)
	}
	return d
}

func (o *postOffice) NewSession(c *smtp.Conn) (smtp.Session, error) {
	if o.f.one(o.name, "421 at the greeting") != "" {
		return nil, &smtp.SMTPError{Code: 421, EnhancedCode: smtp.EnhancedCode{4, 3, 2}, Message: "later"}
	}
	return &parcel{office: o, wire: c.Conn().(*wire)}, nil
}

// A parcel is a mail that is being handed over.
type parcel struct {
	office *postOffice
	wire   *wire
	to     []string
}

func (p *parcel) fault(all ...string) string { return p.office.f.one(p.office.name, all...) }

func (p *parcel) Reset()        { p.to = nil }
func (p *parcel) Logout() error { return nil }

func (p *parcel) Mail(string, *smtp.MailOptions) error {
	if p.fault("451 at MAIL") != "" {
		return busy
	}
	return nil
}

func (p *parcel) Rcpt(to string, _ *smtp.RcptOptions) error {
	switch p.fault("450 at RCPT", "450 at RCPT", "450 at RCPT", "hang at RCPT", "hang up at RCPT") {
	case "450 at RCPT":
		return busy
	case "hang at RCPT":
		time.Sleep(p.office.f.hang(20 * time.Second))
		p.wire.reset()
	case "hang up at RCPT":
		p.wire.reset()
	}
	p.to = append(p.to, to)
	return nil
}

func (p *parcel) Data(r io.Reader) error {
	fault := p.fault("cut the mail", "451 at the dot", "hang up at the dot", "slow dot", "slow dot", "lose the answer")
	if fault == "cut the mail" {
		io.CopyN(io.Discard, r, 1000)
		p.wire.reset()
		return busy
	}
	raw, err := io.ReadAll(r)
	switch {
	case err != nil:
		return err
	case fault == "451 at the dot":
		return busy
	case fault == "hang up at the dot":
		p.wire.reset()
		return busy
	case fault == "slow dot":
		time.Sleep(p.office.f.hang(60 * time.Second))
		if p.wire.closed() {
			return busy
		}
	}
	plain := strings.NewReplacer("=\r\n", "").Replace(string(raw))
	text, _, _ := strings.Cut(plain, "text/html")
	ids := idsListed(text)
	if len(ids) == 0 {
		p.office.f.t.Errorf("a mail names no CloudEvent:\n%s", raw)
	}
	for _, to := range p.to {
		for _, id := range ids {
			p.office.f.took(p.wire, p.office.name+" "+to, id)
		}
	}
	if fault == "lose the answer" {
		p.wire.reset()
	}
	return nil
}

// syslog returns a receiver that says that it has a message by closing the connection in good order.
func (f *faults) syslog(scheme string) destination {
	name, settings := "syslog-"+scheme, ""
	serve := func(conn net.Conn) net.Conn { return conn }
	if scheme == "tls" {
		ca := newAuthority(f.t)
		config := &tls.Config{Certificates: []tls.Certificate{ca.issue(f.t, hostOf(f.t), 24*time.Hour)},
			MinVersion: tls.VersionTLS12}
		serve = func(conn net.Conn) net.Conn { return tls.Server(conn, config) }
		settings = "\ntls: {ca_file: " + ca.file + "}"
	}
	g := f.gate(name)
	go g.each(func(w *wire) {
		fault := f.one(name, "hang up", "cut the messages", "cut the messages", "lose the answer", "slow")
		if fault == "hang up" {
			w.reset()
			return
		}
		conn := serve(plainWire{w}) // what TLS writes is no answer
		r := bufio.NewReader(conn)
		if fault == "cut the messages" {
			r = bufio.NewReaderSize(io.LimitReader(conn, int64(100+f.below(2000))), 16)
		}
		for {
			length, err := r.ReadString(' ')
			n, bad := strconv.Atoi(strings.TrimSuffix(length, " "))
			m := make([]byte, n)
			if _, short := io.ReadFull(r, m); err != nil || bad != nil || short != nil {
				break
			}
			if id := regexp.MustCompile(` id="([^"]+)"`).FindSubmatch(m); id != nil {
				f.took(w, name, string(id[1]))
			}
		}
		switch fault {
		case "cut the messages", "lose the answer":
			w.reset()
			return
		case "slow":
			time.Sleep(f.below(time.Second))
		}
		if conn.Close() == nil {
			f.answered(w)
		}
	})
	return destination{name, "syslog", "url: " + scheme + "://" + g.Addr().String() + settings, false, []string{name}}
}

type plainWire struct{ *wire }

func (p plainWire) Write(b []byte) (int, error) { return p.Conn.Write(b) }

// nats returns a stream on a server that is restarted, behind a way that is cut.
func (f *faults) nats() destination {
	const name = "nats"
	dir := f.t.TempDir()
	port, _ := strconv.Atoi(freePort(f.t))
	start := func() *server.Server {
		return natsServe(f.t, func(o *server.Options) { o.StoreDir, o.Port = dir, port })
	}
	srv := start()
	conn, js := natsClient(f.t, srv.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	natsStream(f.t, js, nil)
	f.while(8*time.Second, func() {
		if f.one(name, "restart of the server") != "" {
			natsStop(srv)
			time.Sleep(f.below(time.Second))
			srv = start()
		}
	})
	g := f.gate(name)
	go g.each(func(w *wire) {
		there, err := net.Dial("tcp", fmt.Sprint(hostOf(f.t), ":", port))
		if err != nil {
			return
		}
		defer there.Close()
		switch f.one(name, "hang up", "hang", "cut the way", "cut the way", "cut the way") {
		case "hang up":
			return
		case "hang":
			time.Sleep(f.hang(20 * time.Second))
			return
		case "cut the way":
			time.AfterFunc(f.below(4*time.Second), func() { w.reset(); there.Close() })
		}
		go func() { io.Copy(there, w); there.Close() }()
		io.Copy(w, there)
	})
	f.atEnd = append(f.atEnd, func() {
		stream, err := js.Stream(context.Background(), "FOREWARN")
		for end := time.Now().Add(20 * time.Second); err != nil &&
			time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			stream, err = js.Stream(context.Background(), "FOREWARN")
		}
		if err != nil {
			f.t.Fatal(err)
		}
		for _, id := range natsIDs(f.t, stream) {
			f.took(nil, name, id)
		}
		conn.Close()
	})
	return destination{name, name, "url: nats://" + g.Addr().String(), false, []string{name}}
}

// file returns a file that somebody moves away, and in whose place a directory is at times.
func (f *faults) file() destination {
	const name = "file"
	path, moved := filepath.Join(f.t.TempDir(), "audit.jsonl"), 0
	f.while(4*time.Second, func() {
		switch f.one(name, "moved away", "a directory in its place") {
		case "moved away":
			moved++
			os.Rename(path, fmt.Sprintf("%s.%d", path, moved))
		case "a directory in its place":
			moved++
			os.Rename(path, fmt.Sprintf("%s.%d", path, moved))
			if err := os.Mkdir(path, 0o700); err == nil {
				time.Sleep(f.below(2 * time.Second))
				os.Remove(path)
			}
		}
	})
	f.atEnd = append(f.atEnd, func() {
		for i := 1; i <= moved+1; i++ {
			from := fmt.Sprintf("%s.%d", path, i)
			if i > moved {
				from = path
			}
			text, err := os.ReadFile(from)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				f.t.Error(err)
			}
			for _, id := range idsIn(f.t, text) {
				f.took(nil, name, id)
			}
		}
	})
	return destination{name, name, "path: " + path, false, []string{name}}
}

// exec returns a command that fails, is slow, and does at times its work before it fails.
func (f *faults) exec() destination {
	const name = "exec"
	dir := f.t.TempDir()
	fault, done := filepath.Join(dir, "fault"), filepath.Join(dir, "done")
	f.while(500*time.Millisecond, func() {
		text := f.one(name, "fails", "is busy", "slow", "fails when it is done")
		if err := os.WriteFile(fault, []byte(text), 0o600); err != nil {
			f.t.Error(err)
		}
	})
	script := `case $(cat ` + fault + `) in
fails) exit 1;;
is?busy) exit 75;;
slow) sleep 1; echo $CE_ID >>` + done + `;;
fails?when*) echo $CE_ID lost >>` + done + `; exit 1;;
*) echo $CE_ID >>` + done + `;;
esac`
	f.atEnd = append(f.atEnd, func() {
		text, err := os.ReadFile(done)
		if err != nil {
			f.t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			id, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			f.took(nil, name, id)
			f.taken[name][len(f.taken[name])-1].lost = rest != ""
		}
	})
	return destination{name, name, "attempts: 100\ncommand:\n- /bin/sh\n- -c\n- " + strconv.Quote(script), false,
		[]string{name}}
}
