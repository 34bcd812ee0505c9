package sinks

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// natsServe starts a NATS server with JetStream that ends with the test. with changes its options, if not nil.
func natsServe(t *testing.T, with func(*server.Options)) *server.Server {
	t.Helper()
	s := natsStart(t, with)
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server takes no connections")
	}
	return s
}

// natsStart returns natsServe for a server that takes no connections while it is alone.
func natsStart(t *testing.T, with func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{
		ServerName: "nats-1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	}
	if with != nil {
		with(o)
	}
	if o.Host = hostOf(t); o.TLSConfig != nil { // certificates are for this one
		o.Host = "127.0.0.1"
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { natsStop(s) })
	return s
}

func natsStop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// natsClient returns a connection of the test's own.
func natsClient(t *testing.T, url string, options ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, js
}

// natsStream makes the stream FOREWARN. with changes its configuration, if not nil.
func natsStream(t *testing.T, js jetstream.JetStream, with func(*jetstream.StreamConfig)) jetstream.Stream {
	t.Helper()
	config := jetstream.StreamConfig{Name: "FOREWARN", Subjects: []string{"forewarn.>"}}
	if with != nil {
		with(&config)
	}
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// natsStored returns all messages of a stream.
func natsStored(t *testing.T, stream jetstream.Stream) []*jetstream.RawStreamMsg {
	t.Helper()
	info, err := stream.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var all []*jetstream.RawStreamMsg
	for i := uint64(1); i <= info.State.LastSeq; i++ {
		msg, err := stream.GetMsg(context.Background(), i)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, msg)
	}
	return all
}

func natsIDs(t *testing.T, stream jetstream.Stream) []string {
	t.Helper()
	var ids []string
	for _, msg := range natsStored(t, stream) {
		if id := msg.Header.Get("ce-id"); id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// natsFake returns a server that says what it is told to, and then hears until the connection ends. heard is closed
// after the first connection has got its say.
func natsFake(t *testing.T, talk func(conn net.Conn, r *bufio.Reader)) (address string, heard <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for first := true; ; first = false {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			talk(conn, r)
			if first {
				close(said)
			}
			io.Copy(io.Discard, r)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String(), said
}

const natsInfo = `INFO {"server_id":"X","server_name":"fake","version":"2.15.2","headers":true,` +
	`"max_payload":1048576,"nonce":"abcdefghijkl"%s}` + "\r\n"

// natsLet lets a client in and then does as talk says.
func natsLet(talk func(conn net.Conn, r *bufio.Reader)) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, r *bufio.Reader) {
		fmt.Fprintf(conn, natsInfo, "")
		if natsPongs(conn, r) {
			talk(conn, r)
		}
	}
}

// natsPongs answers the first PING, and says whether there was one.
func natsPongs(conn net.Conn, r *bufio.Reader) bool {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		if strings.HasPrefix(line, "PING") {
			_, err := io.WriteString(conn, "PONG\r\n")
			return err == nil
		}
	}
}

// natsUser makes a user's creds file, its seed, and the JWT.
func natsUser(t *testing.T, account nkeys.KeyPair, expires time.Time) (file, seed, token string) {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.NewUserClaims(public)
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	if token, err = claims.Encode(account); err != nil {
		t.Fatal(err)
	}
	text, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(token, text)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "user.creds", string(creds)), string(text), token
}

func natsSeed(t *testing.T) (file, seed, public string) {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	text, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = user.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "nkey", string(text)+"\n"), string(text), public
}

// natsAnswers is a server that answers every message that asks for it with the same text.
func natsAnswers(conn net.Conn, answer func() string) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(_, reply, sid string) string { return natsMessage(reply, sid, answer()) })
	})(conn, r)
}

// natsAsked hears a client and says what answer gives for each of its requests: the subject, where to answer, and the
// number of the subscription that hears it.
func natsAsked(conn net.Conn, r *bufio.Reader, answer func(subject, reply, sid string) string) {
	replies := make(chan string, 100)
	defer close(replies)
	go func() { // a pipe holds nothing, and the client does not read while it writes
		for reply := range replies {
			if _, err := io.WriteString(conn, reply); err != nil {
				break
			}
		}
		for range replies {
		}
	}()
	sid := ""
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch words := strings.Fields(line); {
		case len(words) == 0:
		case words[0] == "PING":
			replies <- "PONG\r\n"
		case words[0] == "SUB":
			sid = words[len(words)-1]
		case words[0] == "PUB", words[0] == "HPUB":
			size, _ := strconv.Atoi(words[len(words)-1])
			if _, err := r.Discard(size + len("\r\n")); err != nil {
				return
			}
			if (words[0] == "PUB") == (len(words) == 4) { // else it asks for no answer
				replies <- answer(words[1], words[2], sid)
			}
		}
	}
}
