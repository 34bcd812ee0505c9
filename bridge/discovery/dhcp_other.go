//go:build !linux

package discovery

import (
	"context"
	"errors"
	"net/netip"
)

// AskDHCP cannot be done here.
func AskDHCP(context.Context) (netip.Addr, error) {
	return netip.Addr{},
		errors.New("DHCP is asked on Linux only; set imds.endpoint to http:// and the address in option 245 of this machine's DHCP lease")
}
