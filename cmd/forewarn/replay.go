package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge/relay"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) replayCommand() *cobra.Command {
	var past relay.ReplayRequest
	var since string
	c := p.outputFlag(&cobra.Command{
		Use:   "replay --since TIME --sink NAME",
		Short: "Only on a relay: send again what its stream holds, not dead letters (outbox replay)",
		Long: `Sends CloudEvents that the stream of a relay holds to one of its sinks again: those about Azure's
events that the sink's filter takes, the oldest first. Each is marked with recordedtime, the time of
the replay. Prints the ids.

The sink treats them as it treats all deliveries: one with late latest gets the latest change of
each event, one with late drop only that. A sink with late drop, or with late latest that isn't told
of the end of events, begins nothing about an event that is over: such events are left out, and
counted, unless --event names one.`,
		Example: "  forewarn replay --since 24h --sink ops\n" +
			"  forewarn replay --since 2026-11-21 --sink tickets --event 602d9444",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if past.Sink == "" || since == "" {
				return exit(exitUsage, errors.New("expected --sink and --since, such as --since 24h --sink ops"))
			}
			past.Since, err = parseSince(since, time.Now())
			if err != nil {
				return exit(exitUsage, err)
			}
			past.By, past.Run = p.user(), rand.Text()[:12]
			running, _, err := p.running()
			if err != nil {
				return err
			}
			replayed, err := running.ReplayPast(c.Context(), past)
			if len(replayed.Over) > 0 {
				fmt.Fprintf(p.err, "left out: %s over, and sink %s begins nothing about that (late); to send one all the "+
					"same, name it, such as --event %.8s\n",
					wording.Plural(len(replayed.Over), "event is", "events are"), past.Sink, wording.Printable(replayed.Over[0]))
			}
			if p.output == "json" {
				return errors.Join(wording.PrintJSON(p.out, append([]relay.ReplayedEvent{}, replayed.Replayed...)), err)
			}
			for _, r := range replayed.Replayed {
				fmt.Fprintln(p.out, wording.Printable(r.ID))
			}
			if len(replayed.Replayed) == 0 && len(replayed.Over) == 0 && err == nil {
				fmt.Fprintln(p.err, "the stream holds nothing since then that this sink would get")
			}
			return err
		},
	})
	c.Flags().StringVar(&past.Sink, "sink", "", "the sink that gets them")
	c.Flags().StringVar(&since, "since", "",
		"those since: a duration such as 24h, or a time such as 2026-11-21T04:00:00Z or 2026-11-21")
	c.Flags().StringVar(&past.Event, "event", "", "only those of the Azure event with this id (a prefix is enough)")
	return c
}
