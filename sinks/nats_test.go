package sinks

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	cenats "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

func natsAccepts(t *testing.T) (string, func() []string) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, nil)
	return "url: " + srv.ClientURL(), func() []string { return natsIDs(t, stream) }
}

func natsHangs(t *testing.T) map[string]hung {
	silent, asked := natsFake(t, func(net.Conn, *bufio.Reader) {})
	secure, shaking := natsFake(t, func(conn net.Conn, r *bufio.Reader) {
		fmt.Fprintf(conn, natsInfo, `,"tls_required":true`)
		r.ReadByte() // of the handshake, which is not answered
	})
	waits := func(command string) (string, <-chan struct{}) {
		return natsFake(t, natsLet(func(_ net.Conn, r *bufio.Reader) {
			for {
				line, err := r.ReadString('\n')
				if err != nil || strings.HasPrefix(line, command) {
					return
				}
			}
		}))
	}
	deaf, published := waits("HPUB")
	plain, passed := waits("PING")
	return map[string]hung{
		"no greeting":       {"url: " + silent, asked},
		"no handshake":      {"url: tls://" + secure, shaking},
		"no acknowledgment": {"url: " + deaf, published},
		"no pong":           {"url: " + plain + "\ncore: true", passed},
	}
}

func natsFails(t *testing.T) map[string]string {
	narrow := natsServe(t, nil)
	_, js := natsClient(t, narrow.ClientURL())
	natsStream(t, js, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 10 })
	return map[string]string{
		again: "url: nats://127.0.0.1:1", blocked: "url: " + natsServe(t, nil).ClientURL(),
		rejected: "url: " + narrow.ClientURL(),
	}
}

func natsSecrets(t *testing.T) []secretPlace {
	echo, _ := natsFake(t, func(conn net.Conn, r *bufio.Reader) { // says back what it was told
		fmt.Fprintf(conn, natsInfo, "")
		line, _ := r.ReadString('\n')
		fmt.Fprintf(conn, "-ERR 'Authorization Violation of %s'\r\n", strings.TrimSpace(line))
		conn.Close()
	})
	later, _ := natsFake(t, natsLet(func(conn net.Conn, r *bufio.Reader) { // and one that does so out of turn
		io.WriteString(conn, "-ERR 'Permissions Violation for Publish to \"hunter2hunter2\"'\r\n")
	}))
	gone := net.JoinHostPort(hostOf(t), "9")
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	creds, seed, token := natsUser(t, account, time.Time{})
	nkey, nkeySeed, _ := natsSeed(t)
	const secret = "hunter2hunter2"
	return []secretPlace{
		{"password in the URL", "url: nats://azure:" + secret + "@" + echo, []string{secret}, nil},
		{"password in the URL, not reached", "url: nats://azure:" + secret + "@" + gone, []string{secret},
			nil},
		{"token in the URL", "url: [nats://" + secret + "@" + echo + "]", []string{secret}, nil},
		{"URL in the environment", "url_env: URL", []string{secret},
			map[string]string{"URL": "nats://x:" + secret + "@" + echo}},
		{"wrong URL", "url: 'nats://x:" + secret + "@[::1'", []string{secret}, nil},
		{"wrong scheme", "url: 'http://x:" + secret + "@127.0.0.1'", []string{secret}, nil},
		{"password", "url: " + echo + "\nusername: azure\npassword: " + secret, []string{secret}, nil},
		{"password, out of turn", "url: " + later + "\nusername: azure\npassword: " + secret, []string{secret}, nil},
		{"token", "url: " + echo + "\ntoken: " + secret, []string{secret}, nil},
		{"token, out of turn", "url: " + later + "\ncore: true\ntoken: " + secret, []string{secret}, nil},
		{"token in a file", "url: " + echo + "\ntoken_file: " + writeFile(t, "token", secret+"\n"), []string{secret}, nil},
		{"wrong, two logins", "url: " + echo + "\ntoken: " + secret + "\nusername: x\npassword: " + secret, []string{secret},
			nil},
		{"creds", "url: " + echo + "\ncreds_file: " + creds, []string{seed, token}, nil},
		{"nkey", "url: " + echo + "\nnkey_file: " + nkey, []string{nkeySeed}, nil},
		{"wrong creds", "url: " + echo + "\ncreds_file: " + nkey, []string{nkeySeed}, nil},
		{"wrong nkey", "url: " + echo + "\nnkey_file: " + writeFile(t, "nkey", nkeySeed[:40]), []string{nkeySeed[:40]}, nil},
	}
}

// Every CloudEvent leaves as the SDK's own decoder reads it, in both modes, once the percent-encoding is taken off its
// attributes, which the specification asks for and the SDK leaves on.
func TestNATSMessagesAreReadByTheSDK(t *testing.T) {
	for _, mode := range []string{"binary", "structured"} {
		srv := natsServe(t, nil)
		_, js := natsClient(t, srv.ClientURL())
		stream := natsStream(t, js, nil)
		s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nmode: "+mode, testHost(t))
		for i, d := range deliveries(t) {
			answer, err := s.Deliver(t.Context(), []delivery.Delivery{d})
			if err != nil {
				t.Fatalf("%s: Deliver = %v", mode, err)
			}
			if want := (delivery.Answer{Status: fmt.Sprintf("stored in stream FOREWARN, message %d", i+1),
				ID: fmt.Sprintf("FOREWARN:%d", i+1)}); answer.Status != want.Status || answer.ID != want.ID {
				t.Errorf("%s: answer is %+v, want %+v", mode, answer, want)
			}
		}
		for i, msg := range natsStored(t, stream) {
			want := deliveries(t)[i].Event
			if got := msg.Header.Get("Content-Type"); mode == "structured" && got != structuredType {
				t.Errorf("Content-Type is %q, want %q", got, structuredType)
			}
			if got := msg.Header.Get("ce-datacontenttype"); mode == "binary" && got != "application/json" {
				t.Errorf("ce-datacontenttype is %q", got)
			}
			for name, values := range msg.Header {
				if strings.HasPrefix(name, "ce-") {
					values[0] = decodeAttribute(t, values[0])
				}
			}
			got, err := binding.ToEvent(t.Context(), cenats.NewMessage(&nats.Msg{Header: msg.Header, Data: msg.Data}))
			if err != nil {
				t.Fatalf("%s: the SDK says %v", mode, err)
			}
			if attributesOf(t, *got) != attributesOf(t, want) || string(got.Data()) != string(want.Data()) {
				t.Errorf("%s: the SDK reads\n%s\nwant\n%s", mode, got, want)
			}
			if id := msg.Header.Get("Nats-Msg-Id"); id != want.ID() {
				t.Errorf("Nats-Msg-Id is %q, want %q", id, want.ID())
			}
		}
	}
}

// What render shows is what leaves.
func TestNATSRendersWhatLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		settings string
		delivery int
	}{
		"binary":     {"", 0},
		"binary-odd": {"", 4},
		"structured": {"mode: structured", 1},
		"core":       {"core: true\nsubject: vms.{{.observer}}.{{.change}}", 2},
		"again":      {"once: false\nsubject: 'vms.{{with .azeventtype}}{{lower .}}{{else}}other{{end}}'", 3},
	} {
		s := mustOpen(t, "nats", "url: tls://azure:hunter2@nats.example.com\n"+tt.settings, testHost(t))
		got, err := s.(delivery.Renderer).Render(deliveries(t)[tt.delivery])
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "nats-"+name+".golden", got)
	}
}

// natsObserved returns what a VM says of a change.
func natsObserved(t *testing.T, raw string, kind imds.ChangeKind, o imds.Observer, repeat int) event.Event {
	t.Helper()
	e, err := imds.UnmarshalEvent([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: kind, Event: e},
		cloudevent.Circumstances{Observer: o, Time: monday, Incarnation: "1", Repeat: repeat})
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

func natsEvent(id, kind string, resources ...string) string {
	list, _ := json.Marshal(resources)
	return fmt.Sprintf(`{"EventId":%q,"EventStatus":"Scheduled","EventType":%q,"ResourceType":"VirtualMachine",`+
		`"Resources":%s,`+
		`"NotBefore":"Mon, 11 Apr 2022 22:26:58 GMT","Description":"","EventSource":"Platform","DurationInSeconds":-1}`, id,
		kind, list)
}

const (
	natsFirst  = "602D9444-D2CD-49C7-8624-8643E7171297"
	natsSecond = "7A8B9444-D2CD-49C7-8624-8643E7171298"
)

// Copies of a change from other VMs of the set are stored once, even when the stream has long forgotten its id, and are
// accepted all the same; a second event of the same VM, and one that comes back, are never taken for copies.
func TestNATSStoresEachChangeOnce(t *testing.T) {
	t.Parallel()
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = 100 * time.Millisecond })
	set := imds.Observer{SubscriptionID: "5D9B", ResourceGroup: "RG-Web", ScaleSet: "web"}
	deliver := func(ce event.Event) string {
		t.Helper()
		s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t)) // each VM has its own
		answer, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: ce, Attempt: 1}})
		if err != nil {
			t.Fatalf("Deliver of %s = %v", ce.ID(), err)
		}
		return answer.Status
	}
	reboot := natsEvent(natsFirst, "Reboot", "web_0")
	for i, vm := range []string{"web_0", "web_1", "web_2"} {
		o := set
		o.Name, o.VMID = vm, fmt.Sprint(i)
		want := "already stored in stream FOREWARN, message 1"
		if i == 0 {
			want = "stored in stream FOREWARN, message 1"
		} else {
			natsForgets(t, js, i)
		}
		if got := deliver(natsObserved(t, reboot, imds.Scheduled, o, 0)); got != want {
			t.Errorf("%s: %q, want %q", vm, got, want)
		}
	}
	o := set
	o.Name = "web_0"
	again := natsObserved(t, reboot, imds.Scheduled, o, 1)
	second := natsObserved(t, natsEvent(natsSecond, "Reboot", "web_0"), imds.Scheduled, o, 0)
	deliver(second)
	deliver(again)
	want := []string{natsFirst + "-scheduled", natsSecond + "-scheduled", natsFirst + "-scheduled-r2"}
	if got := natsIDs(t, stream); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
}

// natsForgets returns when a stream has forgotten the ids of all that it holds: it forgets them in their order, and has
// forgotten one that came later.
func natsForgets(t *testing.T, js jetstream.JetStream, round int) {
	t.Helper()
	for first := true; ; first = false {
		ack, err := js.Publish(t.Context(), "forewarn.probe", nil, jetstream.WithMsgID(fmt.Sprint("probe ", round)))
		if err != nil {
			t.Fatal(err)
		}
		if !first && !ack.Duplicate {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Within the window a copy is told by its id without once too, also when its subject holds others behind it.
func TestNATSCopyInTheWindowIsAccepted(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, nil)
	s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nonce: false\nsubject: forewarn.all", testHost(t))
	for i, d := range []int{0, 0, 1, 0} {
		answer, err := s.Deliver(t.Context(), deliveries(t)[d:d+1])
		if err != nil || strings.HasPrefix(answer.Status, "already") != (i == 1 || i == 3) {
			t.Errorf("Deliver, time %d = %+v, %v", i+1, answer, err)
		}
	}
	if got := natsIDs(t, stream); len(got) != 2 {
		t.Errorf("the stream holds %q, want two messages", got)
	}
}

// A stream may itself refuse a second message of a subject. With once: false a late copy is accepted there too, and
// another message is tried again until there is room.
func TestNATSCopyInAStreamWithOneMessagePerSubject(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	natsStream(t, js, func(c *jetstream.StreamConfig) {
		c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
		c.Duplicates = 100 * time.Millisecond
	})
	s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nsubject: forewarn.one\nonce: false", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // the stream forgets the id
	if answer, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil ||
		answer.Status != "already stored in stream FOREWARN, message 1" {
		t.Errorf("a copy: Deliver = %+v, %v; want it accepted", answer, err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[1:2]); classOf(err) != again {
		t.Errorf("another message: Deliver = %v, want it to be tried again", err)
	}
}

// With copies the stream keeps what every VM says, each once; who reads it tells copies by the CloudEvent's id.
func TestNATSKeepsEveryVMsCopy(t *testing.T) {
	t.Parallel()
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, nil)
	reboot := natsEvent(natsFirst, "Reboot", "web_0")
	for _, vm := range []string{"web_0", "web_1", "web_0"} { // the last is repeated after a crash
		s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\ncopies: true", testHost(t))
		ce := natsObserved(t, reboot, imds.Scheduled, imds.Observer{SubscriptionID: "5D9B", ScaleSet: "web", Name: vm}, 0)
		if _, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: ce, Attempt: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{natsFirst + "-scheduled", natsFirst + "-scheduled"}
	if got := natsIDs(t, stream); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
	for _, wrong := range []string{"copies: true\nonce: true", "copies: true\ncore: true"} {
		if _, err := open("nats", "url: nats://127.0.0.1\n"+wrong, testHost(t)); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// A subject that holds another message is no copy: the CloudEvent is rejected, and that says so.
func TestNATSAnotherMessageOfTheSubjectRejects(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	natsStream(t, js, nil)
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t)).(*natsSink)
	msg, err := s.message(deliveries(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), msg.Subject, nil, jetstream.WithMsgID("other\x1b")); err != nil {
		t.Fatal(err)
	}
	_, err = s.Deliver(t.Context(), deliveries(t)[:1])
	if !errors.Is(err, delivery.ErrRejected) || !strings.Contains(err.Error(), `holds another message`) {
		t.Errorf("Deliver = %v, want it rejected", err)
	}
}

// Whatever answers a message, the attempt ends, counts as done only when a stream says that it has it, and what is said
// about it is one line without a secret.
func FuzzNATSAnswers(f *testing.F) {
	const secret = "s3cr3t-token"
	for _, answer := range []string{
		`{"stream":"FOREWARN","seq":7}`, `{"stream":"s3cr3t-token\n","seq":18446744073709551615,"duplicate":true}`, `{}`,
		`+OK`, "", `{"seq":1}`,
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}`,
		`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded s3cr3t-token"}}`,
		`{"error":{"code":-1,"err_code":10054,"description":"\u202e\n"}}`, `{"error":7}`, `[]`, "\xff\x00",
	} {
		f.Add(answer)
	}
	var answer atomic.Value // of the server to whatever is asked
	dial := func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go natsAnswers(there, func() string { return answer.Load().(string) })
		return here, nil
	}
	f.Fuzz(func(t *testing.T, text string) {
		answer.Store(text)
		h := testHost(t)
		h.Dial = dial
		s := mustOpen(t, "nats", "{url: 'nats://127.0.0.1:4222', token: "+secret+"}", h)
		got, err := s.Deliver(t.Context(), deliveries(t)[:1])
		said := fmt.Sprint(got.Status, got.ID, err)
		if len(said) > 1000 || strings.ContainsFunc(said, unicode.IsControl) ||
			strings.Contains(strings.ToLower(said), secret) {
			t.Errorf("%q: said %q", text, said)
		}
		var yes struct{ Stream string }
		if err == nil && (json.Unmarshal([]byte(text), &yes) != nil || yes.Stream == "") {
			t.Errorf("%q was taken for a yes: %+v", text, got)
		}
	})
}

// What is wrong with one address hides neither another nor the credentials nor the certificates.
func TestAllErrorsOfTheAccessToNATSAreFound(t *testing.T) {
	_, err := NewNATS(NATSSettings{
		URL:       []Value{{Text: NewSecret("ftp://a.test")}, {Text: NewSecret("nats://b.test")}, {Env: "NO_URL"}},
		CredsFile: Path(filepath.Join(t.TempDir(), "creds")),
		TLS:       natsTLS{TLSSettings: TLSSettings{CAFile: Path(filepath.Join(t.TempDir(), "ca.pem"))}},
	}, Host{Getenv: func(string) string { return "" }})
	for _, key := range []string{"url.0: ", "url.2.env: ", "creds_file: ", "tls.ca_file: "} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("the error %v lacks %s", err, key)
		}
	}
}
