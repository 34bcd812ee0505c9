package sinks

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
)

// A logbook is a receiver that reads what RFC 6587 calls octet counting until the sender closes.
type logbook struct {
	mu       sync.Mutex
	messages []string
}

func (b *logbook) keep(m string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, m)
}

func (b *logbook) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.messages)
}

func (b *logbook) ids(t *testing.T) (ids []string) {
	for _, m := range b.all() {
		ids = append(ids, parseSyslog(t, m).data["id"])
	}
	return ids
}

// read keeps the messages of a connection.
func (b *logbook) read(t *testing.T, conn net.Conn) {
	for r := bufio.NewReader(conn); ; {
		length, err := r.ReadString(' ')
		if err != nil {
			if length != "" {
				t.Errorf("the stream ends in %q", length)
			}
			return
		}
		n, err := strconv.Atoi(strings.TrimSuffix(length, " "))
		if err != nil {
			t.Errorf("no length: %q", length)
			return
		}
		m := make([]byte, n)
		if _, err := io.ReadFull(r, m); err != nil {
			t.Errorf("a message of %d bytes: %v", n, err)
			return
		}
		b.keep(string(m))
	}
}

// listen has f for each connection to its address, until the test ends.
func listen(t *testing.T, f func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() { l.Close(); open.Wait() })
	open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { defer conn.Close(); f(conn) })
		}
	})
	return l.Addr().String()
}

func syslogAccepts(t *testing.T) (string, func() []string) {
	var b logbook
	return "url: tcp://" + listen(t, func(c net.Conn) { b.read(t, c) }), func() []string { return b.ids(t) }
}

func syslogHangs(t *testing.T) map[string]hung {
	all := map[string]hung{}
	for _, scheme := range []string{"tcp", "tls"} {
		began, once := make(chan struct{}), sync.Once{}
		address := listen(t, func(c net.Conn) {
			once.Do(func() { close(began) })
			<-t.Context().Done()
		})
		all[scheme] = hung{"url: " + scheme + "://" + address, began}
	}
	return all
}

func syslogFails(t *testing.T) map[string]string {
	ca := newAuthority(t)
	config := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}}
	stranger := listen(t, func(c net.Conn) { tls.Server(c, config).Handshake() })
	return map[string]string{again: "url: tcp://127.0.0.1:1", blocked: "url: tls://" + stranger}
}

// A syslogMessage is a message of RFC 5424 as its grammar reads it.
type syslogMessage struct {
	pri                        int
	at, host, app, proc, msgID string
	dataID                     string
	data                       map[string]string
	text                       string
}

var (
	syslogHead = regexp.MustCompile(`^<(0|[1-9][0-9]{0,2})>1 (-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z) ` +
		`([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) ([!-~]{1,32}) `)
	syslogData  = regexp.MustCompile(`^\[([!-<>-\\^-~]{1,32})((?: [!-<>-\\^-~]{1,32}="(?:[^"\\\]]|\\.)*")+)\]`)
	syslogParam = regexp.MustCompile(` ([a-z0-9]{1,32})="((?:[^"\\\]]|\\.)*)"`)
)

func parseSyslog(t *testing.T, m string) (s syslogMessage) {
	t.Helper()
	head := syslogHead.FindStringSubmatch(m)
	if head == nil || !utf8.ValidString(m) || strings.ContainsFunc(m, unicode.IsControl) {
		t.Errorf("%q is no message of RFC 5424", m)
		return s
	}
	rest := m[len(head[0]):]
	data := syslogData.FindStringSubmatch(rest)
	if data == nil {
		t.Errorf("%q has no structured data", m)
		return s
	}
	s = syslogMessage{at: head[2], host: head[3], app: head[4], proc: head[5], msgID: head[6], dataID: data[1],
		data: map[string]string{}}
	s.pri, _ = strconv.Atoi(head[1])
	for _, p := range syslogParam.FindAllStringSubmatch(data[2], -1) {
		s.data[p[1]] = strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\]`, `]`).Replace(p[2])
	}
	rest = rest[len(data[0]):]
	text, has := strings.CutPrefix(rest, " ")
	if !has && rest != "" {
		t.Errorf("%q: no space before the text", m)
	}
	plain, mark := strings.CutPrefix(text, "\ufeff")
	if ascii := !strings.ContainsFunc(plain, func(r rune) bool { return r > 127 }); ascii == mark {
		t.Errorf("%q: the mark of UTF-8 is %v", m, mark)
	}
	s.text = plain
	return s
}

// syslogOf opens a sink that sends nothing, for what it would send.
func syslogOf(t *testing.T, settings string) *syslogSink {
	t.Helper()
	k := mustOpen(t, "syslog", settings, testHost(t)).(*syslogSink)
	k.now = messageTime.clock
	return k
}

// A batch goes over one connection, each message behind its length, and all attributes are in the structured data.
func TestSyslogCarriesEveryAttribute(t *testing.T) {
	var b logbook
	connections := 0
	address := listen(t, func(c net.Conn) { connections++; b.read(t, c) })
	k := syslogOf(t, "url: tcp://"+address+"\nfacility: local3\napp_name: azure\nsd_id: ce@1.2.3\n"+
		"text: '{{.change}}: Wörter'")
	answer, err := k.Deliver(t.Context(), deliveries(t))
	if err != nil || answer.Status != "taken by tcp://"+address {
		t.Fatalf("Deliver = %+v, %v", answer, err)
	}
	messages := b.all()
	if connections != 1 || len(messages) != len(deliveries(t)) {
		t.Fatalf("%d connections brought %d messages, want one with %d", connections, len(messages), len(deliveries(t)))
	}
	for i, m := range messages {
		ce := deliveries(t)[i].Event
		s := parseSyslog(t, m)
		want := map[string]string{}
		all, err := attributes(ce)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			want[a.name] = a.value
		}
		if !maps.Equal(s.data, want) {
			t.Errorf("the data is\n%q\nwant\n%q", s.data, want)
		}
		severity := map[string]int{"INFO": 6, "WARN": 4, "ERROR": 3}[want["severitytext"]]
		kind := strings.TrimPrefix(ce.Type(), "dev.forewarn.")
		if s.pri != 19*8+severity || s.host != want["observer"] || s.app != "azure" || s.proc != "-" || s.msgID != kind ||
			s.dataID != "ce@1.2.3" || s.text == "" {
			t.Errorf("%q is read as %+v", m, s)
		}
	}
	golden(t, "syslog.golden", strings.Join(messages, "\n")+"\n")
}

// With framing: newline each message is a line, also if an event's own text has several.
func TestSyslogSendsLinesOnRequest(t *testing.T) {
	var b logbook
	address := listen(t, func(c net.Conn) {
		for lines := bufio.NewScanner(c); lines.Scan(); {
			b.keep(lines.Text())
		}
	})
	k := syslogOf(t, "url: tcp://"+address+"\nframing: newline\ntext: \"{{.change}}\\n<13>1 and more\"")
	if answer, err := k.Deliver(t.Context(), deliveries(t)); err != nil || answer.Status != "taken by tcp://"+address {
		t.Fatalf("Deliver = %+v, %v", answer, err)
	}
	var want []string
	for _, d := range deliveries(t) {
		want = append(want, d.Event.ID())
	}
	if got := b.ids(t); !slices.Equal(got, want) {
		t.Errorf("the lines have the ids %q, want %q", got, want)
	}
}

// What the settings do not say.
func TestSyslogByDefault(t *testing.T) {
	for settings, want := range map[string]string{
		"url: tls://a.example": "a.example:6514", "url: tcp://a.example": "a.example:514",
		"url: udp://a.example":           "a.example:514",
		"url: 'tcp://[2001:db8::1]:601'": "[2001:db8::1]:601",
	} {
		k := syslogOf(t, settings)
		shown, err := k.Render(deliveries(t)[0])
		s := parseSyslog(t, strings.TrimSuffix(shown, "\n"))
		if err != nil || k.to.Host != want || s.pri/8 != 3 || s.app != "forewarn" || s.dataID != "cloudevent@32473" {
			t.Errorf("%s: to %s, %+v, %v; want %s", settings, k.to.Host, s, err, want)
		}
	}
}

// Whatever stands in a CloudEvent, there is one message that the grammar reads, no longer than its transport takes,
// with its id.
func TestSyslogMessagesAreBounded(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for name, evil := range map[string]string{
		"long": strings.Repeat("x", 20<<10), "escapes": strings.Repeat(`]"\`, 5000),
		"wide":  strings.Repeat("ü€😀", 3000),
		"lines": "one\r\n<13>1 two\x00\u2028", "no UTF-8": "a\xff\xfeb\xc3", "blank": " ", "none": "",
	} {
		o := dbHost
		o.Name = evil
		e := azure("Scheduled", evil, "04:10:00",
			map[string]any{"Description": evil, "Resources": []string{evil, evil}, "EventSource": evil})
		for _, batch := range [][]delivery.Delivery{
			deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e},
				cloudevent.Circumstances{Observer: o, Host: "host", Time: messageTime.clock()})),
			about(cloudevent.SinkBlocked, o, map[string]any{"sink": evil, "error": evil}),
		} {
			for scheme, limit := range map[string]int{"tcp": 8192, "udp": 2048} {
				for _, text := range []string{"", "\ntext: '{{.data.event.Description}}{{.azeventtype}}'",
					"\ntext: '{{json .cloudevent}}'"} {
					m, err := syslogOf(t, "url: "+scheme+"://a.example"+text).message(batch[0])
					if err != nil || len(m) > limit {
						t.Errorf("%s by %s: %d bytes, %v", name, scheme, len(m), err)
					}
					if s := parseSyslog(t, string(m)); s.data["id"] != batch[0].Event.ID() {
						t.Errorf("%s by %s: the id is %q", name, scheme, s.data["id"])
					}
				}
			}
		}
	}
}

// A CloudEvent of somebody else, which a relay may read, can have any number of attributes. Its message is bounded too,
// and has the id and a text.
func TestSyslogBoundsManyAttributes(t *testing.T) {
	ce := deliveries(t)[0].Event.Clone()
	for i := range 500 {
		ce.SetExtension(fmt.Sprintf("attribute%d", i), "of somebody else")
	}
	for scheme, limit := range map[string]int{"tcp": 8192, "udp": 2048} {
		m, err := syslogOf(t, "url: "+scheme+"://a.example").message(delivery.Delivery{Event: ce})
		if err != nil || len(m) > limit {
			t.Errorf("%s: %d bytes, %v; want at most %d", scheme, len(m), err, limit)
		}
		if s := parseSyslog(t, string(m)); s.data["id"] != ce.ID() || s.text == "" {
			t.Errorf("%s: the id is %q, the text %q", scheme, s.data["id"], s.text)
		}
	}
}

// A receiver that goes away before it has read everything gets it again; one that does not close is believed.
func TestSyslogKnowsWhatItCan(t *testing.T) {
	d := deliveries(t)[:1]
	for name, f := range map[string]func(net.Conn){
		"closes at once": func(net.Conn) {},
		"resets at once": func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) },
		"reads too little": func(c net.Conn) {
			io.ReadFull(c, make([]byte, 10))
		},
		"resets after it has read": func(c net.Conn) { io.Copy(io.Discard, c); c.(*net.TCPConn).SetLinger(0) },
	} {
		address := listen(t, f)
		k := syslogOf(t, "url: tcp://"+address)
		if answer, err := k.Deliver(t.Context(), d); classOf(err) != again {
			t.Errorf("%s: Deliver = %+v, %v, want it to be tried again", name, answer, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t)
		h.Dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go io.Copy(there, there) // says back what it hears, and never closes
			return here, nil
		}
		s := mustOpen(t, "syslog", "url: tcp://a.example", h)
		began := time.Now()
		answer, err := s.Deliver(t.Context(), d)
		if want := "sent to tcp://a.example:514, which did not say that it has it"; err != nil || answer.Status != want ||
			time.Since(began) > 3*time.Second {
			t.Errorf("Deliver = %+v, %v after %v, want %q", answer, err, time.Since(began), want)
		}
	})
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if noUDP(err) {
		t.Skip("this system has no UDP for Go programs:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	address := closed.LocalAddr().String()
	closed.Close()
	if answer, err := syslogOf(t, "url: udp://"+address).Deliver(t.Context(), d); classOf(err) != again {
		t.Errorf("nobody listens: Deliver = %+v, %v, want it to be tried again", answer, err)
	}
}

// A receiver that says nothing counts as one that has the messages also where the attempt may take no longer than that
// wait.
func TestSyslogWaitsNoLongerThanTheAttempt(t *testing.T) {
	address := listen(t, func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		<-t.Context().Done()
	})
	k := syslogOf(t, "url: tcp://"+address)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if a, err := k.Deliver(ctx, deliveries(t)[:1]); err != nil || !strings.Contains(a.Status, "did not say that it has it") {
		t.Errorf("Deliver = %+v, %v", a, err)
	}
}

// A receiver that wants a certificate gets it, and one that gets none says so after the handshake: nothing is lost.
func TestSyslogShowsItsCertificate(t *testing.T) {
	ca := newAuthority(t)
	config := &tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: ca.pool(),
	}
	var b logbook
	address := listen(t, func(c net.Conn) {
		secured := tls.Server(c, config)
		if secured.Handshake() == nil {
			b.read(t, secured)
			secured.Close()
		}
	})
	trusted := "url: tls://" + address + "\ntls: {ca_file: " + ca.file
	if _, err := syslogOf(t, trusted+"}").Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != blocked ||
		len(b.all()) != 0 {
		t.Errorf("without a certificate: Deliver = %v, want it blocked", err)
	}
	answer, err := syslogOf(t, trusted+files(t, ca.issue(t, "vm-0", time.Hour))+"}").Deliver(t.Context(), deliveries(t))
	if err != nil || answer.Status != "taken by tls://"+address || len(b.all()) != len(deliveries(t)) {
		t.Errorf("with one: Deliver = %+v, %v, and %d messages", answer, err, len(b.all()))
	}
}

// Wrong keys are refused by name, and an address that may hold a secret is not shown.
func TestWrongSyslogIsRefused(t *testing.T) {
	for _, tt := range []struct{ settings, key, reason string }{
		{"{}", "url", "expected one such as tls://logs.example.com:6514"},
		{"url: logs.example.com", "url", "not the URL of a syslog receiver"},
		{"url: https://logs.example.com", "url", "not the URL of a syslog receiver"},
		{"url: tls://u:s3cr3t@logs.example.com", "url", "not the URL of a syslog receiver"},
		{"url: tcp://a.example/path", "url", "not the URL of a syslog receiver"},
		{"url: tcp://a.example:99999", "url", "port"},
		{"url: tcp://a.example\napp_name: my app", "app_name", "without spaces"},
		{"url: tcp://a.example\nsd_id: cloudevent", "sd_id", "your enterprise number"},
		{"url: tcp://a.example\nsd_id: 'a=b@1'", "sd_id", "your enterprise number"},
		{"url: tcp://a.example\ntls: {server_name: b}", "tls", "is for tls://"},
		{"url: udp://a.example\nframing: newline", "framing", "is for tls:// and tcp://"},
		{"url: tls://a.example\ntls: {ca_file: /nowhere}", "tls.ca_file", "/nowhere"},
		{"url: tcp://a.example\ntext: '{{.nope}}'", "text", "unknown name"},
	} {
		wrongKey(t, "syslog", tt.settings, tt.key, tt.reason)
		if _, err := open("syslog", tt.settings, testHost(t)); strings.Contains(fmt.Sprint(err), "s3cr3t") {
			t.Errorf("%v shows the secret", err)
		}
	}
}

// A real rsyslog reads all of it: over TLS, TCP and UDP, with structured data that it can take apart.
func TestSyslogIsReadByRsyslog(t *testing.T) {
	daemon, err := exec.LookPath("rsyslogd")
	if err != nil {
		daemon = "/usr/sbin/rsyslogd" // which is not on everybody's path
		if _, err := os.Stat(daemon); err != nil {
			t.Skip("rsyslogd is not installed, so no real receiver reads our messages")
		}
	}
	needsRsyslogTLS(t)
	ca, dir := newAuthority(t), t.TempDir()
	certPEM, keyPEM := pemOf(t, ca.issue(t, "127.0.0.1", time.Hour))
	cert, key := writeFile(t, "cert.pem", string(certPEM)), writeFile(t, "key.pem", string(keyPEM))
	log, config := filepath.Join(dir, "log"), filepath.Join(dir, "rsyslog.conf")
	ports := map[string]string{}
	for _, scheme := range []string{"tls", "tcp", "udp"} {
		ports[scheme] = freePort(t)
	}
	const fields = `%syslogfacility-text% %syslogseverity-text% %hostname% %app-name% %msgid% ` +
		`%$!rfc5424-sd!cloudevent@32473!id% %$!rfc5424-sd!cloudevent@32473!azeventtype%|%msg%\n`
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global(workDirectory=%[1]q defaultNetstreamDriver="gtls" defaultNetstreamDriverCAFile=%[2]q
       defaultNetstreamDriverCertFile=%[3]q defaultNetstreamDriverKeyFile=%[4]q maxMessageSize="8k")
module(load="imtcp")
module(load="imudp")
module(load="mmpstrucdata")
template(name="fields" type="string" string="%[9]s")
ruleset(name="keep") { action(type="mmpstrucdata") action(type="omfile" file=%[5]q template="fields") }
input(type="imtcp" port=%[6]q ruleset="keep"
      streamDriver.name="gtls" streamDriver.mode="1" streamDriver.authMode="anon")
input(type="imtcp" port=%[7]q ruleset="keep" streamDriver.name="ptcp" streamDriver.mode="0")
input(type="imudp" port=%[8]q address="127.0.0.1" ruleset="keep")
`, dir, ca.file, cert, key, log, ports["tls"], ports["tcp"], ports["udp"], fields), 0o600); err != nil {
		t.Fatal(err)
	}
	rsyslog := exec.Command(daemon, "-n", "-C", "-f", config, "-i", filepath.Join(dir, "pid"))
	rsyslog.Stdout, rsyslog.Stderr = t.Output(), t.Output()
	if err := rsyslog.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { rsyslog.Process.Kill(); rsyslog.Wait() }()

	batch := append(deliveries(t), situations()["scheduled"].batch...)
	var want []string
	for _, scheme := range []string{"tcp", "tls", "udp"} {
		settings := "url: " + scheme + "://127.0.0.1:" + ports[scheme] + "\ntext: 'Wörter ]\" {{.id}}'"
		if scheme == "tls" {
			settings += "\ntls: {ca_file: " + ca.file + "}"
		}
		k := syslogOf(t, settings)
		eventually(t, scheme+" is listened to", func() bool { _, err := k.Connect(t.Context()); return err == nil })
		// On a busy machine it may not say in time that it has them; what it is sent again it keeps twice.
		eventually(t, scheme+" is taken", func() bool {
			answer, err := k.Deliver(t.Context(), batch)
			if err != nil {
				t.Fatalf("%s: Deliver = %+v, %v", scheme, answer, err)
			}
			return scheme == "udp" || answer.Status == "taken by "+k.to.String()
		})
		for _, d := range batch {
			m, err := k.message(d)
			if err != nil {
				t.Fatal(err)
			}
			s := parseSyslog(t, string(m))
			severity := map[int]string{3: "err", 4: "warning", 6: "info"}[s.pri%8]
			want = append(want, fmt.Sprintf("daemon %s %s forewarn %s %s %s|%s", severity, s.host, s.msgID, s.data["id"],
				s.data["azeventtype"], s.text))
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	var got []string
	eventually(t, fmt.Sprintf("%d messages are kept", len(want)), func() bool {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		got = strings.Split(strings.TrimSpace(strings.ReplaceAll(string(text), "\ufeff", "")), "\n")
		slices.Sort(got)
		got = slices.Compact(got)
		return len(got) >= len(want)
	})
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("rsyslog kept\n%s\nwant\n%s", got[i], want[i])
		}
	}
}

// needsRsyslogTLS skips the test unless rsyslogd has its module for TLS, which is a package of its own on most systems.
func needsRsyslogTLS(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"/usr/lib/*/rsyslog", "/usr/lib64/rsyslog", "/usr/lib/rsyslog", "/usr/local/lib/rsyslog"} {
		if found, _ := filepath.Glob(filepath.Join(dir, "lmnsd_gtls.so")); found != nil {
			return
		}
	}
	t.Skip("rsyslogd has no TLS (on Debian it is in the package rsyslog-gnutls), so no real receiver reads our messages")
}

// eventually returns once ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// Whatever Azure or a template says, it is one message that the grammar reads.
func FuzzSyslogMessage(f *testing.F) {
	f.Add("a\"]\\b\n<13>1 x", "{{.id}}")
	f.Add(strings.Repeat("😀", 3000), "\ufeff\xff")
	f.Fuzz(func(t *testing.T, evil, text string) {
		e := azure("Scheduled", evil, "04:10:00", map[string]any{"Description": evil, "Resources": []string{evil}})
		k := syslogOf(t, "url: udp://a.example\ntext: '{{.data.event.Description}}{{.azeventtype}}'")
		for _, d := range deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e},
			cloudevent.Circumstances{Host: text, Time: messageTime.clock()})) {
			m, err := k.message(d)
			if err != nil || len(m) > 2048 || parseSyslog(t, string(m)).data["id"] != d.Event.ID() {
				t.Errorf("%d bytes, %v: %q", len(m), err, m)
			}
		}
	})
}
