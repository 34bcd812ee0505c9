package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
)

func (p *program) statusCommand() *cobra.Command {
	var again bool
	c := p.outputFlag(&cobra.Command{
		Use: "status", Short: "Show how the running forewarn is doing",
		Example: "  forewarn status\n  forewarn status --watch\n  forewarn status -o json | jq .sinks",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if again && p.output == "json" {
				return exit(exitUsage, errors.New("--watch is for people; without it, -o json prints one value"))
			}
			s, err := p.places()
			if err != nil {
				return err
			}
			if again {
				ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
				defer stop()
				return p.watchStatus(ctx, s)
			}
			var st bridge.Status
			if err := p.askControl(c.Context(), s, "/status", nil, &st); err != nil {
				return err
			}
			if p.output == "json" {
				return printJSON(p.out, st)
			}
			return printStatus(p.out, st, time.Now())
		},
	})
	c.Flags().BoolVar(&again, "watch", false, "show it again every second, in place, until interrupted")
	return c
}

// watchStatus shows the status again and again, until ctx is done. There must be a bridge at first; then it may go away
// and come back.
func (p *program) watchStatus(ctx context.Context, s *settings) error {
	f, ok := p.out.(*os.File)
	w := watch{out: p.out, inPlace: ok && term.IsTerminal(int(f.Fd()))}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var st bridge.Status
		err := p.askControl(ctx, s, "/status", nil, &st)
		if ctx.Err() != nil {
			return nil
		} else if err != nil && w.last == "" {
			return err
		} else if err := w.show(st, err, time.Now()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A watch shows one status after the other. On a terminal each replaces the one before; elsewhere they follow each
// other, and that a bridge is away is said once.
type watch struct {
	out     io.Writer
	inPlace bool
	last    string    // the last status
	away    time.Time // since when there was none; zero while there is one
}

// show shows the status st, or, if err says that nobody answers, that and the status before.
func (w *watch) show(st bridge.Status, err error, now time.Time) error {
	var screen strings.Builder
	switch wasAway := !w.away.IsZero(); {
	case err == nil:
		var status strings.Builder
		if err := printStatus(&status, st, now); err != nil {
			return err
		}
		w.last = status.String()
		if wasAway {
			fmt.Fprintf(&screen, "forewarn answers again, after %s\n\n", ago(now, w.away))
		}
		w.away = time.Time{}
		screen.WriteString(w.last)
	case wasAway && !w.inPlace:
		return nil
	default:
		if !wasAway {
			w.away = now
		}
		fmt.Fprintf(&screen, "FOREWARN DOES NOT ANSWER since %s: %v\n", w.away.UTC().Format("15:04:05 UTC"), err)
		if w.inPlace {
			fmt.Fprintf(&screen, "\nIts last status, %s old:\n\n%s", ago(now, w.away), w.last)
		}
	}
	text := screen.String() + "\n"
	if w.inPlace { // home, each line cleared to its end, then all below
		text = "\x1b[H" + strings.ReplaceAll(screen.String(), "\n", "\x1b[K\n") + "\x1b[J"
	}
	_, err = io.WriteString(w.out, text)
	return err
}

// shownID is the EventId of an event as Azure sent it.
func shownID(raw json.RawMessage) string {
	var a struct{ EventID string }
	_ = json.Unmarshal(raw, &a) // one of another type stays empty
	return a.EventID
}

// printStatus shows the status to people.
func printStatus(w io.Writer, s bridge.Status, now time.Time) error {
	var b strings.Builder
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY: " + strings.Join(s.Reasons, "; ")
	}
	name := s.Observer.Name
	if name == "" {
		name = "(this VM's name is not known yet)"
	}
	fmt.Fprintf(&b, "%s  %s, forewarn %s, up %s\n", name, ready, s.Version, ago(now, s.StartedAt))
	answered := "has not answered yet"
	if !s.IMDS.LastAnswer.IsZero() {
		answered = "answered " + ago(now, s.IMDS.LastAnswer) + " ago"
	}
	fmt.Fprintf(&b, "endpoint  %s, api-version %s, %s", s.IMDS.Endpoint, s.IMDS.APIVersion, answered)
	if s.IMDS.LastError != "" {
		fmt.Fprintf(&b, "; now: %s", s.IMDS.LastError)
	}
	fmt.Fprintf(&b, "\noutbox    %d owed, %d dead letters, %d KiB", s.Outbox.Pending, s.Outbox.DeadLetters, s.Outbox.Bytes>>10)
	if !s.Outbox.Durable {
		fmt.Fprintf(&b, "; NOT ON DISK: %s", s.Outbox.Error)
	}
	if s.Settings.LastError != "" {
		fmt.Fprintf(&b, "\nsettings  the newest were refused, older ones are in force: %s", s.Settings.LastError)
	}
	b.WriteString("\n\n")

	if len(s.Events) == 0 {
		b.WriteString("Azure has announced nothing.\n")
	} else {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "EVENT\tTYPE\tSTATE\tNOT BEFORE\tMACHINES")
		for _, e := range s.Events {
			var a struct {
				EventID, EventType, EventStatus string
				Resources                       []string
			}
			_ = json.Unmarshal(e.Event, &a) // a field of another type stays empty
			when := "-"
			if !e.NotBefore.IsZero() {
				when = e.NotBefore.Format("2006-01-02 15:04:05 UTC")
				if e.SecondsLeft > 0 {
					when += " (in " + span(time.Duration(e.SecondsLeft*float64(time.Second))) + ")"
				}
			}
			machines := strings.Join(a.Resources, ", ")
			if e.AffectsSelf {
				machines += "  <- this VM"
			}
			fmt.Fprintf(t, "%.8s\t%s\t%s\t%s\t%s\n", printable(a.EventID), printable(a.EventType), printable(a.EventStatus), when, printable(machines))
		}
		t.Flush()
		for _, e := range s.Events {
			if e.Approval != "" {
				fmt.Fprintf(&b, "%.8s is not approved: %s\n", printable(shownID(e.Event)), printable(e.Approval))
			}
		}
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SINK\tKIND\tSTATE\tOWED\tDELIVERED\tDEAD\tLAST ACCEPTED\tERROR")
	for _, k := range s.Sinks {
		accepted := "-"
		if !k.LastAccepted.IsZero() {
			accepted = ago(now, k.LastAccepted) + " ago"
		}
		owed := fmt.Sprint(k.Pending)
		if k.Pending > 0 {
			owed += " (oldest " + span(time.Duration(k.OldestPendingSeconds*float64(time.Second))) + ")"
		}
		failed := printable(k.LastError)
		if !k.NextAttempt.IsZero() {
			failed += "; next try in " + span(k.NextAttempt.Sub(now))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", k.Name, k.Kind, k.State, owed, k.Delivered, k.DeadLetters, accepted, strings.TrimPrefix(failed, "; "))
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

func ago(now, t time.Time) string { return span(now.Sub(t)) }

// span is a duration in the two largest of its units.
func span(d time.Duration) string {
	d = max(0, d.Round(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
