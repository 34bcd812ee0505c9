package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) eventsCommand() *cobra.Command {
	var endpoint string
	c := &cobra.Command{
		Use: "events", Short: "Ask the endpoint and print the document as Azure sent it",
		Long: `Asks the metadata endpoint once and prints the Scheduled Events document exactly as received. Like
run, this switches scheduled events on for this VM and its set.`,
		Example: "  forewarn events\n  forewarn events --endpoint http://127.0.0.1:8254",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := p.bareSettings()
			if err != nil {
				return err
			}
			if endpoint != "" {
				if !settings.IsEndpoint(endpoint) {
					return exit(exitUsage, fmt.Errorf("--endpoint %s: expected an address such as %s", endpoint, imds.DefaultEndpoint))
				}
				s.IMDS.Endpoint = endpoint
			} else if err := noRelay(s); err != nil {
				return err
			}
			const limit = 150 * time.Second // Azure's first answer can take two minutes
			ctx, cancel := context.WithTimeoutCause(c.Context(), limit,
				fmt.Errorf("no answer within %s", wording.Duration(limit)))
			defer cancel()
			slow := time.AfterFunc(10*time.Second, func() {
				fmt.Fprintln(p.err, "forewarn: still waiting; Azure's first answer can take two minutes")
			})
			defer slow.Stop()
			poll := imds.NewClient(s.IMDS.Endpoint, s.IMDS.APIVersion, p.log(), nil).Poll(ctx, "")
			switch {
			case poll.Err != nil:
				return exit(exitUnavailable,
					fmt.Errorf("ask %s: %w; %s", s.IMDS.Endpoint, poll.Err, imds.EndpointHint(s.IMDS.Endpoint)))
			case len(poll.Body) == 0:
				fmt.Fprintln(p.err, "forewarn: the answer is empty: there are no events")
				return nil
			}
			_, err = fmt.Fprintf(p.out, "%s\n", poll.Body)
			return err
		},
	}
	c.Flags().StringVar(&endpoint, "endpoint", "", "address of the metadata service, instead of imds.endpoint")
	return c
}
