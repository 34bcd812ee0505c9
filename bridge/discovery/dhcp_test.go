package discovery

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var asked = dhcpQuestion{xid: [4]byte{1, 2, 3, 4}, mac: [6]byte{0x00, 0x0d, 0x3a, 0xaa, 0xbb, 0xcc}}

// option is an option of a message.
func option(code byte, value ...byte) []byte {
	return append([]byte{code, byte(len(value))}, value...)
}

// reply returns an answer to the question with these options.
func reply(q dhcpQuestion, options ...[]byte) []byte {
	m := q.message()[:dhcpFixed+len(dhcpCookie)]
	m[0] = dhcpReply
	return append(m, slices.Concat(options...)...)
}

// The question is the one that Azure's own programs send: a broadcast DHCPDISCOVER with a transaction id and the MAC
// address, which requests option 245 and is long enough for every relay.
func TestQuestionIsADiscover(t *testing.T) {
	want := "010106000102030400008000" + strings.Repeat("00", 16) + "000d3aaabbcc" + strings.Repeat("00", 202) +
		"63825363" + "350101" + "3701f5" + "ff" + strings.Repeat("00", 53)
	if got := hex.EncodeToString(asked.message()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// An answer must repeat the values of the question. All other packets are ignored.
func TestOnlyAnswersToTheQuestionAreRead(t *testing.T) {
	offer := reply(asked, option(53, 2), option(245, 168, 63, 129, 16), []byte{255})
	for at, what := range map[int]string{0: "its op", 4: "its number", 7: "its number", 28: "its hardware address", 33: "its hardware address", 236: "its cookie", 239: "its cookie"} {
		other := bytes.Clone(offer)
		other[at] ^= 3
		if _, err := asked.endpoint(other); !errors.Is(err, errNotOurs) {
			t.Errorf("with another in %s, byte %d: %v", what, at, err)
		}
	}
	for _, size := range []int{0, 1, 4, 235, 236, 239} {
		if _, err := asked.endpoint(offer[:size]); !errors.Is(err, errNotOurs) {
			t.Errorf("cut at %d: %v", size, err)
		}
	}
	if _, err := asked.endpoint(asked.message()); !errors.Is(err, errNotOurs) {
		t.Errorf("our own question: %v", err)
	}
	if addr, err := asked.endpoint(offer); addr != wireServer || err != nil {
		t.Errorf("the answer: %v, %v", addr, err)
	}
}

// The address is read wherever the standard allows it. A value that is not the address of another host is refused with
// the reason.
func TestOption245IsTheAddress(t *testing.T) {
	azure := option(245, 168, 63, 129, 16)
	end := []byte{255}
	for _, tt := range []struct {
		claim   string
		options [][]byte
		refused string // "" is not
	}{
		{"an offer", [][]byte{option(53, 2), option(1, 255, 255, 0, 0), azure, end}, ""},
		{"an acknowledgement", [][]byte{option(53, 5), azure, end}, ""},
		{"an answer of BOOTP", [][]byte{azure, end}, ""},
		{"pads between", [][]byte{{0, 0}, option(53, 2), {0}, azure, {0}, end}, ""},
		{"no end", [][]byte{option(53, 2), azure}, ""},
		{"an empty option before", [][]byte{option(53, 2), option(80), azure, end}, ""},
		{"the address in two parts", [][]byte{option(53, 2), option(245, 168, 63), option(1, 255, 0, 0, 0), option(245, 129, 16), end}, ""},
		{"a refusal", [][]byte{option(53, 6), azure, end}, "not an offer"},
		{"a type of two bytes", [][]byte{option(53, 2, 2), azure, end}, "not an offer"},
		{"nothing", nil, "no option 245"},
		{"other options only", [][]byte{option(53, 2), option(3, 10, 0, 0, 1), end}, "no option 245"},
		{"the option after the end", [][]byte{option(53, 2), end, azure}, "no option 245"},
		{"no value", [][]byte{option(245), end}, "has 0 bytes"},
		{"three bytes", [][]byte{option(245, 168, 63, 129), end}, "has 3 bytes"},
		{"sixteen bytes", [][]byte{option(245, make([]byte, 16)...), end}, "has 16 bytes"},
		{"two addresses", [][]byte{azure, azure, end}, "has 8 bytes"},
		{"a code at the end of all", [][]byte{option(53, 2), {245}}, "option 245 extends"},
		{"a value that is cut", [][]byte{option(53, 2), {245, 4, 168, 63, 129}}, "option 245 extends"},
		{"another's that is cut", [][]byte{azure, {12, 200, 'v'}}, "option 12 extends"},
		{"no host", [][]byte{option(245, 0, 0, 0, 0), end}, "another host"},
		{"this host", [][]byte{option(245, 127, 0, 0, 1), end}, "another host"},
		{"a group", [][]byte{option(245, 224, 0, 0, 1), end}, "another host"},
		{"everybody", [][]byte{option(245, 255, 255, 255, 255), end}, "another host"},
	} {
		addr, err := asked.endpoint(reply(asked, tt.options...))
		switch {
		case tt.refused == "" && (err != nil || addr != wireServer):
			t.Errorf("%s: %v, %v, want %v", tt.claim, addr, err, wireServer)
		case tt.refused != "" && (err == nil || errors.Is(err, errNotOurs) || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: %v, %v, want it refused with %q", tt.claim, addr, err, tt.refused)
		}
	}
}

// Options may continue in the fields file and sname, in this order, but only if option 52 says so.
func TestOptionsContinueInOtherFields(t *testing.T) {
	azure := append(option(245, 168, 63, 129, 16), 255)
	for _, tt := range []struct {
		claim      string
		overload   []byte
		file, name []byte
		refused    string
	}{
		{"in the file", option(52, 1), azure, nil, ""},
		{"in the name", option(52, 2), nil, azure, ""},
		{"in the name, the other being used for options too", option(52, 3), []byte{0, 255}, azure, ""},
		{"in parts", option(52, 3), append(option(245, 168, 63), 255), append(option(245, 129, 16), 255), ""},
		{"in the name only, after the file", option(52, 3), azure, []byte{255}, ""},
		{"in a file that is a file", option(52, 2), azure, []byte{255}, "no option 245"},
		{"in fields without the word", nil, azure, azure, "no option 245"},
		{"with a wrong word", option(52, 4), azure, azure, "option 52 is 04"},
		{"with no word", option(52, 0), azure, azure, "option 52 is 00"},
		{"with two words", option(52, 1, 2), azure, azure, "option 52 is 0102"},
		{"with the word again in the file, which counts for nothing", option(52, 1), append(option(52, 2), 255), azure, "no option 245"},
		{"cut at the end of the name", option(52, 2), nil, append(make([]byte, 60), 245, 4, 168, 63), "option 245 extends"},
	} {
		m := reply(asked, option(53, 2), tt.overload, []byte{255})
		copy(m[dhcpFileAt:dhcpFixed], tt.file)
		copy(m[dhcpNameAt:dhcpFileAt], tt.name)
		addr, err := asked.endpoint(m)
		switch {
		case tt.refused == "" && (err != nil || addr != wireServer):
			t.Errorf("%s: %v, %v, want %v", tt.claim, addr, err, wireServer)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
			t.Errorf("%s: %v, %v, want it refused with %q", tt.claim, addr, err, tt.refused)
		}
	}
}

// The question is sent only on Ethernet interfaces that are up.
func TestOnlyEthernetInterfacesAreAsked(t *testing.T) {
	mac := net.HardwareAddr{0, 1, 2, 3, 4, 5}
	const up = net.FlagUp | net.FlagBroadcast
	for _, tt := range []struct {
		claim string
		i     net.Interface
		want  bool
	}{
		{"eth0", net.Interface{Flags: up, HardwareAddr: mac}, true},
		{"one that is down", net.Interface{Flags: net.FlagBroadcast, HardwareAddr: mac}, false},
		{"lo", net.Interface{Flags: up | net.FlagLoopback, HardwareAddr: mac}, false},
		{"a tunnel", net.Interface{Flags: net.FlagUp | net.FlagPointToPoint}, false},
		{"InfiniBand", net.Interface{Flags: up, HardwareAddr: make([]byte, 20)}, false},
	} {
		if got := canAsk(tt.i); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.claim, got, tt.want)
		}
	}
}

// Reading any packet does not panic. It yields an address only from an answer to the question that contains its four
// bytes.
func FuzzDHCPAnswer(f *testing.F) {
	azure := option(245, 168, 63, 129, 16)
	f.Add(reply(asked, option(53, 2), azure, []byte{255})[240:], []byte{}, true)
	f.Add(reply(asked, option(53, 2), option(52, 3), []byte{255})[240:], append(make([]byte, 64), azure...), true)
	f.Add([]byte{245, 2, 168, 63, 0, 245, 2, 129, 16}, []byte{1}, true)
	f.Add([]byte{245, 255, 1}, []byte{}, true)
	f.Add(asked.message(), []byte{}, false)
	f.Fuzz(func(t *testing.T, options, fields []byte, ours bool) {
		packet := options
		if ours {
			packet = reply(asked, options)
			copy(packet[dhcpNameAt:dhcpFixed], fields)
		}
		before := bytes.Clone(packet)
		addr, err := asked.endpoint(packet)
		if !bytes.Equal(packet, before) {
			t.Fatal("the packet was changed")
		}
		if err != nil {
			if addr.IsValid() || len(err.Error()) > 2000 || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v, %.300q", addr, err)
			}
			return
		}
		four := addr.As4()
		if !addr.Is4() || addr == netip.IPv4Unspecified() || len(packet) < 240 || packet[0] != 2 || !bytes.Contains(packet, asked.xid[:]) {
			t.Fatalf("%v out of %x", addr, packet)
		}
		for _, b := range four {
			if bytes.IndexByte(packet[dhcpNameAt:], b) < 0 {
				t.Fatalf("%v is not in %x", addr, packet)
			}
		}
	})
}
