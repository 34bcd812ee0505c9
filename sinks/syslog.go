package sinks

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
	"forewarn/templates"
)

type syslogSettings struct {
	URL      string      `yaml:"url" required:"" doc:"tls://, tcp:// or udp://, host and port (default port: 6514, without TLS 514)"`
	Facility string      `yaml:"facility" default:"daemon" oneof:"facilities" doc:"syslog facility: kern to local7, such as local4"`
	AppName  string      `yaml:"app_name" default:"forewarn" doc:"APP-NAME of each message"`
	Framing  string      `yaml:"framing" default:"octet" oneof:"octet newline" doc:"how messages are told apart over TLS and TCP: octet (each after its length) or newline (one a line)"`
	SDID     string      `yaml:"sd_id" default:"cloudevent@32473" doc:"name of the structured data"`
	Text     string      `yaml:"text" doc:"the message for people (default: the headline)"`
	TextFile Path        `yaml:"text_file"`
	TLS      TLSSettings `yaml:"tls" doc:"certificates, for tls://"`
}

// syslogTerms: a record holds every change, however late.
var syslogTerms = delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend, Batch: 64}

const (
	syslogConfirm      = 2 * time.Second        // how long the receiver may take to close the connection
	syslogSpare        = 200 * time.Millisecond // of an attempt that is left when that wait ends
	syslogMaxAttribute = 1024                   // bytes of an attribute, at most
	syslogMinText      = 256                    // bytes that a message reserves for its text
	syslogMaxID        = 256                    // bytes of the id, also where other attributes are cut more
)

// A syslogTransport is how messages go to a receiver, and how long they may be: RFC 5424 has every receiver take 2048
// bytes of a datagram, RFC 5425 has them take 8192 of a stream.
type syslogTransport struct {
	network string
	port    string
	limit   int
}

var syslogTransports = map[string]syslogTransport{
	"tls": {"tcp", "6514", 8192}, // RFC 5425
	"tcp": {"tcp", "514", 8192},  // RFC 6587
	"udp": {"udp", "514", 2048},  // RFC 5426
}

// SyslogFacilities are the names of the facilities by their numbers.
var SyslogFacilities = strings.Fields("kern user mail daemon auth syslog lpr news uucp cron authpriv ftp ntp audit " +
	"alert clock local0 local1 local2 local3 local4 local5 local6 local7")

// syslogSink sends each CloudEvent as a message of RFC 5424: its attributes as structured data, and a line for people.
//
// Syslog has no answers. Over TCP and TLS each batch has a connection of its own. The sink closes its side and waits
// until the receiver closes the other. If the receiver has not read everything, TCP makes that a reset, and the batch
// is sent again. A receiver that does not close in time counts as one that has it, and so does every receiver of UDP
// that refuses nothing.
type syslogSink struct {
	syslogTransport
	Host
	to       *url.URL
	facility int
	app      string
	id       string // of the structured data
	lines    bool   // over a stream each message is a line; otherwise each comes after its length
	text     *templates.Template
	tls      TLSSettings
	now      func() time.Time
}

func openSyslog(s syslogSettings, h Host) (Opened, error) {
	k := &syslogSink{
		facility: slices.Index(SyslogFacilities, cmp.Or(s.Facility, "daemon")), app: cmp.Or(s.AppName, "forewarn"),
		id: cmp.Or(s.SDID, "cloudevent@32473"), lines: s.Framing == "newline", tls: s.TLS, Host: h, now: time.Now,
	}
	name, number, _ := strings.Cut(k.id, "@")
	var wrong KeyErrors
	wrong.when(syslogName(k.app, 48) != k.app, "app_name",
		"%q is not a name; expected at most 48 characters of ASCII without spaces", s.AppName)
	bad := name == "" || syslogName(k.id, 32) != k.id || strings.ContainsAny(name, `="]`)
	wrong.when(bad || number == "" || strings.Trim(number, "0123456789.") != "", "sd_id",
		"%q is not a name of structured data; expected a name, @ and your enterprise number, such as cloudevent@32473",
		s.SDID)
	var err error
	k.to, err = syslogURL(s.URL)
	wrong.when(err != nil, "url", "%w", err)
	wrong.when(err == nil && k.to.Scheme != "tls" && s.TLS != TLSSettings{}, "tls",
		"is for tls://; expected that url, or no tls")
	wrong.when(err == nil && k.to.Scheme == "udp" && s.Framing != "", "framing",
		"is for tls:// and tcp://; expected that url, or no framing")
	_, err = k.tls.load(k.Host)
	wrong.add(err)
	text := templateKey{"text", s.Text, s.TextFile, templates.EmailSubject, templates.Parse, nil, &k.text}
	wrong.add(text.open(nil))
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	k.syslogTransport = syslogTransports[k.to.Scheme]
	opened := Opened{Sink: k, Secrets: s.TLS.files()}
	opened.note(k.to.Scheme == "udp",
		"UDP loses messages, and nobody hears of it; tls:// or tcp:// notices when a receiver is gone")
	opened.note(k.to.Scheme == "tcp", "anybody on the way can read and change what tcp:// carries; tls:// encrypts it")
	return opened, nil
}

// syslogURL reads the address of a receiver. Its errors do not show it.
func syslogURL(text string) (*url.URL, error) {
	const otherwise = "is not the URL of a syslog receiver; expected one such as tls://logs.example.com:6514, " +
		"tcp://… or udp://…"
	u, err := parseURL(text, otherwise, false, "tls", "tcp", "udp")
	if err == nil && (u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "") {
		err = says(otherwise)
	}
	if err != nil {
		return nil, err
	}
	host := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), syslogTransports[u.Scheme].port))
	return &url.URL{Scheme: u.Scheme, Host: host}, nil
}

// Deliver sends the batch.
func (k *syslogSink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	var messages [][]byte
	for _, d := range batch {
		m, err := k.message(d)
		if err != nil {
			return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
		}
		messages = append(messages, m)
	}
	send := k.stream
	if k.network == "udp" {
		send = k.datagrams
	}
	var answer delivery.Answer
	err := k.withConn(ctx, func(conn net.Conn, rtt time.Duration) (err error) {
		answer.Status, err = send(ctx, conn, messages, rtt)
		return err
	})
	return answer, err
}

// Render returns the message.
func (k *syslogSink) Render(d delivery.Delivery) (string, error) {
	m, err := k.message(d)
	return string(m) + "\n", err
}

// Connect connects to the receiver and sends nothing. UDP has no connection.
func (k *syslogSink) Connect(ctx context.Context) (string, error) {
	answer := map[string]string{
		"tls": "reached " + k.to.String() + ", its certificate is valid", "tcp": "reached " + k.to.String(),
		"udp": "sends to " + k.to.String() + ", which does not answer",
	}[k.to.Scheme]
	err := k.withConn(ctx, func(conn net.Conn, rtt time.Duration) error {
		if k.network == "udp" {
			return nil
		}
		return checkOpen(conn, rtt)
	})
	if err != nil {
		return "", err
	}
	return answer, nil
}

// withConn calls do with a new connection; rtt is about the time that a packet takes to the receiver and back. Its
// errors have a class.
func (k *syslogSink) withConn(ctx context.Context, do func(conn net.Conn, rtt time.Duration) error) (err error) {
	ctx, cancel := withLimit(ctx, syslogTerms.Timeout)
	defer cancel()
	defer func() {
		if err != nil {
			redact := k.redactor()
			redact.showHosts(k.to.Host, k.tls.ServerName)
			err = failure(ctx, redact, k.to.String(), classOfFailure(err), err)
		}
	}()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	config, err := k.tls.load(k.Host)
	if err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	began := time.Now()
	conn, err := k.dialer(connectTime)(ctx, k.network, k.to.Host)
	if err != nil {
		return err
	}
	defer conn.Close() // not TLS's, which would wait for the receiver
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	rtt := time.Since(began)
	if k.to.Scheme != "tls" {
		return do(conn, rtt)
	}
	secured, err := handshake(ctx, conn, config, k.to.Hostname())
	if err != nil {
		return err
	}
	return do(secured, rtt)
}

// stream sends the messages, and waits until the receiver has closed the connection.
func (k *syslogSink) stream(ctx context.Context, conn net.Conn, messages [][]byte, rtt time.Duration) (string, error) {
	if err := checkOpen(conn, rtt); err != nil {
		return "", err
	}
	if _, err := conn.Write(k.frames(messages)); err != nil {
		return "", err
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			return "", err
		}
	}
	wait := syslogConfirm
	if end, ok := ctx.Deadline(); ok {
		if left := time.Until(end) - syslogSpare; left > 0 {
			wait = min(wait, left)
		}
	}
	conn.SetReadDeadline(time.Now().Add(wait))
	n, err := io.Copy(io.Discard, io.LimitReader(conn, maxAnswer))
	switch {
	case err == nil && n < maxAnswer, errors.Is(err, io.ErrUnexpectedEOF): // TLS may end without a word
		return "taken by " + k.to.String(), nil
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return "sent to " + k.to.String() + ", which did not say that it has it", nil
	}
	return "", err
}

// frames returns the messages as RFC 6587 has them in a stream: each after its length, or each with a newline behind it,
// which no message holds.
func (k *syslogSink) frames(messages [][]byte) []byte {
	var frames bytes.Buffer
	for _, m := range messages {
		if k.lines {
			fmt.Fprintf(&frames, "%s\n", m)
		} else {
			fmt.Fprintf(&frames, "%d %s", len(m), m)
		}
	}
	return frames.Bytes()
}

// checkOpen waits as long as a receiver needs to refuse a connection, and returns an error if it has closed it.
func checkOpen(conn net.Conn, rtt time.Duration) error {
	conn.SetReadDeadline(time.Now().Add(min(max(2*rtt, 10*time.Millisecond), 500*time.Millisecond)))
	defer conn.SetReadDeadline(time.Time{})
	switch _, err := conn.Read(make([]byte, 1)); {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case errors.Is(err, io.EOF):
		return errors.New("it closed the connection before anything was sent")
	default:
		return err
	}
}

// datagrams sends each message by itself, and waits for the error that a closed port causes.
func (k *syslogSink) datagrams(_ context.Context, conn net.Conn, messages [][]byte, rtt time.Duration) (string, error) {
	for _, m := range messages {
		if _, err := conn.Write(m); err != nil {
			return "", err
		}
	}
	if err := checkOpen(conn, rtt); err != nil {
		return "", err
	}
	return "sent to " + k.to.String() + ", which does not answer", nil
}

// message returns a CloudEvent as a message of RFC 5424 within the limit of the transport: its text is cut first, then
// its attributes, but not the id. Of hundreds of attributes, as a stranger's CloudEvent may have, the first are left.
func (k *syslogSink) message(d delivery.Delivery) ([]byte, error) {
	all, err := attributes(d.Event)
	if err != nil {
		return nil, err
	}
	text, err := execute(k.text, k.fields([]delivery.Delivery{d}, k.now()))
	if err != nil {
		return nil, fmt.Errorf("text: %w", err)
	}
	m := k.head(d.Event)
	var data []byte
	for most, whole := syslogMaxAttribute, false; most >= 16 && !whole; most /= 2 {
		data, whole = k.structured(all, most, k.limit-len(m)-syslogMinText)
	}
	m = append(m, data...)
	text = cut(templates.Line(text), k.limit-len(m)-len(" \ufeff"))
	if text != "" {
		m = append(m, ' ')
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		m = append(m, "\ufeff"...) // the mark that it is UTF-8
	}
	return append(m, text...), nil
}

func (k *syslogSink) head(ce event.Event) []byte {
	at := "-"
	if !ce.Time().IsZero() {
		at = ce.Time().UTC().Format("2006-01-02T15:04:05.999999Z07:00")
	}
	observer, _ := ce.Extensions()["observer"].(string)
	kind := strings.TrimPrefix(ce.Type(), "dev.forewarn.")
	return fmt.Appendf(nil, "<%d>1 %s %s %s - %s ", k.facility*8+syslogSeverity(ce), at,
		cmp.Or(syslogName(observer, 255), syslogName(k.Hostname, 255), "-"), k.app, cmp.Or(syslogName(kind, 32), "-"))
}

// syslogSeverity returns the severity of a CloudEvent: err, warning, info or debug.
func syslogSeverity(ce event.Event) int {
	switch number, ok := ce.Extensions()["severitynumber"].(int32); {
	case number >= 17:
		return 3
	case number >= 13:
		return 4
	case number >= 9 || !ok:
		return 6
	}
	return 7
}

// structured returns the attributes as structured data of at most room bytes, each value cut to most bytes. It reports
// whether all of them are in it.
func (k *syslogSink) structured(all []attribute, most, room int) (_ []byte, whole bool) {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)
	b := fmt.Appendf(nil, "[%s", k.id)
	for _, a := range all {
		limit := most
		if a.name == "id" {
			limit = syslogMaxID
		}
		end := len(b)
		b = fmt.Appendf(b, ` %s="%s"`, syslogName(a.name, 32), escape.Replace(cut(templates.Line(a.value), limit)))
		if len(b) >= room {
			return append(b[:end], ']'), false
		}
	}
	return append(b, ']'), true
}

// syslogName returns what the head of a message can hold of a text: ASCII without spaces, at most limit bytes.
func syslogName(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	return text[:min(len(text), limit)]
}
