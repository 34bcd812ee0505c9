package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge/discovery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// discoveredVariable is the environment variable in which Azure's own discovery script stores the address it found.
const discoveredVariable = "SCHEDULEDEVENTSIP"

func (p *program) discoverCommand() *cobra.Command {
	var endpoint string
	var dhcp bool
	c := p.outputFlag(&cobra.Command{
		Use: "discover", Short: "Find the metadata endpoint of this VM and print its URL",
		Long: `Finds the metadata endpoint and prints its URL. It tries 169.254.169.254 first, where every VM in a
virtual network has it; then the address that Azure's own discovery script has stored in the variable
` + discoveredVariable + `; then DHCP, whose option 245 names it for VMs outside a virtual network. Exit 69
if it is in none of these places.

discover doesn't ask for scheduled events, because asking switches them on. It changes and stores
nothing, so put what it prints into the settings, as imds.endpoint.

DHCP needs Linux, and root or the capabilities CAP_NET_BIND_SERVICE and CAP_NET_RAW. Elsewhere, set
imds.endpoint to http:// and the address in option 245 of the machine's DHCP lease.`,
		Example: `  forewarn discover
  forewarn discover --dhcp=false -o json
  forewarn events --endpoint "$(forewarn discover)"`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !settings.IsEndpoint(endpoint) {
				return exit(exitUsage, fmt.Errorf("--endpoint %s: expected an address such as %s", endpoint, imds.DefaultEndpoint))
			}
			d := p.search()
			d.Fixed = strings.TrimRight(endpoint, "/")
			if !dhcp {
				d.DHCP = nil
			}
			slow := time.AfterFunc(3*time.Second, func() {
				fmt.Fprintln(p.err, "forewarn: searching for the endpoint; this can take half a minute")
			})
			defer slow.Stop()
			found, err := d.Find(c.Context())
			if err != nil {
				return exit(exitUnavailable, err)
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, found)
			}
			_, err = fmt.Fprintln(p.out, found.Endpoint)
			return err
		},
	})
	c.Flags().StringVar(&endpoint, "endpoint", imds.DefaultEndpoint, "address to try first")
	c.Flags().BoolVar(&dhcp, "dhcp", true, "use DHCP if nothing else finds it")
	return c
}

// search returns the search for the endpoint.
func (p *program) search() *discovery.Search {
	d := &discovery.Search{DHCP: discovery.AskDHCP}
	if addr, err := netip.ParseAddr(p.getenv(discoveredVariable)); err == nil && addr.Is4() {
		d.Stored = discovery.Endpoints(addr)
	}
	return d
}

// noRelay refuses the settings of a relay: asking would switch scheduled events on for the machine that the relay runs on.
func noRelay(s *settings.Settings) error {
	if s.Relay != nil {
		return exit(exitSettings, errors.New("a relay has no endpoint to ask; run this on the VM"))
	}
	return nil
}
