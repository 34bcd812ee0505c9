package discovery

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// inNamespace runs the calling test again in a process with its own network namespace, and reports whether this is that
// process. There eth0 and azure0 are the two ends of a cable. The test is skipped if the machine does not allow this.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const marker = "FOREWARN_IN_NAMESPACE"
	if os.Getenv(marker) != "" {
		for _, words := range []string{
			"link set lo up", "link add eth0 type veth peer name azure0", "link set eth0 up", "link set azure0 up",
			"addr add 168.63.129.16/32 dev lo scope host",
		} {
			if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
				t.Skipf("no network can be made here: ip %s: %v: %s", words, err, out)
			}
		}
		return true
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("no network can be made here: %v", err)
	}
	t.Parallel() // it only waits
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=1m")
	again.Env = append(os.Environ(), marker+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := again.CombinedOutput()
	skipped := regexp.MustCompile(`(?m)^\s+\S+: no network can be made here: .*`).Find(out)
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("only root may make a network namespace: %v", err)
	case err == nil && skipped != nil:
		t.Skipf("%s", skipped)
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("in a network namespace: %v\n%s", err, out)
	}
	return false
}

// A dhcpServer answers what is asked on eth0, at the other end of the cable, and says what that was.
func dhcpServer(t *testing.T, answers func(n int, q dhcpQuestion) [][]byte) (asked chan []byte) {
	t.Helper()
	listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if err := errors.Join(syscall.BindToDevice(int(fd), "azure0"),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1)); err != nil {
				t.Error(err)
			}
		})
	}}
	conn, err := listen.ListenPacket(t.Context(), "udp4", ":67")
	if err != nil {
		t.Fatal(err)
	}
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	asked = make(chan []byte, 100)
	done := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		packet := make([]byte, 2000)
		n := 0
		for {
			size, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			if port := from.(*net.UDPAddr).Port; port != 68 || size < 300 {
				t.Errorf("%d bytes from port %d", size, port)
				return
			}
			q := dhcpQuestion{xid: [4]byte(packet[4:8]), mac: [6]byte(packet[28:34])}
			if string(q.mac[:]) != string(eth0.HardwareAddr) {
				continue // its own end is asked on too
			}
			n++
			asked <- slices.Clone(packet[:size])
			for _, a := range answers(n, q) {
				if _, err := conn.WriteTo(a, &net.UDPAddr{IP: net.IPv4bcast, Port: 68}); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	return asked
}

// On real sockets, the question is broadcast and repeated if a packet is lost. The first answer with the endpoint
// counts, whatever arrives before it. A search then finds the endpoint if the fixed address is unreachable.
func TestDHCPFindsTheEndpoint(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	asked := dhcpServer(t, func(n int, q dhcpQuestion) [][]byte {
		if n == 1 {
			return nil // lost
		}
		other := dhcpQuestion{xid: [4]byte{9, 9, 9, 9}, mac: q.mac}
		azure, end := option(245, 168, 63, 129, 16), []byte{255}
		return [][]byte{
			[]byte("noise"),
			reply(other, option(53, 2), option(245, 10, 0, 0, 9), end),
			reply(q, option(53, 2), option(54, 10, 0, 0, 1), end), // another server's, without the option
			reply(q, option(53, 2), azure, end),
			reply(q, option(53, 2), option(245, 10, 0, 0, 8), end), // too late
		}
	})
	azure, err := imdstest.New(imdstest.Options{}).Listen("168.63.129.16:8080", "")
	if err != nil {
		t.Fatal(err)
	}
	defer azure.Close()

	found, err := Search{DHCP: AskDHCP}.Find(t.Context())
	if want := (Found{Endpoint: "http://168.63.129.16:8080", Method: DHCP}); found != want || err != nil {
		t.Errorf("found %v, %v, want %v", found, err, want)
	}
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		got := <-asked
		q := dhcpQuestion{xid: [4]byte(got[4:8]), mac: [6]byte(eth0.HardwareAddr)}
		if string(got) != string(q.message()) {
			t.Errorf("question %d is %s", n, hex.EncodeToString(got))
		}
	}
	if len(asked) > 0 {
		t.Errorf("it was asked %d times more", len(asked))
	}
}

// The error tells unusable answers from no answers, by interface.
func TestUnusableDHCPAnswersAreReported(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dhcpServer(t, func(_ int, q dhcpQuestion) [][]byte {
		return [][]byte{reply(q, option(53, 2), option(245, 1, 2), []byte{255})}
	})
	_, err := askDHCP(t.Context(), 300*time.Millisecond)
	const want = "DHCP on eth0: an answer was unusable: option 245 has 2 bytes, not the 4 of an address; " +
		"DHCP on azure0: nobody answered; does a firewall block UDP port 68?"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// AskDHCP returns as soon as its context ends, and closes the port.
func TestDHCPEndsWithItsContext(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	dhcpServer(t, func(int, dhcpQuestion) [][]byte { cancel(); return nil })
	if addr, err := AskDHCP(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("AskDHCP = %v, %v; want %v", addr, err, context.Canceled)
	}
	conn, err := net.ListenPacket("udp4", ":68")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// The error names the missing right, or says that another program has the port.
func TestDHCPNamesTheMissingCapability(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	holder, err := net.ListenPacket("udp4", ":68")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AskDHCP(t.Context()); err == nil || !strings.Contains(err.Error(), "DHCP on azure0, eth0: ") || !strings.Contains(err.Error(), "has UDP port 68 exclusively") {
		t.Errorf("with the port taken: %v", err)
	}
	holder.Close()
	if err := syscall.Setuid(65534); err != nil { // this process ends here
		t.Fatal(err)
	}
	if _, err := AskDHCP(t.Context()); !strings.Contains(err.Error(), "needs root, or CAP_NET_BIND_SERVICE and CAP_NET_RAW") {
		t.Errorf("as nobody: %v", err)
	}
}
