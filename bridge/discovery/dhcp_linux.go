package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// dhcpAttempts is the number of times that a question is sent, because packets may be lost.
const dhcpAttempts = 3

// AskDHCP asks on all interfaces concurrently for the address of the endpoint, and returns the first answer that has
// it. It takes no lease, so it does not disturb the machine's DHCP client. It needs the right to bind UDP port 68, and
// does not change the firewall. If no answer names the endpoint, it fails after ten seconds, and the error says for
// each interface why. If ctx ends first, the error wraps the cause.
func AskDHCP(ctx context.Context) (netip.Addr, error) { return askDHCP(ctx, 10*time.Second) }

// askDHCP is AskDHCP with another timeout.
func askDHCP(ctx context.Context, timeout time.Duration) (netip.Addr, error) {
	all, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("DHCP: %w", err)
	}
	var interfaces []net.Interface
	for _, i := range all {
		if canAsk(i) {
			interfaces = append(interfaces, i)
		}
	}
	if len(interfaces) == 0 {
		return netip.Addr{}, errors.New("DHCP: there is no interface to ask on")
	}
	addr, failures := askAll(ctx, interfaces, timeout)
	switch {
	case addr.IsValid():
		return addr, nil
	case ctx.Err() != nil:
		return netip.Addr{}, fmt.Errorf("DHCP: %w", context.Cause(ctx))
	}
	return netip.Addr{}, groupByReason(failures)
}

// askAll asks on the interfaces concurrently. It returns the first address that an answer names or, if none does, the
// zero Addr and the error of each interface by its name. It returns when all questions have ended.
func askAll(ctx context.Context, interfaces []net.Interface, timeout time.Duration) (netip.Addr, map[string]error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		from string // the interface
		addr netip.Addr
		err  error
	}
	answers := make(chan answer)
	for _, i := range interfaces {
		go func() {
			addr, err := askOn(ctx, i, timeout)
			answers <- answer{i.Name, addr, err}
		}()
	}
	var found netip.Addr
	failures := make(map[string]error)
	for range interfaces {
		a := <-answers
		if a.err != nil {
			failures[a.from] = a.err
		} else if !found.IsValid() {
			found = a.addr
			cancel() // the other interfaces are no longer needed
		}
	}
	return found, failures
}

// groupByReason returns one error for all interfaces, which names those that failed for the same reason together.
func groupByReason(failures map[string]error) error {
	failed := make(map[string][]string) // interfaces by reason
	for _, name := range slices.Sorted(maps.Keys(failures)) {
		reason := failures[name].Error()
		failed[reason] = append(failed[reason], name)
	}
	var all reasons
	for _, reason := range slices.Sorted(maps.Keys(failed)) {
		all = append(all, fmt.Errorf("DHCP on %s: %s", strings.Join(failed[reason], ", "), reason))
	}
	return all
}

// askOn asks on one interface until an answer names the endpoint, the timeout has passed or ctx ends. It divides the
// timeout evenly between its attempts. If there were answers but none was usable, the error says why the last was not.
func askOn(ctx context.Context, i net.Interface, timeout time.Duration) (netip.Addr, error) {
	conn, err := listenDHCP(ctx, i.Name)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()

	defer context.AfterFunc(ctx, func() { conn.Close() })() // ends the read
	q := newQuestion(i, rand.Uint32())
	last := errors.New("nobody answered; does a firewall block UDP port 68?")
	packet := make([]byte, 4096)
	began := time.Now()
	for n := range dhcpAttempts {
		if _, err := conn.WriteTo(q.message(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			return netip.Addr{}, err
		}
		conn.SetReadDeadline(began.Add(time.Duration(n+1) * timeout / dhcpAttempts))
		for {
			size, _, err := conn.ReadFrom(packet)
			if err != nil {
				break // time to ask again
			}
			addr, err := q.endpoint(packet[:size])
			switch {
			case err == nil:
				return addr, nil
			case !errors.Is(err, errNotOurs):
				last = fmt.Errorf("an answer was unusable: %w", err)
			}
		}
	}
	return netip.Addr{}, last
}

// listenDHCP opens a socket that receives the DHCP answers on one interface and can send broadcasts there. If this user
// may not, the error wraps fs.ErrPermission and names the right that is missing.
func listenDHCP(ctx context.Context, name string) (net.PacketConn, error) {
	listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) {
			err = errors.Join(
				// share the port with the machine's client
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1),
				syscall.BindToDevice(int(fd), name),
			)
		}); e != nil {
			return e
		}
		return err
	}}
	conn, err := listen.ListenPacket(ctx, "udp4", ":68")
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w; binding UDP port 68 needs root, or CAP_NET_BIND_SERVICE and CAP_NET_RAW", err)
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("%w; another program has UDP port 68 exclusively", err)
	}
	return conn, err
}
