package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) statusCommand() *cobra.Command {
	var again bool
	c := p.outputFlag(&cobra.Command{
		Use: "status", Short: "Show how the running forewarn is doing",
		Long:    "Shows how the running forewarn is doing. Not ready: exit 1, so that a script notices. Nobody answers: exit 69.",
		Example: "  forewarn status\n  forewarn status --watch\n  forewarn status -o json | jq .sinks",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if again && p.output == "json" {
				return exit(exitUsage, errors.New("--watch is for people; without it, -o json prints one value"))
			}
			running, s, err := p.running()
			if err != nil {
				return err
			}
			if again {
				ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
				defer stop()
				return p.watchStatus(ctx, running, s.Timezone)
			}
			st, err := running.Status(c.Context())
			if err != nil {
				return err
			}
			if p.output == "json" {
				err = wording.PrintJSON(p.out, st)
			} else {
				now := time.Now()
				_, err = io.WriteString(p.out, statusText(st, now, now, s.Timezone))
			}
			if err != nil || st.Ready {
				return err
			}
			return errors.New("not ready")
		},
	})
	c.Flags().BoolVar(&again, "watch", false, "show it again every second, in place, until interrupted")
	return c
}

// watchStatus shows the status again and again, until ctx is done. There must be a bridge at first; then it may go away
// and come back. On a terminal it takes the screen, gives it back at the end, and leaves the last status there.
func (p *program) watchStatus(ctx context.Context, running *control.Client, zone *time.Location) error {
	w := watch{out: p.out, zone: zone}
	if t, ok := p.out.(*terminal); ok && p.getenv("TERM") != "dumb" && obeysControls(t.file) {
		w.out = t.file
		w.size = func() (int, int) {
			width, height, err := term.GetSize(int(t.file.Fd()))
			if err != nil || width < 1 || height < 1 {
				return 80, 24
			}
			return width, height
		}
	}
	defer w.leave()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		st, err := running.Status(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil && w.heard.IsZero() {
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
	out  io.Writer
	zone *time.Location
	size func() (width, height int) // of the terminal; nil when out is none

	last  bridge.Status
	heard time.Time // when the last status was; zero before the first
	away  time.Time // since when there was none; zero while there is one
	held  bool      // the screen
}

// The screen is taken as editors do, so that what stood there comes back; a line too long for it is not wrapped.
const (
	takeScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	giveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// show shows the status st, or, if err says that nobody answers, that and the status before.
func (w *watch) show(st bridge.Status, err error, now time.Time) error {
	var text strings.Builder
	switch wasAway := !w.away.IsZero(); {
	case err == nil:
		if wasAway {
			fmt.Fprintf(&text, "forewarn answers again, after %s\n\n", wording.Ago(now, w.away))
		}
		w.last, w.heard, w.away = st, now, time.Time{}
		text.WriteString(statusText(st, now, now, w.zone))
	case wasAway && w.size == nil:
		return nil
	default:
		if !wasAway {
			w.away = now
		}
		fmt.Fprintf(&text, "FOREWARN DOES NOT ANSWER since %s, trying again: %v\n", bridge.ClockTime(w.away, now, w.zone), err)
		if w.size != nil {
			fmt.Fprintf(&text, "\nIts last status, %s old:\n\n%s", wording.Ago(now, w.heard), statusText(w.last, w.heard, now, w.zone))
		}
	}
	if w.size == nil {
		_, err = fmt.Fprintln(w.out, text.String())
		return err
	}
	width, height := w.size()
	lines := fit(visible(text.String()), width, height)
	lines = append(lines, make([]string, height-len(lines))...)
	screen := "\x1b[H\x1b[K" + strings.Join(lines, "\r\n\x1b[K") // from the top, each line cleared before it is written
	if !w.held {
		screen, w.held = takeScreen+screen, true
	}
	_, err = io.WriteString(w.out, screen)
	return err
}

// leave gives the screen back and leaves the last status on it, in full.
func (w *watch) leave() {
	if !w.held {
		return
	}
	w.held = false
	_, _ = io.WriteString(w.out, giveScreen+visible(statusText(w.last, w.heard, w.heard, w.zone)))
}

// fit gives the lines of text that a screen shows. Details, which are indented, are wrapped if there is room for all of
// them; else every line is cut, and if there are still too many, the last says so.
func fit(text string, width, height int) []string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var wrapped, short []string
	for _, line := range lines {
		short = append(short, wording.Cut(line, width))
		if strings.HasPrefix(line, " ") {
			wrapped = append(wrapped, wrap(line, width)...)
		} else {
			wrapped = append(wrapped, wording.Cut(line, width))
		}
	}
	switch {
	case len(wrapped) <= height:
		return wrapped
	case len(short) <= height:
		return short
	}
	more := fmt.Sprintf("and %s; a higher window or forewarn status shows all", wording.Plural(len(short)-height+1, "line more", "lines more"))
	return append(short[:height-1], wording.Cut(more, width))
}

// wrap breaks a line at blanks, or within a word that is longer than the width. What follows is as indented as the line.
func wrap(line string, width int) []string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if len(indent) > width/2 {
		return []string{wording.Cut(line, width)}
	}
	var all []string
	rest := []rune(line)
	for len(rest) > width {
		end := width
		for i := width; i > len(indent); i-- {
			if rest[i] == ' ' {
				end = i
				break
			}
		}
		all = append(all, string(rest[:end]))
		rest = []rune(indent + strings.TrimLeft(string(rest[end:]), " "))
	}
	return append(all, string(rest))
}

// statusText is a status for people, as it was heard; that its events come nearer until now is seen. What concerns one
// thing stands indented below it. Those who need somebody, and events that are near, come first.
func statusText(s bridge.Status, heard, now time.Time, zone *time.Location) string {
	var b strings.Builder
	detail := func(format string, args ...any) { fmt.Fprintf(&b, "          "+format+"\n", args...) }
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY"
	}
	needing := 0
	for _, k := range s.Sinks {
		if wording.NeedsSomebody(k, heard) {
			needing++
		}
	}
	if needing > 0 {
		ready += ", " + wording.Plural(needing, "SINK NEEDS YOU", "SINKS NEED YOU")
	}
	name := "(this VM's name is not known yet)"
	if s.Observer.Name != "" {
		name = wording.Printable(s.Observer.Name)
	}
	fmt.Fprintf(&b, "%s  %s, forewarn %s, up %s\n", name, ready, wording.Printable(s.Version), wording.Ago(heard, s.StartedAt))
	for _, reason := range s.Reasons {
		detail("%s", wording.Printable(reason))
	}
	for _, warning := range s.Warnings {
		detail("%s", wording.Printable(warning))
	}
	answered := "has not answered yet"
	if !s.IMDS.LastAnswer.IsZero() {
		answered = "answered " + wording.Ago(heard, s.IMDS.LastAnswer) + " ago"
	}
	fmt.Fprintf(&b, "endpoint  %s, %s, api-version %s\n", answered, wording.Printable(s.IMDS.Endpoint), wording.Printable(s.IMDS.APIVersion))
	if s.IMDS.LastError != "" {
		detail("now: %s", wording.Printable(s.IMDS.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		detail("%s in Azure's document: %s", wording.Plural(n, "problem", "problems"), wording.Printable(s.IMDS.Problems[0]))
	}
	fmt.Fprintf(&b, "outbox    %d pending, %s, %d KiB\n", s.Outbox.Pending,
		wording.Plural(s.Outbox.DeadLetters, "dead letter", "dead letters"), s.Outbox.Bytes>>10)
	if !s.Outbox.Durable {
		detail("NOT ON DISK: %s", wording.Printable(s.Outbox.Error))
	}
	if s.Settings.LastError != "" {
		b.WriteString("settings  the newest were refused, older ones are in force\n")
		detail("%s", wording.Printable(s.Settings.LastError))
	}
	b.WriteByte('\n')
	b.WriteString(eventsText(s, now, zone))
	b.WriteByte('\n')
	b.WriteString(sinksText(s, heard))
	return b.String()
}

// eventsText are the events that are not over, those that have begun first, then the nearest.
func eventsText(s bridge.Status, now time.Time, zone *time.Location) string {
	if len(s.Events) == 0 {
		switch {
		case s.IMDS.LastAnswer.IsZero():
			return "What Azure announces is not known yet.\n"
		case s.IMDS.LastError != "":
			return "Azure does not answer; it had announced nothing.\n"
		}
		return "Azure announces nothing.\n"
	}
	rows := []string{"EVENT\tTYPE\tSTATE\tDUE\tNOT BEFORE\tMACHINES"}
	var details []string
	for _, e := range wording.First(wording.ByUrgency(s.Events), wording.ShownRows) {
		a := wording.ReadEvent(e.Event)
		state, due, when := wording.Printable(a.EventStatus), "-", "-"
		if !e.NotBefore.IsZero() {
			due, when = "due now", bridge.ClockTime(e.NotBefore, now, zone)
			if left := e.NotBefore.Sub(now); left >= time.Second {
				due = "in " + wording.Span(left)
			}
		}
		if e.Approved != nil && a.EventStatus != wording.Started {
			state, due = "approved "+wording.Ago(now, e.Approved.At)+" ago by "+wording.Printable(e.Approved.By), "any moment"
		}
		rows = append(rows, fmt.Sprintf("%.8s\t%s\t%s\t%s\t%s\t%s", wording.Printable(a.EventID), wording.Printable(a.EventType), state, due, when,
			wording.Printable(machines(a.Resources, s.Observer.Name))))
		detail := ""
		if e.Approval != "" {
			detail = "not approved: " + wording.Printable(e.Approval)
		}
		details = append(details, detail)
	}
	return table(rows, details) + wording.More(len(s.Events)-len(details), "forewarn status -o json")
}

// machines names those that an event hits, this VM first.
func machines(all []string, self string) string {
	var names []string
	for _, name := range all {
		if (imds.Event{Resources: []string{name}}).Affects(self) {
			names = slices.Insert(names, 0, "this VM")
		} else {
			names = append(names, name)
		}
	}
	if more := len(names) - wording.ShownVMs; more > 0 {
		names = append(names[:wording.ShownVMs], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// sinksText are the sinks, those that need somebody first.
func sinksText(s bridge.Status, heard time.Time) string {
	if len(s.Sinks) == 0 {
		return "No sink is configured, so nobody is told.\n"
	}
	rows := []string{"SINK\tSTATE\tPENDING\tLAST DELIVERY\tDELIVERED\tDEAD LETTERS\tKIND"}
	var details []string
	for _, k := range wording.First(wording.ByNeed(s.Sinks, heard), wording.ShownRows) {
		state, class := wording.SinkState(k, heard)
		if class == bridge.SinkIsBlocked {
			state = strings.ToUpper(state)
		}
		told := "-"
		if !k.LastAccepted.IsZero() {
			told = wording.Ago(heard, k.LastAccepted) + " ago"
		}
		owed := fmt.Sprint(k.Pending)
		if k.Pending > 0 {
			owed += ", for " + wording.Span(time.Duration(k.OldestPendingSeconds*float64(time.Second)))
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", wording.Printable(k.Name), state, owed, told, k.Delivered, k.DeadLetters, wording.Printable(k.Kind)))
		detail := wording.ErrorWords(k.LastError)
		switch {
		case detail == "" || k.Pending == 0:
		case k.NextAttempt.IsZero():
			detail = "trying now; before: " + detail
		default:
			detail = "next try in " + wording.Span(k.NextAttempt.Sub(heard)) + ": " + detail
		}
		details = append(details, detail)
	}
	return table(rows, details) + wording.More(len(s.Sinks)-len(details), "forewarn status -o json")
}

// table aligns rows, the first of which is their heading, and puts the details of each of the others below it.
func table(rows, details []string) string {
	var aligned strings.Builder
	t := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, strings.Join(rows, "\n"))
	t.Flush()
	var b strings.Builder
	for i, line := range strings.Split(aligned.String(), "\n") {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		if i > 0 && details[i-1] != "" {
			b.WriteString("  " + details[i-1] + "\n")
		}
	}
	return b.String()
}
