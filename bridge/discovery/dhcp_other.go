//go:build !linux

package discovery

import (
	"context"
	"errors"
	"net/netip"
)

// AskDHCP always returns an error, because only Linux is supported. The error names the setting to use instead.
func AskDHCP(context.Context) (netip.Addr, error) {
	return netip.Addr{},
		errors.New("DHCP is supported on Linux only; " +
			"set imds.endpoint to http:// and the address in option 245 of this machine's DHCP lease")
}
