package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
			s, err := p.runningPlaces()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err = p.callControl(ctx, s, http.MethodGet, "/tail", nil, func(body io.Reader) error {
				fmt.Fprintln(p.err, "forewarn: following")
				lines := bufio.NewReader(body)
				for {
					line, err := lines.ReadBytes('\n')
					if err != nil {
						return fmt.Errorf("the forewarn that was followed ended: %w", err)
					}
					var ce struct{ Subject string }
					if json.Unmarshal(line, &ce) == nil && strings.HasPrefix(ce.Subject, strings.ToUpper(id)) {
						if _, err := p.out.Write(line); err != nil {
							return err
						}
					}
				}
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
