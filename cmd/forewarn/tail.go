package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func (p *program) tailCommand() *cobra.Command {
	var id string
	c := &cobra.Command{
		Use: "tail", Short: "Follow the CloudEvents of the running forewarn, one a line",
		Long: `Prints every CloudEvent from now on as the running forewarn commits it, one a line, whether or not a sink is owed it,
until it is interrupted.`,
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
				if json.Unmarshal(line, &ce) != nil || !strings.HasPrefix(ce.Subject, strings.ToUpper(id)) {
					return nil
				}
				_, err := p.out.Write(line)
				return err
			})
			if ctx.Err() != nil {
				return nil // it was interrupted, which is how it ends
			}
			return exit(exitUnavailable, err)
		},
	}
	c.Flags().StringVar(&id, "event", "", "only the Azure event whose id begins so")
	return c
}
