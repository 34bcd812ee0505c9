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

// dhcpAsks is how many times the question is sent, because packets may be lost.
const dhcpAsks = 3

// AskDHCP asks on all interfaces concurrently for the address of the endpoint, and returns the first answer that has
// it. It takes no lease, so it does not disturb the machine's DHCP client. It needs the right to bind UDP port 68, and
// does not change the firewall. Without an answer it fails after ten seconds.
func AskDHCP(ctx context.Context) (netip.Addr, error) { return askDHCP(ctx, 10*time.Second) }

// askDHCP is AskDHCP with another timeout.
func askDHCP(ctx context.Context, patience time.Duration) (netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("DHCP: %w", err)
	}
	asked := slices.DeleteFunc(interfaces, func(i net.Interface) bool { return !canAsk(i) })
	if len(asked) == 0 {
		return netip.Addr{}, errors.New("DHCP: there is no interface to ask on")
	}
	outer := ctx
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	type answer struct {
		on   string
		addr netip.Addr
		err  error
	}
	answers := make(chan answer)
	for _, i := range asked {
		go func() {
			addr, err := askOn(ctx, i, patience)
			answers <- answer{i.Name, addr, err}
		}()
	}
	var found netip.Addr
	failed := map[string][]string{} // interfaces by reason
	for range asked {
		a := <-answers
		if a.err != nil {
			failed[a.err.Error()] = append(failed[a.err.Error()], a.on)
		} else if !found.IsValid() {
			found = a.addr
			cancel() // the other interfaces are no longer needed
		}
	}
	switch {
	case found.IsValid():
		return found, nil
	case outer.Err() != nil:
		return netip.Addr{}, fmt.Errorf("DHCP: %w", context.Cause(outer))
	}
	var all reasons
	for _, reason := range slices.Sorted(maps.Keys(failed)) {
		slices.Sort(failed[reason])
		all = append(all, fmt.Errorf("DHCP on %s: %s", strings.Join(failed[reason], ", "), reason))
	}
	return netip.Addr{}, all
}

// askOn asks on one interface until an answer names the endpoint, the patience is over or ctx is done.
func askOn(ctx context.Context, i net.Interface, patience time.Duration) (netip.Addr, error) {
	conn, err := listenDHCP(ctx, i.Name)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()

	defer context.AfterFunc(ctx, func() { conn.Close() })() // ends the read
	q := question(i, rand.Uint32())
	last := errors.New("nobody answered; does a firewall block UDP port 68?")
	packet := make([]byte, 4096)
	began := time.Now()
	for n := range dhcpAsks {
		if _, err := conn.WriteTo(q.message(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			return netip.Addr{}, err
		}
		conn.SetReadDeadline(began.Add(time.Duration(n+1) * patience / dhcpAsks))
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

// listenDHCP opens a socket for DHCP answers on the interface.
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
