package discovery

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// This file implements as much of DHCP (RFC 2131, 2132, 3396) as is needed to read one option of an offer, without
// accepting the offer. A bounded, fuzzed parser of one option is smaller than a library for the whole protocol.

// The parts of a message: sizes and offsets in bytes, the numbers of options, and their values.
const (
	dhcpFixed     = 236 // the length of the fields before the cookie
	dhcpCookie    = "\x63\x82\x53\x63"
	dhcpMinLength = 300 // the length of a question; some relays drop shorter messages

	dhcpRequest, dhcpReply       = 1, 2
	dhcpDiscover, dhcpOffer      = 1, 2
	dhcpAck                      = 5
	dhcpPad, dhcpEnd             = 0, 255
	dhcpOverload, dhcpType       = 52, 53
	dhcpParameters, dhcpEndpoint = 55, 245
	dhcpInFile, dhcpInName       = 1, 2 // values of overload; 3 is both
	dhcpNameAt, dhcpFileAt       = 44, 108
	dhcpXidAt, dhcpFlagsAt       = 4, 10
	dhcpHardwareAt, dhcpMACLen   = 28, 6
)

// A dhcpQuestion holds the values that an answer must repeat.
type dhcpQuestion struct {
	xid [4]byte // transaction id
	mac [dhcpMACLen]byte
}

// message returns a DHCPDISCOVER that asks for option 245, and for an answer by broadcast.
func (q dhcpQuestion) message() []byte {
	m := make([]byte, dhcpFixed, dhcpMinLength)
	m[0], m[1], m[2] = dhcpRequest, 1, dhcpMACLen // on Ethernet
	copy(m[dhcpXidAt:], q.xid[:])
	m[dhcpFlagsAt] = 0x80 // answer by broadcast
	copy(m[dhcpHardwareAt:], q.mac[:])
	m = append(m, dhcpCookie...)
	m = append(m, dhcpType, 1, dhcpDiscover, dhcpParameters, 1, dhcpEndpoint, dhcpEnd)
	return m[:dhcpMinLength]
}

// errNotOurs is the error for a packet that is not an answer to the question.
var errNotOurs = errors.New("not an answer to this question")

// endpoint returns the address in option 245 of a packet. The error is errNotOurs if the packet is not an answer to q;
// any other error says why the answer cannot be used. The packet may hold anything.
func (q dhcpQuestion) endpoint(packet []byte) (netip.Addr, error) {
	switch {
	case len(packet) < dhcpFixed+len(dhcpCookie), packet[0] != dhcpReply,
		!bytes.Equal(packet[dhcpXidAt:][:len(q.xid)], q.xid[:]),
		!bytes.Equal(packet[dhcpHardwareAt:][:dhcpMACLen], q.mac[:]),
		string(packet[dhcpFixed:][:len(dhcpCookie)]) != dhcpCookie:
		return netip.Addr{}, errNotOurs
	}
	options, err := dhcpOptions(packet)
	if err != nil {
		return netip.Addr{}, err
	}
	typ, ok := options[dhcpType]
	if ok && (len(typ) != 1 || typ[0] != dhcpOffer && typ[0] != dhcpAck) {
		return netip.Addr{}, fmt.Errorf("it is not an offer but of type %.4x", typ)
	}
	value, ok := options[dhcpEndpoint]
	if !ok {
		return netip.Addr{}, errors.New("it has no option 245")
	}
	addr, valid := netip.AddrFromSlice(value)
	switch {
	case len(value) != 4 || !valid:
		return netip.Addr{}, fmt.Errorf("option 245 has %d bytes, not the 4 of an address", len(value))
	case !isHost(addr):
		return netip.Addr{}, fmt.Errorf("option 245 is %v, which is not the address of another host", addr)
	}
	return addr, nil
}

// isHost reports whether an IPv4 address can belong to another host. It panics for an IPv6 address.
func isHost(a netip.Addr) bool {
	first := a.As4()[0]
	return first != 0 && first < 240 && !a.IsLoopback() && !a.IsMulticast()
}

// dhcpOptions returns the values of a message's options by number: those after the cookie, which the message must have,
// and those in the fields file and sname if option 52 says that they hold more. The values of an option that occurs
// repeatedly are concatenated, because a long value is split (RFC 3396).
func dhcpOptions(packet []byte) (map[byte][]byte, error) {
	options := map[byte][]byte{}
	if err := addOptions(options, packet[dhcpFixed+len(dhcpCookie):]); err != nil {
		return nil, err
	}
	overload := options[dhcpOverload]
	if len(overload) == 0 {
		return options, nil
	}
	fields := overload[0]
	if len(overload) != 1 || fields < dhcpInFile || fields > dhcpInFile|dhcpInName {
		return nil, fmt.Errorf("option %d is %.4x, not 1, 2 or 3", dhcpOverload, overload)
	}
	if fields&dhcpInFile != 0 {
		if err := addOptions(options, packet[dhcpFileAt:dhcpFixed]); err != nil {
			return nil, err
		}
	}
	if fields&dhcpInName != 0 {
		if err := addOptions(options, packet[dhcpNameAt:dhcpFileAt]); err != nil {
			return nil, err
		}
	}
	return options, nil
}

// addOptions adds the options of one field to options. The field may lack the end option.
func addOptions(options map[byte][]byte, field []byte) error {
	for len(field) > 0 && field[0] != dhcpEnd {
		code := field[0]
		if code == dhcpPad {
			field = field[1:]
			continue
		}
		if len(field) < 2 || len(field) < 2+int(field[1]) {
			return fmt.Errorf("option %d extends past the end of its field", code)
		}
		end := 2 + int(field[1])
		options[code] = append(options[code], field[2:end]...)
		field = field[end:]
	}
	return nil
}

// canAsk reports whether a question can be sent on an interface: it is up, can broadcast and has an Ethernet address.
func canAsk(i net.Interface) bool {
	return i.Flags&net.FlagUp != 0 && i.Flags&net.FlagBroadcast != 0 && i.Flags&net.FlagLoopback == 0 &&
		len(i.HardwareAddr) == dhcpMACLen
}

// newQuestion returns a question for the interface with that transaction id, which should be random.
func newQuestion(i net.Interface, xid uint32) dhcpQuestion {
	q := dhcpQuestion{mac: [dhcpMACLen]byte(i.HardwareAddr)}
	binary.BigEndian.PutUint32(q.xid[:], xid)
	return q
}
