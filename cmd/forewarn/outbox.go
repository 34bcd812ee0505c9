package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/wording"
)

var errEmptyKey = errors.New("a key is empty; forewarn outbox list shows the keys")

func (p *program) outboxCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "outbox", Short: "List, show, replay and drop pending deliveries and dead letters",
		Example: "  forewarn outbox list --state dead\n  forewarn outbox replay --all --sink ops",
	}
	c.AddCommand(p.outboxListCommand(), p.outboxShowCommand(), p.outboxReplayCommand(), p.outboxDropCommand())
	return c
}

func (p *program) outboxListCommand() *cobra.Command {
	var sel outbox.Selection
	c := p.outputFlag(&cobra.Command{
		Use: "list", Short: "List pending deliveries and dead letters",
		Long:    "Lists pending deliveries and dead letters, of the running forewarn or, if none runs, of its file.",
		Example: "  forewarn outbox list --sink ops-chat\n  forewarn outbox list --state dead -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if sel.State != "" && sel.State != outbox.StatePending && sel.State != outbox.StateDead {
				return exit(exitUsage, fmt.Errorf("--state %s: expected pending or dead", sel.State))
			}
			running, s, err := p.running()
			if err != nil {
				return err
			}
			n := math.MaxInt // JSON is complete
			if p.output != "json" {
				n = wording.ShownRows
			}
			list, err := running.List(c.Context(), sel, n)
			if err != nil {
				return err
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, list.Rows)
			}
			if len(list.Rows) == 0 {
				fmt.Fprintln(p.err, "no pending deliveries and no dead letters")
				return nil
			}
			t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "KEY\tSTATE\tEVENT\tVMS\tATTEMPTS\tNEXT\tERROR")
			now, zone := time.Now(), p.zone(c.Context(), s)
			for _, e := range list.Rows {
				state, next := e.State, "-"
				if e.Reason != "" {
					state += " (" + e.Reason + ")"
				}
				switch {
				case !e.Muted.IsZero():
					next = "muted until " + clock.Due(e.Muted, now, zone)
				case e.Next.IsZero():
				case e.Next.After(now):
					next = clock.Due(e.Next, now, zone)
				default:
					next = "in turn"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", e.Key, state, eventWords(e.Delivery),
					wording.Printable(vmWords(e.Resources, "")), e.Attempts, next, wording.Printable(wording.ErrorWords(e.Error)))
			}
			if err := t.Flush(); err != nil {
				return err
			}
			_, err = io.WriteString(p.out, wording.More(list.More, "forewarn outbox list -o json"))
			return err
		},
	})
	c.Flags().StringVar(&sel.Route, "sink", "", "only those of this sink")
	c.Flags().StringVar(&sel.State, "state", "", "pending for pending deliveries only, dead for dead letters only")
	c.Flags().StringVar(&sel.Group, "event", "", "only those of the Azure event with this id (a prefix is enough)")
	return c
}

// eventWords says what a delivery is about: "602D9444 Reboot scheduled", or for an event about forewarn "sink.blocked".
func eventWords(d outbox.Delivery) string {
	if d.Group == "" {
		return strings.TrimPrefix(d.Type, cloudevent.BridgePrefix)
	}
	what := wording.Printable(d.AzureType) + " " + strings.TrimPrefix(d.Type, cloudevent.EventPrefix)
	return fmt.Sprintf("%.8s %s", d.Group, strings.TrimSpace(what))
}

func (p *program) outboxShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show KEY", Short: "Show one delivery and its CloudEvent, as JSON",
		Example: "  forewarn outbox show audit/1795244400000000",
		Args:    cobra.ExactArgs(1), Annotations: map[string]string{argumentSource: "forewarn outbox list shows the keys"},
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == "" {
				return exit(exitUsage, errEmptyKey)
			}
			running, _, err := p.running()
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			shown, err := running.Show(c.Context(), args[0])
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return wording.PrintJSON(p.out, shown)
		},
	}
}

func (p *program) outboxReplayCommand() *cobra.Command {
	var m control.Mutation
	c := p.outputFlag(&cobra.Command{
		Use: "replay KEY… | --all", Short: "Deliver dead letters again, not what was accepted (replay, on a relay)",
		Long: `Makes dead letters pending again, for their own sink or, with --to, for another. It asks the running
forewarn or, if none runs, changes the outbox's file. The history keeps who replayed them. Prints
the deliveries that are pending again. What a sink has been told since of an event that isn't over, the
running forewarn tells it again after them, except with late: drop. With --all, what a sink with
late: drop was to do about an event that is over is left as it is; if no forewarn runs, so is all
about such an event.`,
		Example: "  forewarn outbox replay ops/1795244400000000\n  forewarn outbox replay --all --sink ops --to audit",
		RunE: func(c *cobra.Command, args []string) error {
			m.Keys = args
			return p.mutate(c, m, (*control.Client).Replay)
		},
	})
	c.Flags().StringVar(&m.To, "to", "", "deliver them to this sink instead")
	return mutationFlags(&m, c)
}

func (p *program) outboxDropCommand() *cobra.Command {
	var m control.Mutation
	return mutationFlags(&m, p.outputFlag(&cobra.Command{
		Use: "drop KEY… | --all", Short: "Remove deliveries for good",
		Long: `Removes deliveries for good: dead letters, and with keys also pending deliveries. The history keeps
who dropped them. It asks the running forewarn or, if none runs, changes the outbox's file. Prints
the deliveries that were dropped.`,
		Example: "  forewarn outbox drop ops/1795244400000000\n  forewarn outbox drop --all --sink ops",
		RunE: func(c *cobra.Command, args []string) error {
			m.Keys = args
			return p.mutate(c, m, (*control.Client).Drop)
		},
	}))
}

// mutationFlags adds the flags that replay and drop share.
func mutationFlags(m *control.Mutation, c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&m.All, "all", false, "all dead letters")
	c.Flags().StringVar(&m.Sink, "sink", "", "with --all: only those of this sink")
	return c
}

// mutate carries out m and prints the deliveries that were changed.
func (p *program) mutate(
	c *cobra.Command, m control.Mutation, do func(*control.Client, context.Context, control.Mutation) ([]outbox.Delivery,
		error),
) error {
	switch {
	case m.All == (len(m.Keys) > 0):
		return exit(exitUsage, errors.New("expected either keys, which forewarn outbox list shows, or --all"))
	case slices.Contains(m.Keys, ""):
		return exit(exitUsage, errEmptyKey)
	case m.Sink != "" && !m.All:
		return exit(exitUsage, errors.New("--sink works only with --all; a key names its sink"))
	}
	m.By = p.user()
	running, _, err := p.running()
	if err != nil {
		return err
	}
	entries, err := do(running, c.Context(), m)
	if err != nil {
		return err
	}
	if p.output == "json" {
		return wording.PrintJSON(p.out, append([]outbox.Delivery{}, entries...))
	}
	for _, e := range entries {
		fmt.Fprintf(p.out, "%s  %s\n", e.Key, e.ID)
	}
	left, err := running.List(c.Context(), outbox.Selection{Route: m.Sink, State: outbox.StateDead}, 1)
	switch {
	case err != nil || !m.All:
	case len(left.Rows) > 0:
		why := "the event is over and the sink acts"
		if _, err := running.Status(c.Context()); errors.Is(err, control.ErrNotRunning) {
			why = "the event is over, and only a running forewarn knows which sinks act"
		}
		fmt.Fprintf(p.err, "%s not sent again, because %s; to send one all the same, name its key\n",
			wording.Plural(len(left.Rows)+left.More, "dead letter", "dead letters"), why)
	case len(entries) == 0:
		fmt.Fprintln(p.err, "there are no dead letters")
	}
	return nil
}
