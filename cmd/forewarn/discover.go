package main

import (
	"context"
	"errors"
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

// discoveredVariable is the environment variable in which Azure's own discovery script stores the address it found.
const discoveredVariable = "SCHEDULEDEVENTSIP"

func (p *program) discoverCommand() *cobra.Command {
	var endpoint string
	var dhcp bool
	c := p.outputFlag(&cobra.Command{
		Use: "discover", Short: "Find the metadata endpoint of this VM and print its URL",
		Long: `Finds the metadata endpoint and prints its URL. It tries 169.254.169.254 first, where every VM in a
virtual network has it; then the place where it was found before (from the outbox, or the variable
` + discoveredVariable + `); then DHCP, whose option 245 names it for VMs outside a virtual
network. Exit 69 if it is in none of these places.

discover doesn't ask for scheduled events, because asking switches them on. It changes and stores
nothing. With imds.endpoint: discover in the settings, run searches in the same way, stores what it
finds, and searches again when that endpoint stops answering.

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
			s, err := p.bareSettingsAsRoot() // DHCP needs root
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
	c.Flags().StringVar(&endpoint, "endpoint", imds.DefaultEndpoint, "address to try first")
	c.Flags().BoolVar(&dhcp, "dhcp", true, "use DHCP if nothing else finds it")
	return c
}

// search returns the search for the endpoint that run and discover use, without what the outbox remembers.
func (p *program) search() *discovery.Search {
	d := &discovery.Search{DHCP: discovery.AskDHCP}
	if addr, err := netip.ParseAddr(p.getenv(discoveredVariable)); err == nil && addr.Is4() {
		d.Known = discovery.Endpoints(addr)
	}
	return d
}

// endpoint replaces the setting imds.endpoint: discover with the endpoint found. It refuses the settings of a relay:
// asking would switch scheduled events on for the machine that the relay runs on.
func (p *program) endpoint(ctx context.Context, s *settings.Settings) error {
	switch {
	case s.Relay != nil:
		return exit(exitSettings, errors.New("a relay has no endpoint to ask; run this on the VM"))
	case !s.IMDS.Discover:
		return nil
	}
	found, err := p.discover(ctx, p.search(), s)
	if err != nil {
		return err
	}
	s.IMDS.Endpoint = found.Endpoint
	return nil
}

// readOutbox opens the outbox in dir read-only. Root does not open that of another user, whose links it would follow.
func (p *program) readOutbox(dir string) (*outbox.Outbox, error) {
	o, found, err := stateOwner(dir)
	switch {
	case err != nil:
		return nil, err
	case found:
		return nil, fmt.Errorf("it belongs to %s", o)
	}
	return outbox.OpenReadOnly(dir)
}

// discover searches once. It starts from the endpoint that the running forewarn uses, or that its outbox remembers.
func (p *program) discover(ctx context.Context, d *discovery.Search, s *settings.Settings) (bridge.Found, error) {
	stored := ""
	if running, err := p.client(s).Status(ctx); err == nil {
		if kept := running.IMDS.Endpoint; kept != imds.DefaultEndpoint {
			stored = kept
		}
	} else if o, err := p.readOutbox(string(s.State)); err != nil {
		p.log().Debug("no outbox that could remember an endpoint", "err", err)
	} else {
		stored = bridge.StoredEndpoint(o)
		_ = o.Close() // read-only: closing cannot lose anything
	}
	slow := time.AfterFunc(3*time.Second, func() {
		fmt.Fprintln(p.err, "forewarn: searching for the endpoint; this can take half a minute")
	})
	defer slow.Stop()
	found, err := d.Find(ctx, stored)
	return found, exit(exitUnavailable, err)
}
