package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/discovery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// storedBefore is the variable in which Azure's own discovery program leaves the address that it found.
const storedBefore = "SCHEDULEDEVENTSIP"

func (p *program) discoverCommand() *cobra.Command {
	var endpoint string
	var dhcp bool
	c := p.outputFlag(&cobra.Command{
		Use: "discover", Short: "Find the metadata endpoint of this VM and print its URL",
		Long: `Looks for the metadata endpoint and prints its URL: first at 169.254.169.254, where every VM in a
virtual network has it; then where it was found before (in the outbox, or in the variable
` + storedBefore + `); then by DHCP, whose option 245 names it for VMs outside a virtual
network. Exit 69 when it is in none of these places.

It doesn't ask for scheduled events, because asking switches them on. It changes and stores nothing.
With imds.endpoint: discover in the settings, run looks in the same way, stores what it found, and
looks again when that no longer answers.

To ask by DHCP takes Linux, and root or the capabilities CAP_NET_BIND_SERVICE and CAP_NET_RAW.
Elsewhere set imds.endpoint to http:// and the address in option 245 of the machine's DHCP lease.`,
		Example: "  forewarn discover\n  forewarn discover --dhcp=false -o json\n  forewarn events --endpoint \"$(forewarn discover)\"",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !settings.IsEndpoint(endpoint) {
				return exit(exitUsage, fmt.Errorf("--endpoint %s: expected an address such as %s", endpoint, imds.DefaultEndpoint))
			}
			s, err := p.rootPlaces() // who asks by DHCP
			if err != nil {
				return err
			}
			d := p.search()
			d.Fixed = strings.TrimRight(endpoint, "/")
			if !dhcp {
				d.DHCP = nil
			}
			found, err := p.discover(c.Context(), d, s)
			if err != nil {
				return err
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, found)
			}
			_, err = fmt.Fprintln(p.out, found.Endpoint)
			return err
		},
	})
	c.Flags().StringVar(&endpoint, "endpoint", imds.DefaultEndpoint, "address that is tried first")
	c.Flags().BoolVar(&dhcp, "dhcp", true, "ask by DHCP when nothing else was found")
	return c
}

// search is where run looks for the endpoint; the outbox adds what it remembers.
func (p *program) search() *discovery.Search {
	d := &discovery.Search{DHCP: discovery.AskDHCP}
	if addr, err := netip.ParseAddr(p.getenv(storedBefore)); err == nil && addr.Is4() {
		d.Known = discovery.Endpoints(addr)
	}
	return d
}

// endpoint finds the one that the settings ask to discover, and puts it into them.
func (p *program) endpoint(ctx context.Context, s *settings.Settings) error {
	if !s.IMDS.Discover {
		return nil
	}
	found, err := p.discover(ctx, p.search(), s)
	if err != nil {
		return err
	}
	s.IMDS.Endpoint = found.Endpoint
	return nil
}

// remembered is the outbox to be read. Root does not open that of another user.
func (p *program) remembered(dir string) (*outbox.Outbox, error) {
	o, found, err := stateOwner(dir)
	switch {
	case err != nil:
		return nil, err
	case found:
		return nil, fmt.Errorf("it belongs to %s", o)
	}
	return outbox.OpenReadOnly(dir)
}

// discover looks once. What a running bridge has found it holds, and its outbox too.
func (p *program) discover(ctx context.Context, d *discovery.Search, s *settings.Settings) (bridge.Found, error) {
	stored := ""
	if running, err := p.client(s).Status(ctx); err == nil {
		if kept := running.IMDS.Endpoint; kept != imds.DefaultEndpoint {
			stored = kept
		}
	} else if o, err := p.remembered(s.State); err != nil {
		p.log().Debug("there is no outbox to remember an endpoint", "err", err)
	} else {
		stored = bridge.StoredEndpoint(o)
		_ = o.Close() // it was only read
	}
	slow := time.AfterFunc(3*time.Second, func() {
		fmt.Fprintln(p.err, "forewarn: looking for the endpoint; this can take half a minute")
	})
	defer slow.Stop()
	found, err := d.Find(ctx, stored)
	return found, exit(exitUnavailable, err)
}
