package sinks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// The most that a server may send. nats.go allocates as many bytes as a server announces, and keeps a line until it
// ends, so everything is checked before nats.go reads it. A description of a stream takes forty times its size in
// memory.
const (
	natsMaxLine    = 64 << 10  // bytes of a protocol line
	natsMaxHeader  = 64 << 10  // bytes of a message's header; JetStream stores no larger one
	natsMaxMessage = 256 << 10 // bytes of a message with its header
	natsMaxRead    = 6 << 20   // the same for a reader of streams: 4 MiB, which may come as base64 in JSON
	natsQuota      = 1 << 20   // bytes between two attempts, or in a minute
	natsLineCost   = 1 << 10   // bytes added to the count for each line
)

// natsMaxPayload is the default limit of a server. Over TLS it replaces the limit in the INFO before the handshake,
// until the server repeats it.
const natsMaxPayload = 1 << 20

// connect reads the server's INFO and starts TLS if either side wants it. nats.go then reads that INFO without what is
// not to be trusted: other servers, and limits from before TLS. TLS is done here, so that what nats.go reads is bounded
// with TLS too.
func (a natsAccess) connect(ctx context.Context, network, address string) (*natsConn, error) {
	limit := time.Now().Add(natsDial)
	dialing, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	raw, err := a.dial(dialing, network, address)
	if err != nil {
		return nil, err
	}
	raw.SetDeadline(limit) // nats.go sets its own afterwards
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	conn, err := a.greet(ctx, raw, address)
	if err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

func (a natsAccess) greet(ctx context.Context, raw net.Conn, address string) (*natsConn, error) {
	conn, err := newNATSConn(raw, raw), error(nil)
	if a.tlsFirst {
		conn, err = a.handshake(ctx, raw, address)
	}
	if err != nil {
		return nil, err
	}
	line, err := conn.readLine()
	if err != nil {
		if !a.tlsFirst {
			err = fmt.Errorf("no INFO: %w; a server that begins with TLS needs tls: {handshake_first: true}", err)
		}
		return nil, err
	}
	info, err := readInfo(line)
	if err != nil {
		return nil, err
	}
	switch {
	case a.tlsFirst:
	case info.TLSRequired, a.secure && info.TLSAvailable:
		if conn.r.Buffered() > 0 {
			return nil, errors.New("the server says more than INFO before TLS")
		}
		conn, err = a.handshake(ctx, raw, address)
		if err != nil {
			return nil, err
		}
		info.MaxPayload = natsMaxPayload
	case a.secure:
		return nil, nats.ErrSecureConnWanted
	}
	if a.signsNonce && info.Nonce == "" {
		return nil, nats.ErrNkeysNotSupported
	}
	info.TLSRequired, info.TLSAvailable, info.ConnectURLs = false, false, nil
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	conn.ready = fmt.Appendf(nil, "INFO %s\r\n", text)
	return conn, nil
}

func (a natsAccess) handshake(ctx context.Context, raw net.Conn, address string) (*natsConn, error) {
	host, _, _ := net.SplitHostPort(address) // each server's URL has both
	secured, err := handshake(ctx, raw, a.tls, host)
	if err != nil {
		return nil, err
	}
	return newNATSConn(secured, raw), nil
}

// A natsConn is a connection to a server that may be hostile. It hands on whole lines of the protocol once they are
// checked, and ends when one breaks a bound.
//
// It checks three things, because nats.go 1.55 bounds none of them: lengths (one of 2^63 ends the program, at once, and
// one of 8 GB is allocated before a byte of it has come), lines (one that never ends is kept whole, at six times its
// size), and how much a server says unasked (messages, -ERR or INFO over and over keep a processor busy as long as they
// come). Commands that it doesn't know end the connection, because nats.go also takes them in small letters or with
// tabs. natsHostile in the tests has a server for each. Whatever else a server may do, nats.go stands.
type natsConn struct {
	net.Conn
	raw     net.Conn // beneath TLS
	r       *bufio.Reader
	ready   []byte // the rest of a checked line, to hand on
	payload int    // bytes of a message that come next
	ending  bool   // after them the message must end

	quota       int64 // bytes that the server may send between two attempts, or in a minute; 0 for no limit
	received    atomic.Int64
	countedFrom time.Time // when received was last reset, apart from attempts

	loggedIn   atomic.Bool                  // the server has accepted the login
	report     func(*natsConn, error, bool) // gets each -ERR, and once why the connection has ended
	reportOnce sync.Once
}

func newNATSConn(conn, raw net.Conn) *natsConn {
	ignore := func(*natsConn, error, bool) {}
	return &natsConn{Conn: conn, raw: raw, r: bufio.NewReaderSize(conn, natsMaxLine), quota: natsQuota, report: ignore}
}

// Close closes the connection at once. TLS would first write to a server that may not read.
func (c *natsConn) Close() error { return c.end(errGivenUp) }

// end is Close with a reason.
func (c *natsConn) end(why error) error {
	err := c.raw.Close()
	c.reportOnce.Do(func() { c.report(c, why, true) })
	return err
}

// resetQuota resets the count of what the server has sent. It may be called during Read.
func (c *natsConn) resetQuota() { c.received.Store(0) }

// Read hands on what the server sent. It is called from one goroutine at a time.
func (c *natsConn) Read(p []byte) (int, error) {
	if len(c.ready) == 0 && c.payload == 0 {
		if err := c.readNext(); err != nil {
			c.end(err)
			return 0, err
		}
	}
	if len(c.ready) > 0 {
		n := copy(p, c.ready)
		c.ready = c.ready[n:]
		return n, nil
	}
	n, err := c.r.Read(p[:min(len(p), c.payload)])
	c.payload -= n
	if err != nil {
		c.end(err)
	}
	return n, err
}

// readNext reads a line and checks what it announces.
func (c *natsConn) readNext() error {
	line, err := c.readLine()
	if err != nil {
		return err
	}
	if c.ending {
		if string(line) != "\r\n" {
			return errors.New("a message does not end where the server said it would")
		}
		c.ready, c.ending = line, false
		return nil
	}
	most := natsMaxMessage
	if c.quota == 0 {
		most = natsMaxRead
	}
	c.payload, c.ending, err = natsAnnounced(line, most)
	if err != nil {
		return err
	}
	if now := time.Now(); now.Sub(c.countedFrom) > time.Minute {
		c.countedFrom = now
		c.resetQuota()
	}
	if c.received.Add(int64(len(line)+c.payload+natsLineCost)) > c.quota && c.quota > 0 {
		return fmt.Errorf("the server said more than %d bytes unasked", c.quota)
	}
	switch {
	case bytes.HasPrefix(line, []byte("PONG")):
		c.loggedIn.Store(true)
	case bytes.HasPrefix(line, []byte("-ERR")):
		c.report(c, natsServerError(strings.Trim(string(line[4:]), "' \r\n")), false)
	}
	c.ready = line
	return nil
}

// readLine reads a line with its end. It is valid until something else is read.
func (c *natsConn) readLine() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		err = fmt.Errorf("the server said a line of more than %d bytes", natsMaxLine)
	}
	return line, err
}

// readInfo reads the line with which a server begins, and which it repeats after a change.
func readInfo(line []byte) (info nats.ServerInfo, err error) {
	text, ok := bytes.CutPrefix(line, []byte("INFO "))
	if !ok {
		return info, fmt.Errorf("the server said %.200q, which is no INFO", line)
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return info, fmt.Errorf("INFO of the server: %w", err)
	}
	if info.MaxPayload <= 0 { // nothing could be sent, and every delivery would be rejected
		return info, fmt.Errorf("INFO of the server: max_payload is %d", info.MaxPayload)
	}
	return info, nil
}

// natsAnnounced checks a line. It returns how many bytes follow it, and whether they are a message; one of more than
// limit bytes is an error. It reads numbers as nats.go does: digits only.
func natsAnnounced(line []byte, limit int) (size int, message bool, err error) {
	words := strings.Split(strings.TrimRight(string(line), "\r\n"), " ")
	var bounds []int // of the numbers at the end of the line, the last of which is the size
	switch words[0] {
	case "PING", "PONG", "+OK", "-ERR":
	case "INFO":
		_, err = readInfo(line)
	case "HMSG":
		bounds = []int{natsMaxHeader, limit}
	case "MSG":
		bounds = []int{limit}
	default:
		err = fmt.Errorf("the server said %.200q, which is not NATS", line)
	}
	for i, bound := range bounds {
		at := len(words) - len(bounds) + i
		if at < 1 {
			return 0, false, fmt.Errorf("the server said %.200q", line)
		}
		n, err := strconv.ParseUint(words[at], 10, 63)
		if err != nil || n > uint64(bound) {
			return 0, false, fmt.Errorf("the server announced %.30q bytes; at most %d are read", words[at], bound)
		}
		size = int(n)
	}
	return size, len(bounds) > 0, err
}
