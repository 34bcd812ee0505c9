package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

var errUnknownKey = errors.New("there is no such delivery; forewarn outbox list shows the keys")

// shownEntry is a delivery with its CloudEvent.
type shownEntry struct {
	outbox.Delivery
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// A listedEntry is a delivery, and the machines that its Azure event is about, which only its CloudEvent says.
type listedEntry struct {
	outbox.Delivery
	Resources []string `json:"resources,omitempty"`
}

// listed lists deliveries: of all of them what the outbox has in memory, of at most n also what their CloudEvents say.
func listed(o *outbox.Outbox, sel outbox.Selection, n int) (list []listedEntry, more int) {
	list = []listedEntry{}
	deliveries, more := o.First(sel, n)
	for _, d := range deliveries {
		e := listedEntry{Delivery: d}
		if len(deliveries) <= wording.ShownRows {
			var ce struct {
				Data struct{ Event struct{ Resources []string } }
			}
			if _, body, err := o.Show(d.Key); err == nil { // it may be gone by now
				_ = json.Unmarshal(body, &ce)
				e.Resources = ce.Data.Event.Resources
			}
		}
		list = append(list, e)
	}
	return list, more
}

func (p *program) outboxCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "outbox", Short: "Look at pending deliveries and dead letters",
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
			var list rows[listedEntry]
			zone := time.UTC
			if s, err := p.rootPlaces(); err == nil { // else they are wrong, which is said below
				zone = s.Timezone
			}
			q := url.Values{"sink": {sel.Route}, "state": {sel.State}, "event": {sel.Group}}
			if p.output != "json" {
				q.Set("limit", strconv.Itoa(wording.ShownRows))
			}
			err := p.askOutbox(c.Context(), "/outbox", q, &list, func(o *outbox.Outbox, s *settings.Settings) error {
				list.Rows, list.More = listed(o, sel, limit(q))
				return checkSinks(append(o.Routes(), s.Names...), sel.Route)
			})
			if err != nil {
				return err
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, list.Rows)
			}
			if len(list.Rows) == 0 {
				fmt.Fprintln(p.err, "nothing is pending, and there are no dead letters")
				return nil
			}
			t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "KEY\tSTATE\tEVENT\tMACHINES\tATTEMPTS\tNEXT\tERROR")
			now := time.Now()
			for _, e := range list.Rows {
				state, next := e.State, "-"
				if e.Reason != "" {
					state += " (" + e.Reason + ")"
				}
				switch {
				case e.Next.IsZero():
				case e.Next.After(now):
					next = bridge.ClockTime(e.Next, now, zone)
				default:
					next = "when it is its turn"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", e.Key, state, eventWords(e.Delivery),
					wording.Printable(machines(e.Resources, "")), e.Attempts, next, wording.Printable(wording.ErrorWords(e.Error)))
			}
			if err := t.Flush(); err != nil {
				return err
			}
			_, err = io.WriteString(p.out, wording.More(list.More, "forewarn outbox list -o json"))
			return err
		},
	})
	c.Flags().StringVar(&sel.Route, "sink", "", "only this sink's")
	c.Flags().StringVar(&sel.State, "state", "", "only pending or dead ones")
	c.Flags().StringVar(&sel.Group, "event", "", "only those about the Azure event whose id begins so")
	return c
}

// eventWords say what a delivery tells of: "602D9444 Reboot scheduled", or what happened to forewarn, such as "sink.blocked".
func eventWords(d outbox.Delivery) string {
	if d.Group == "" {
		return strings.TrimPrefix(d.Type, cloudevent.BridgePrefix)
	}
	return fmt.Sprintf("%.8s %s", d.Group, strings.TrimSpace(wording.Printable(d.AzureType)+" "+strings.TrimPrefix(d.Type, cloudevent.EventPrefix)))
}

func (p *program) outboxShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show KEY", Short: "Show one delivery and its CloudEvent, as JSON",
		Example: "  forewarn outbox show audit/1795244400000000",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var shown shownEntry
			err := p.askOutbox(c.Context(), "/outbox/entry", url.Values{"key": args}, &shown, func(o *outbox.Outbox, _ *settings.Settings) error {
				d, body, err := o.Show(args[0])
				if errors.Is(err, outbox.ErrUnknownKey) {
					err = errUnknownKey
				}
				shown = shownEntry{d, body}
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return wording.PrintJSON(p.out, shown)
		},
	}
}

func (p *program) outboxReplayCommand() *cobra.Command {
	var m mutation
	c := p.outputFlag(&cobra.Command{
		Use: "replay KEY… | --all", Short: "Deliver dead letters again",
		Long: `Makes dead letters pending again, for their own sink or, with --to, for another. It asks the running
forewarn or, if none runs, changes the outbox's file. Prints what is pending again.`,
		Example: "  forewarn outbox replay ops/1795244400000000\n  forewarn outbox replay --all --sink ops --to audit",
		RunE: func(c *cobra.Command, args []string) error {
			m.Keys = args
			return p.mutate(c, "/outbox/replay", m, func(o *outbox.Outbox, m mutation) ([]outbox.Delivery, error) { return o.Replay(m.Keys, m.To) })
		},
	})
	c.Flags().StringVar(&m.To, "to", "", "deliver them to this sink instead")
	return m.flags(c)
}

func (p *program) outboxDropCommand() *cobra.Command {
	var m mutation
	return m.flags(p.outputFlag(&cobra.Command{
		Use: "drop KEY… | --all", Short: "Remove deliveries for good",
		Long: `Removes deliveries for good: dead letters, or by their keys also pending ones. Who dropped them
stays on record. It asks the running forewarn or, if none runs, changes the outbox's file. Prints
what was dropped.`,
		Example: "  forewarn outbox drop ops/1795244400000000\n  forewarn outbox drop --all --sink ops",
		RunE: func(c *cobra.Command, args []string) error {
			m.Keys = args
			return p.mutate(c, "/outbox/drop", m, func(o *outbox.Outbox, m mutation) ([]outbox.Delivery, error) { return o.Drop(m.Keys, m.By) })
		},
	}))
}

// A mutation is what replay and drop ask for. All stands for all dead letters, of one sink if it is named.
type mutation struct {
	Keys []string `json:"keys"`
	All  bool     `json:"all"`
	Sink string   `json:"sink"`
	To   string   `json:"to"`
	By   string   `json:"by"`
}

func (m *mutation) flags(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&m.All, "all", false, "all dead letters")
	c.Flags().StringVar(&m.Sink, "sink", "", "with --all: only this sink's")
	return c
}

// checkSinks refuses a name that is none of the known sinks. An empty name is no name.
func checkSinks(known []string, named ...string) error {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	for _, name := range named {
		switch {
		case name == "" || slices.Contains(known, name):
		case len(known) == 0:
			return fmt.Errorf("no sink is called %q; there are none", name)
		default:
			return fmt.Errorf("no sink is called %q; there are %s", name, inWords(known))
		}
	}
	return nil
}

// inWords is a list in words.
func inWords(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// find fills in the keys that --all stands for.
func (m *mutation) find(o *outbox.Outbox) {
	if m.All {
		for _, e := range o.List(outbox.Selection{Route: m.Sink, State: outbox.StateDead}) {
			m.Keys = append(m.Keys, e.Key)
		}
	}
}

// mutate has the running bridge do it, or does it on the file.
func (p *program) mutate(c *cobra.Command, path string, m mutation, do func(*outbox.Outbox, mutation) ([]outbox.Delivery, error)) error {
	switch {
	case m.All == (len(m.Keys) > 0):
		return exit(exitUsage, errors.New("expected either keys or --all"))
	case m.Sink != "" && !m.All:
		return exit(exitUsage, errors.New("--sink goes with --all; a key names its sink"))
	}
	m.By = p.user()
	var entries []outbox.Delivery
	err := p.tellOutbox(c.Context(), path, m, &entries, func(o *outbox.Outbox, s *settings.Settings) (err error) {
		if err := checkSinks(append(o.Routes(), s.Names...), m.Sink, m.To); err != nil {
			return err
		}
		m.find(o)
		entries, err = do(o, m)
		return err
	})
	if err != nil {
		return err
	}
	if p.output == "json" {
		return wording.PrintJSON(p.out, append([]outbox.Delivery{}, entries...))
	}
	for _, e := range entries {
		fmt.Fprintf(p.out, "%s  %s\n", e.Key, e.ID)
	}
	if len(entries) == 0 {
		fmt.Fprintln(p.err, "there are no dead letters")
	}
	return nil
}

// openOutbox opens the outbox's file to change it, while no bridge has it.
func openOutbox(s *settings.Settings, log *slog.Logger, f func(*outbox.Outbox) error) error {
	if err := readOutbox(s, func(*outbox.Outbox) error { return nil }); err != nil {
		return err
	}
	o, err := outbox.Open(s.State, outbox.Options{Log: log})
	if err != nil {
		return exit(exitTryAgain, err)
	}
	return errors.Join(f(o), o.Close())
}

// readOutbox opens the outbox's file while no bridge has it.
func readOutbox(s *settings.Settings, f func(*outbox.Outbox) error) error {
	o, err := outbox.OpenReadOnly(s.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return exit(exitUnavailable, fmt.Errorf("no forewarn runs, and there is no outbox in %s; name the settings with --config", s.State))
	case errors.Is(err, outbox.ErrLocked):
		return exit(exitTryAgain, fmt.Errorf("a forewarn holds the outbox in %s but does not answer on its control socket", s.State))
	case err != nil:
		return err
	}
	return errors.Join(f(o), o.Close())
}
