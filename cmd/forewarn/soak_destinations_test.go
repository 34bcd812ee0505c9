package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/emersion/go-smtp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// hears is a server that takes CloudEvents.
func (s *soak) hears(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ce struct{ ID string }
		if err := json.NewDecoder(r.Body).Decode(&ce); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.heard[name].note(ce.ID)
	})
}

// slack takes every message.
func (s *soak) slack(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	s.mu.Lock()
	s.posts++
	ts := cmp.Or(form.Get("ts"), fmt.Sprintf("1700000000.%06d", s.posts))
	s.mu.Unlock()
	json.NewEncoder(w).Encode(map[string]any{"ok": true, "channel": form.Get("channel"), "ts": ts,
		"message": map[string]any{"ts": ts}})
}

// mail is a mail server.
func (s *soak) mail(address string) {
	l := newMemoryListener()
	srv := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
		return &mailbox{to: s.heard["post"]},
			nil
	}))
	srv.ErrorLog = log.New(io.Discard, "", 0)
	go srv.Serve(l)
	s.net.line(address, l.dial).close = func() { srv.Close(); l.Close() }
}

// A mailbox notes which CloudEvent each mail is about.
type mailbox struct {
	counter
	to *journal
}

// Data takes a mail.
func (m *mailbox) Data(r io.Reader) error {
	letter, err := mail.ReadMessage(r)
	if err != nil {
		return err
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(letter.Header.Get("Message-ID"), "<"), ".")
	m.to.note(id)
	_, err = io.Copy(io.Discard, r)
	return err
}

// nats is a NATS server with a stream in memory, which keeps the last few messages, and a subscriber.
func (s *soak) nats(address string) {
	s.t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: filepath.Join(s.dir, "nats"), MaxClosedClients: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	srv.Start()
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		s.t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.CreateStream(s.t.Context(), jetstream.StreamConfig{
			Name: "FOREWARN", Subjects: []string{"forewarn.>"}, Storage: jetstream.MemoryStorage, MaxMsgs: 50,
		})
	}
	if err == nil {
		_, err = conn.Subscribe("forewarn.>",
			func(m *nats.Msg) { s.heard["stream"].note(m.Header.Get(jetstream.MsgIDHeader)) })
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.net.line(address, func() (net.Conn, error) { return srv.InProcessConn() }).close = func() {
		conn.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// A journal keeps ids on disk, so that what the test remembers is not in the memory that it measures.
type journal struct {
	mu   sync.Mutex
	file *os.File
}

func newJournal(t *testing.T, path string) *journal {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &journal{file: f}
}

func (j *journal) note(id string) {
	if azureChange.MatchString(id) {
		j.mu.Lock()
		defer j.mu.Unlock()
		fmt.Fprintln(j.file, id)
	}
}

func (j *journal) all(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(j.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}
