package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/emersion/go-smtp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A logServer takes messages of syslog, each behind its length, until the sender closes.
type logServer struct {
	address string

	mu    sync.Mutex
	heard []string
}

func newLogServer(t *testing.T) *logServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &logServer{address: l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.read(conn)
		}
	}()
	return s
}

var idOfMessage = regexp.MustCompile(` id="([^"]+)" `)

func (s *logServer) read(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		length, _ := r.ReadString(' ')
		n, err := strconv.Atoi(strings.TrimSpace(length))
		if err != nil {
			return
		}
		m := make([]byte, n)
		if _, err := io.ReadFull(r, m); err != nil {
			return
		}
		if id := idOfMessage.FindSubmatch(m); id != nil {
			s.mu.Lock()
			s.heard = append(s.heard, string(id[1]))
			s.mu.Unlock()
		}
	}
}

func (s *logServer) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.heard)
}

// A streamServer is a real NATS server with JetStream, which can be away for a while.
type streamServer struct {
	url     string
	options server.Options
	server  *server.Server
	js      jetstream.JetStream
}

func newStream(t *testing.T) *streamServer {
	t.Helper()
	n := &streamServer{options: server.Options{
		Host: ownHost(), Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	}}
	n.start(t)
	t.Cleanup(n.stop)
	n.url = n.server.ClientURL()
	conn, err := nats.Connect(n.url, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if n.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	return n
}

// start starts the server, on the port that it had before.
func (n *streamServer) start(t *testing.T) {
	t.Helper()
	options := n.options // a server changes its own
	s, err := server.NewServer(&options)
	if err != nil {
		t.Fatal(err)
	}
	n.server = s
	s.Start()
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server takes no connections")
	}
	n.options.Port = s.Addr().(*net.TCPAddr).Port
}

func (n *streamServer) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// ids are those of the CloudEvents in the stream, in its order.
func (n *streamServer) ids(t *testing.T) (ids []string) {
	if !n.server.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := n.js.Stream(ctx, "FOREWARN")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= stream.CachedInfo().State.LastSeq; i++ {
		msg, err := stream.GetMsg(ctx, i)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, msg.Header.Get(jetstream.MsgIDHeader))
	}
	return ids
}

const chatToken = "xoxb-t0ken-of-the-test"

// A chatServer is one channel behind Slack's API. What it keeps can be updated and replied to.
type chatServer struct {
	url string

	mu    sync.Mutex
	posts []chatPost
	no    string        // the error that every call gets, if any
	held  chan struct{} // while it hangs
	waits int           // calls that hang
}

type chatPost struct {
	ts, thread, text, blocks string
	updates                  int
}

func newChat(t *testing.T) *chatServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &chatServer{url: "http://" + l.Addr().String() + "/api/"}
	srv := &http.Server{Handler: c, ReadHeaderTimeout: patience}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return c
}

func (c *chatServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	c.mu.Lock()
	defer c.mu.Unlock()
	if held := c.held; held != nil {
		c.waits++
		c.mu.Unlock()
		select {
		case <-held:
		case <-r.Context().Done():
		}
		c.mu.Lock()
		c.waits--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	json.NewEncoder(w).Encode(c.answer(strings.TrimPrefix(r.URL.Path, "/api/"), chatSecret(r, form), form))
}

// chatSecret is the token of a call, in either of the two places that Slack takes it from.
func chatSecret(r *http.Request, form url.Values) string {
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return bearer
	}
	return form.Get("token")
}

func (c *chatServer) answer(method, token string, form url.Values) map[string]any {
	no := func(what string) map[string]any { return map[string]any{"ok": false, "error": what} }
	const channel = "C024BE91L"
	blocks := form.Get("blocks")
	find := func(ts string) int {
		return slices.IndexFunc(c.posts, func(p chatPost) bool { return p.ts == ts })
	}
	switch {
	case c.no != "":
		return no(c.no)
	case token != chatToken:
		return no("invalid_auth")
	case method == "auth.test":
		return map[string]any{"ok": true, "team": "Example Ltd", "user": "forewarn"}
	case form.Get("channel") != channel:
		return no("channel_not_found")
	case utf8.RuneCountInString(form.Get("text")) > 40000:
		return no("msg_too_long")
	case blocks != "" && !json.Valid([]byte(blocks)):
		return no("invalid_blocks_format")
	}
	ts := form.Get("ts")
	switch method {
	case "chat.postMessage":
		if thread := form.Get("thread_ts"); thread != "" && find(thread) < 0 {
			return no("thread_not_found")
		}
		ts = fmt.Sprintf("1700000000.%06d", len(c.posts)+1)
		c.posts = append(c.posts, chatPost{ts: ts, thread: form.Get("thread_ts"), text: form.Get("text"), blocks: blocks})
	case "chat.update":
		i := find(ts)
		if i < 0 {
			return no("message_not_found")
		}
		c.posts[i].text, c.posts[i].blocks = form.Get("text"), blocks
		c.posts[i].updates++
	default:
		return no("unknown_method")
	}
	message := map[string]any{"ts": ts, "text": form.Get("text"), "thread_ts": form.Get("thread_ts")}
	return map[string]any{"ok": true, "channel": channel, "ts": ts, "message": message}
}

func (c *chatServer) all() []chatPost {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.posts)
}

func (c *chatServer) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waits
}

func (c *chatServer) hang() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = make(chan struct{})
}

func (c *chatServer) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held)
	c.held = nil
}

// refuse lets every call fail so from now on.
func (c *chatServer) refuse(no string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.no = no
}

// A postOffice is a real mail server for one mailbox.
type postOffice struct {
	host string
	addr string

	mu    sync.Mutex
	close func()
	mails [][]byte
}

// A letter is a mail taken apart.
type letter struct {
	mail.Header
	subject, text, html string
}

func newPost(t *testing.T) *postOffice {
	t.Helper()
	p := &postOffice{host: ownHost()}
	p.addr = p.host + ":0"
	p.listen(t)
	t.Cleanup(p.stop)
	return p
}

func (p *postOffice) listen(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr = l.Addr().String()
	srv := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return counter{p}, nil }))
	srv.ErrorLog = log.New(io.Discard, "", 0)
	go srv.Serve(l)
	p.close = func() { srv.Close(); l.Close() } // Serve may not have come to know of l
}

// stop lets connections be refused until listen.
func (p *postOffice) stop() { p.close() }

func (p *postOffice) port() string {
	_, port, _ := net.SplitHostPort(p.addr)
	return port
}

// ids are those of the CloudEvents that the mails are about, in order.
func (p *postOffice) ids() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, raw := range p.mails {
		if m, err := mail.ReadMessage(bytes.NewReader(raw)); err == nil {
			id, _, _ := strings.Cut(strings.TrimPrefix(m.Header.Get("Message-ID"), "<"), ".")
			ids = append(ids, id)
		}
	}
	return ids
}

func (p *postOffice) all(t *testing.T) (all []letter) {
	t.Helper()
	p.mu.Lock()
	mails := slices.Clone(p.mails)
	p.mu.Unlock()
	for _, raw := range mails {
		m, err := mail.ReadMessage(bytes.NewReader(raw))
		if err != nil {
			t.Fatalf("%v:\n%s", err, raw)
		}
		l := letter{Header: m.Header}
		if l.subject, err = new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil {
			t.Fatal(err)
		}
		_, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		for parts := multipart.NewReader(m.Body, params["boundary"]); ; {
			part, err := parts.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(quotedprintable.NewReader(part))
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(part.Header.Get("Content-Type"), "text/html") {
				l.html = string(body)
			} else {
				l.text = string(body)
			}
		}
		all = append(all, l)
	}
	return all
}

// A counter takes mail at the post office.
type counter struct{ at *postOffice }

func (counter) Reset() {}

func (counter) Logout() error { return nil }

func (counter) Mail(string, *smtp.MailOptions) error { return nil }

func (counter) Rcpt(string, *smtp.RcptOptions) error { return nil }

func (c counter) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	c.at.mu.Lock()
	defer c.at.mu.Unlock()
	c.at.mails = append(c.at.mails, raw)
	return nil
}
