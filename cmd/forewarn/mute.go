package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/mutes"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) muteCommand() *cobra.Command {
	var m bridge.Mute
	var all, everything bool
	var length string
	c := p.outputFlag(&cobra.Command{
		Use: "mute [--sink NAME | --all | --everything]", Short: "Hold messages back for a while",
		Long: `Holds back what sinks would get until the time is over, somebody ends it with unmute, or the
settings no longer have the sink. It asks the running forewarn, on a VM or a relay, and outlives its
restarts. It prints the id of the mute, and which sinks it is for.

Without --sink it mutes all sinks for people: slack, email, services for people or incidents such as
teams and pagerduty, and each webhook that has bridge: trouble. Files, NATS, syslog, commands and other
services go on: name one of them with --sink, or mute every sink with --everything.

What waits is delivered at the end: to people the latest of each event, as one message; to programs
each CloudEvent. It is not late then, and does not go to a fallback meanwhile. Rules of approve wait
for the sinks they name.

Preempt and Terminate pass unless --type names them, and so do heartbeats. With --vm, an event waits
if all VMs that it names match; messages of the forewarn of a VM about itself pass.`,
		Example: "  forewarn mute --sink ops-chat --for 2h --reason \"replacing disks\"\n" +
			"  forewarn mute --all --for 1d --vm 'vm-db-*' --type reboot,redeploy --reason \"load test\"\n" +
			"  forewarn mute list",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, ok := settings.ParseDuration(length)
			switch {
			case m.Sink != "" && (all || everything), all && everything:
				return exit(exitUsage, errors.New("expected only one of --sink NAME, --all and --everything"))
			case length == "":
				return exit(exitUsage, errors.New("expected how long, such as --for 2h; at most 30d"))
			case !ok || d <= 0 || d > mutes.Longest:
				return exit(exitUsage, fmt.Errorf("--for %s: expected a duration such as 45m, 2h or 3d, at most 30d", length))
			case strings.TrimSpace(m.Reason) == "":
				return exit(exitUsage, errors.New(`expected the reason, such as --reason "replacing disks"`))
			}
			if _, err := mutes.New(m, d, nil, time.Now()); err != nil {
				return exit(exitUsage, err)
			}
			running, s, err := p.running()
			if err != nil {
				return err
			}
			m.By, m.People = p.user(), m.Sink == "" && !everything
			muted, err := running.Mute(c.Context(), control.MuteRequest{Mute: m, For: d})
			if err != nil {
				return err
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, muted)
			}
			fmt.Fprintf(p.out, "%s  %s until %s\n", muted.ID, wording.Muted(muted.Mute, muted.Sinks),
				clock.Due(muted.Until, time.Now(), p.zone(c.Context(), s)))
			if m.People {
				fmt.Fprintln(p.err, "other sinks go on, such as files, NATS and commands; --everything mutes them too")
			}
			fmt.Fprintf(p.err, "what comes until then waits; to end it:\n  forewarn unmute %s\n", muted.ID)
			return nil
		},
	})
	c.Flags().StringVar(&m.Sink, "sink", "", "the sink that is to get nothing")
	c.Flags().BoolVar(&all, "all", false, "all sinks for people, as without --sink")
	c.Flags().BoolVar(&everything, "everything", false, "all sinks, also files, NATS and commands")
	c.Flags().StringVar(&length, "for", "", "how long, such as 45m, 2h or 3d; at most 30d")
	c.Flags().StringVar(&m.VM, "vm", "", "only events of VMs whose names match this pattern, such as 'vm-db-*'")
	c.Flags().StringSliceVar(&m.Types, "type", nil,
		"only events of these types: "+strings.ToLower(strings.Join(bridge.TypesValues, ", ")))
	c.Flags().StringVar(&m.Reason, "reason", "", "the reason, which stays on record with your name")
	c.AddCommand(p.muteListCommand())
	return c
}

func (p *program) muteListCommand() *cobra.Command {
	return p.outputFlag(&cobra.Command{
		Use: "list", Short: "List the mutes of the running forewarn",
		Example: "  forewarn mute list\n  forewarn mute list -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			running, _, err := p.running()
			if err != nil {
				return err
			}
			st, err := running.Status(c.Context())
			if err != nil {
				return err
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, append([]*bridge.Mute{}, st.Mutes...))
			}
			if len(st.Mutes) == 0 {
				fmt.Fprintln(p.err, "nothing is muted")
				return nil
			}
			t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "ID\tMUTED\tUNTIL\tLEFT\tBY\tREASON")
			now, zone := time.Now(), st.Settings.Location()
			for _, m := range st.Mutes {
				what := wording.Muted(*m, wording.MutedSinks(*m, st.Sinks))
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, what, clock.Due(m.Until, now, zone),
					wording.Span(m.Until.Sub(now)), wording.Printable(m.By), wording.Printable(m.Reason))
			}
			return t.Flush()
		},
	})
}

func (p *program) unmuteCommand() *cobra.Command {
	r := control.UnmuteRequest{}
	c := p.outputFlag(&cobra.Command{
		Use: "unmute ID... | --all", Short: "End mutes, and deliver what waited",
		Long:    "Ends mutes of the running forewarn, and prints them. What waited is delivered at once.",
		Example: "  forewarn unmute tk3x9q\n  forewarn unmute --all",
		RunE: func(c *cobra.Command, args []string) error {
			if r.All == (len(args) > 0) {
				return exit(exitUsage, errors.New("expected either ids, which forewarn mute list shows, or --all"))
			}
			running, _, err := p.running()
			if err != nil {
				return err
			}
			r.IDs, r.By = args, p.user()
			ended, err := running.Unmute(c.Context(), r)
			if err != nil {
				return err
			}
			if p.output == "json" {
				return wording.PrintJSON(p.out, ended)
			}
			for _, m := range ended {
				fmt.Fprintf(p.out, "%s  %s\n", m.ID, wording.Muted(m, nil))
			}
			if len(ended) == 0 {
				fmt.Fprintln(p.err, "nothing is muted")
			}
			return nil
		},
	})
	c.Flags().BoolVar(&r.All, "all", false, "all mutes")
	return c
}

// muteNotes says which mutes the running forewarn has.
func muteNotes(st bridge.Status) (notes []string) {
	for _, m := range st.Mutes {
		note := wording.MuteNote(*m, st.Sinks, time.Now(), st.Settings.Location())
		notes = append(notes, "muted: "+note+"; to end it: forewarn unmute "+m.ID)
	}
	return notes
}
