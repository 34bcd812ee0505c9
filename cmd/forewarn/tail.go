package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"forewarn/bridge/imds"
)

func (p *program) tailCommand() *cobra.Command {
	var id string
	c := &cobra.Command{
		Use: "tail", Short: "Follow the CloudEvents of the running forewarn, one per line",
		Long: `Prints every CloudEvent that the running forewarn commits from now on, one per line, whether or not a
sink gets it. Ctrl-C ends it.`,
		Example: "  forewarn tail\n  forewarn tail --event 602d9444 | jq .type",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			running, _, err := p.running()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			following := func() { fmt.Fprintln(p.err, "forewarn: following") }
			err = running.Follow(ctx, following, func(line []byte) error {
				var ce struct{ Subject string }
				if json.Unmarshal(line, &ce) != nil || !strings.HasPrefix(ce.Subject, imds.Upper(id)) {
					return nil
				}
				_, err := p.out.Write(line)
				return err
			})
			if ctx.Err() != nil {
				return nil // interrupted: the usual end
			}
			return exit(exitUnavailable, err)
		},
	}
	c.Flags().StringVar(&id, "event", "", "only the Azure event with this id (a prefix is enough)")
	return c
}
