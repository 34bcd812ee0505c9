package main

import (
	"cmp"
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
	var watch bool
	c := p.outputFlag(&cobra.Command{
		Use: "status", Short: "Show how the running forewarn is doing",
		Long: `Shows how the running forewarn is doing: the endpoint, the outbox, open events and sinks.

Exit code: 0 when it is ready, 1 when it is not, 69 when no forewarn answers.`,
		Example: "  forewarn status\n  forewarn status --watch\n  forewarn status -o json | jq .sinks",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch && p.output == "json" {
				return exit(exitUsage, errors.New("--watch does not work with -o json"))
			}
			running, s, err := p.running()
			if err != nil {
				return err
			}
			if watch {
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
	c.Flags().BoolVar(&watch, "watch", false, "update every second until interrupted")
	return c
}

// watchStatus shows the status every second until ctx is done. A forewarn must run at the start; later it may stop and
// come back. On a terminal the status fills the screen, and at the end the last status stays below the earlier content.
func (p *program) watchStatus(ctx context.Context, running *control.Client, zone *time.Location) error {
	w := statusWatch{out: p.out, zone: zone}
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

// A statusWatch shows one status after the other. On a terminal each replaces the one before. Elsewhere they follow
// each other, and an outage of forewarn is printed once.
type statusWatch struct {
	out  io.Writer
	zone *time.Location
	size func() (width, height int) // of the terminal; nil if out is none

	last     bridge.Status
	heard    time.Time // when last was received; zero before the first status
	away     time.Time // when forewarn stopped answering; zero while it answers
	onScreen bool      // the alternate screen is in use
}

// Control sequences that switch to the alternate screen, as editors do, and back. While there, the cursor is hidden and
// long lines are not wrapped.
const (
	takeScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	giveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// show shows the status st; if err is not nil, it shows the error and the last status.
func (w *statusWatch) show(st bridge.Status, err error, now time.Time) error {
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
		fmt.Fprintf(&text, "FOREWARN DOES NOT ANSWER since %s, trying again: %v\n", bridge.ClockTime(w.away, now, w.zone),
			err)
		if w.size != nil {
			fmt.Fprintf(&text, "\nIts last status, %s old:\n\n%s",
				wording.Ago(now, w.heard), statusText(w.last, w.heard, now, w.zone))
		}
	}
	if w.size == nil {
		_, err = fmt.Fprintln(w.out, text.String())
		return err
	}
	width, height := w.size()
	lines := fit(visible(text.String()), width, height)
	lines = append(lines, make([]string, height-len(lines))...)
	screen := "\x1b[H\x1b[K" + strings.Join(lines, "\r\n\x1b[K") // go to the top; clear each line before writing it
	if !w.onScreen {
		screen, w.onScreen = takeScreen+screen, true
	}
	_, err = io.WriteString(w.out, screen)
	return err
}

// leave switches back from the alternate screen and prints the last status in full.
func (w *statusWatch) leave() {
	if !w.onScreen {
		return
	}
	w.onScreen = false
	_, _ = io.WriteString(w.out, giveScreen+visible(statusText(w.last, w.heard, w.heard, w.zone)))
}

// fit returns the lines of text for a screen of this size. It wraps the indented details if all of them fit. Otherwise
// it cuts every line, and if there are still too many, the last line says so.
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
	more := fmt.Sprintf("and %s; enlarge the window, or run forewarn status",
		wording.Plural(len(short)-height+1, "more line", "more lines"))
	return append(short[:height-1], wording.Cut(more, width))
}

// wrap breaks a line at spaces, or within a word longer than the width. The following lines keep its indentation.
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

// statusText formats a status that was received at heard; countdowns of events run until now. Details are indented
// below their subject. Sinks that need somebody, and the nearest events, come first.
func statusText(s bridge.Status, heard, now time.Time, zone *time.Location) string {
	var b strings.Builder
	detail := func(format string, args ...any) { fmt.Fprintf(&b, "          "+format+"\n", args...) }
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY"
	}
	needYou := 0
	for _, k := range s.Sinks {
		if wording.NeedsSomebody(k, heard) {
			needYou++
		}
	}
	if needYou > 0 {
		ready += ", " + wording.Plural(needYou, "SINK NEEDS YOU", "SINKS NEED YOU")
	}
	name := "(VM name not known yet)"
	switch {
	case s.Relay != nil:
		name = "relay " + wording.Printable(s.Relay.Name)
	case s.Observer.Name != "":
		name = wording.Printable(s.Observer.Name)
	}
	fmt.Fprintf(&b, "%s  %s, forewarn %s, up %s\n", name, ready, wording.Printable(s.Version),
		wording.Ago(heard, s.StartedAt))
	for _, reason := range s.Reasons {
		detail("%s", wording.Printable(reason))
	}
	for _, warning := range s.Warnings {
		detail("%s", wording.Printable(warning))
	}
	if s.Relay != nil {
		b.WriteString(relayText(s, heard, zone))
	} else {
		b.WriteString(endpointText(s, heard))
	}
	if s.Settings.LastError != "" {
		b.WriteString("settings  the newest are wrong; older ones are in force\n")
		detail("%s", wording.Printable(s.Settings.LastError))
	}
	b.WriteByte('\n')
	b.WriteString(eventsText(s, now, zone))
	b.WriteByte('\n')
	b.WriteString(sinksText(s, heard))
	return b.String()
}

// endpointText formats how the endpoint and the outbox are doing.
func endpointText(s bridge.Status, heard time.Time) string {
	var b strings.Builder
	detail := func(format string, args ...any) { fmt.Fprintf(&b, "          "+format+"\n", args...) }
	answered := "has not answered yet"
	if !s.IMDS.LastAnswer.IsZero() {
		answered = "answered " + wording.Ago(heard, s.IMDS.LastAnswer) + " ago"
	}
	fmt.Fprintf(&b, "endpoint  %s, %s, api-version %s\n",
		answered, wording.Printable(s.IMDS.Endpoint), wording.Printable(s.IMDS.APIVersion))
	if s.IMDS.LastError != "" {
		detail("now: %s", wording.Printable(s.IMDS.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		detail("%s in Azure's document: %s",
			wording.Plural(n, "problem", "problems"), wording.Printable(s.IMDS.Problems[0]))
	}
	fmt.Fprintf(&b, "outbox    %d pending, %s, %d KiB\n", s.Outbox.Pending,
		wording.Plural(s.Outbox.DeadLetters, "dead letter", "dead letters"), s.Outbox.Bytes>>10)
	if !s.Outbox.Durable {
		detail("NOT ON DISK: %s", wording.Printable(s.Outbox.Error))
	}
	return b.String()
}

// relayText formats what a relay knows beside its sinks: the other relays, and the VMs, those with an event first.
func relayText(s bridge.Status, heard time.Time, zone *time.Location) string {
	var b strings.Builder
	var others []string
	for _, p := range s.Relay.Relays {
		others = append(others, wording.Printable(p.Name))
	}
	fmt.Fprintf(&b, "relays    %s, on stream %s\n", strings.Join(others, ", "), wording.Printable(s.Relay.Stream))
	fmt.Fprintf(&b, "pending   %d for the sinks that this relay serves, %s\n", s.Outbox.Pending,
		wording.Plural(s.Outbox.DeadLetters, "dead letter", "dead letters"))
	fmt.Fprintf(&b, "fleet     %s\n", wording.Plural(len(s.Relay.VMs), "VM", "VMs"))
	if len(s.Relay.VMs) == 0 {
		return b.String()
	}
	b.WriteByte('\n')
	rows := []string{"VM\tSET\tGROUP\tLAST HEARD\tEVENT\tNOT BEFORE"}
	shown := wording.First(s.Relay.VMs, wording.ShownRows)
	for _, v := range shown {
		last, event, when := "never", "-", "-"
		if !v.Heard.IsZero() {
			last = wording.Ago(heard, v.Heard) + " ago"
		}
		if len(v.Events) > 0 {
			event = fmt.Sprintf("%.8s", v.Events[0])
			if more := len(v.Events) - 1; more > 0 {
				event += fmt.Sprintf(" and %d more", more)
			}
		}
		switch {
		case v.Started:
			when = "started"
		case !v.NotBefore.IsZero():
			when = bridge.ClockTime(v.NotBefore, heard, zone)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", wording.Printable(v.Name), orDash(v.Set),
			orDash(v.Group), last,
			wording.Printable(event), when))
	}
	b.WriteString(table(rows, make([]string, len(shown))))
	b.WriteString(wording.More(len(s.Relay.VMs)-len(shown), "forewarn status -o json"))
	return b.String()
}

func orDash(s string) string { return cmp.Or(wording.Printable(s), "-") }

// eventsText formats the open events: those that have started first, then the nearest.
func eventsText(s bridge.Status, now time.Time, zone *time.Location) string {
	if len(s.Events) == 0 {
		switch {
		case s.Relay != nil:
		case s.IMDS.LastAnswer.IsZero():
			return "Azure has not answered yet.\n"
		case s.IMDS.LastError != "":
			return "Azure does not answer; its last answer had no events.\n"
		}
		return "No events.\n"
	}
	rows := []string{"EVENT\tTYPE\tSTATE\tDUE\tNOT BEFORE\tVMS"}
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
			state = "approved " + wording.Ago(now, e.Approved.At) + " ago by " + wording.Printable(e.Approved.By)
			due = "any moment"
		}
		rows = append(rows, fmt.Sprintf("%.8s\t%s\t%s\t%s\t%s\t%s", wording.Printable(a.EventID),
			wording.Printable(a.EventType), state, due, when, wording.Printable(vmWords(a.Resources, s.Observer.Name))))
		detail := ""
		if e.Approval != "" {
			detail = "not approved: " + wording.Printable(e.Approval)
		}
		details = append(details, detail)
	}
	return table(rows, details) + wording.More(len(s.Events)-len(details), "forewarn status -o json")
}

// vmWords lists the VMs that an event names, this VM first.
func vmWords(all []string, self string) string {
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

// sinksText formats the sinks: those that need somebody first.
func sinksText(s bridge.Status, heard time.Time) string {
	if len(s.Sinks) == 0 {
		return "There are no sinks, so nobody is notified.\n"
	}
	rows := []string{"SINK\tSTATE\tPENDING\tLAST DELIVERY\tDELIVERED\tDEAD LETTERS\tKIND"}
	var details []string
	for _, k := range wording.First(wording.ByNeed(s.Sinks, heard), wording.ShownRows) {
		state, class := wording.SinkState(k, heard)
		if class == bridge.SinkIsBlocked {
			state = strings.ToUpper(state)
		}
		last := "-"
		if !k.LastAccepted.IsZero() {
			last = wording.Ago(heard, k.LastAccepted) + " ago"
		}
		pending := fmt.Sprint(k.Pending)
		if k.Pending > 0 {
			pending += ", for " + wording.Span(time.Duration(k.OldestPendingSeconds*float64(time.Second)))
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", wording.Printable(k.Name), state, pending, last,
			k.Delivered, k.DeadLetters, wording.Printable(k.Kind)))
		detail := wording.ErrorWords(k.LastError)
		switch {
		case detail == "" || k.Pending == 0:
		case k.NextAttempt.IsZero():
			detail = "trying now; last error: " + detail
		default:
			detail = "next try in " + wording.Span(k.NextAttempt.Sub(heard)) + ": " + detail
		}
		details = append(details, detail)
	}
	return table(rows, details) + wording.More(len(s.Sinks)-len(details), "forewarn status -o json")
}

// table aligns rows, the first of which is the heading, and puts the details of each other row below it.
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
