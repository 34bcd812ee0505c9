package main

import (
	"cmp"
	"context"
	"encoding/json"
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
			s, err := p.runningPlaces()
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
			now := time.Now()
			_, err = io.WriteString(p.out, statusText(st, now, now, s.Timezone))
			return err
		},
	})
	c.Flags().BoolVar(&again, "watch", false, "show it again every second, in place, until interrupted")
	return c
}

// watchStatus shows the status again and again, until ctx is done. There must be a bridge at first; then it may go away
// and come back. On a terminal it takes the screen, gives it back at the end, and leaves the last status there.
func (p *program) watchStatus(ctx context.Context, s *settings) error {
	w := watch{out: p.out, zone: s.Timezone}
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
		var st bridge.Status
		err := p.askControl(ctx, s, "/status", nil, &st)
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
			fmt.Fprintf(&text, "forewarn answers again, after %s\n\n", ago(now, w.away))
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
			fmt.Fprintf(&text, "\nIts last status, %s old:\n\n%s", ago(now, w.heard), statusText(w.last, w.heard, now, w.zone))
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
		short = append(short, cut(line, width))
		if strings.HasPrefix(line, " ") {
			wrapped = append(wrapped, wrap(line, width)...)
		} else {
			wrapped = append(wrapped, cut(line, width))
		}
	}
	switch {
	case len(wrapped) <= height:
		return wrapped
	case len(short) <= height:
		return short
	}
	more := fmt.Sprintf("and %s; a higher window or forewarn status shows all", plural(len(short)-height+1, "line more", "lines more"))
	return append(short[:height-1], cut(more, width))
}

// wrap breaks a line at blanks, or within a word that is longer than the width. What follows is as indented as the line.
func wrap(line string, width int) []string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if len(indent) > width/2 {
		return []string{cut(line, width)}
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

// A shownEvent is what people are shown of an event as Azure sent it.
type shownEvent struct {
	EventID, EventType, EventStatus string
	Resources                       []string
}

func readEvent(raw json.RawMessage) (e shownEvent) {
	_ = json.Unmarshal(raw, &e) // a field of another type stays empty
	return e
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
		if needsSomebody(k, heard) {
			needing++
		}
	}
	if needing > 0 {
		ready += ", " + plural(needing, "SINK NEEDS YOU", "SINKS NEED YOU")
	}
	name := "(this VM's name is not known yet)"
	if s.Observer.Name != "" {
		name = printable(s.Observer.Name)
	}
	fmt.Fprintf(&b, "%s  %s, forewarn %s, up %s\n", name, ready, printable(s.Version), ago(heard, s.StartedAt))
	for _, reason := range s.Reasons {
		detail("%s", printable(reason))
	}
	for _, warning := range s.Warnings {
		detail("%s", printable(warning))
	}
	answered := "has not answered yet"
	if !s.IMDS.LastAnswer.IsZero() {
		answered = "answered " + ago(heard, s.IMDS.LastAnswer) + " ago"
	}
	fmt.Fprintf(&b, "endpoint  %s, %s, api-version %s\n", answered, printable(s.IMDS.Endpoint), printable(s.IMDS.APIVersion))
	if s.IMDS.LastError != "" {
		detail("now: %s", printable(s.IMDS.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		detail("%s in Azure's document: %s", plural(n, "problem", "problems"), printable(s.IMDS.Problems[0]))
	}
	fmt.Fprintf(&b, "outbox    %d owed, %d given up, %d KiB\n", s.Outbox.Pending, s.Outbox.DeadLetters, s.Outbox.Bytes>>10)
	if !s.Outbox.Durable {
		detail("NOT ON DISK: %s", printable(s.Outbox.Error))
	}
	if s.Settings.LastError != "" {
		b.WriteString("settings  the newest were refused, older ones are in force\n")
		detail("%s", printable(s.Settings.LastError))
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
	for _, e := range first(byUrgency(s.Events), shownRows) {
		a := readEvent(e.Event)
		state, due, when := printable(a.EventStatus), "-", "-"
		if !e.NotBefore.IsZero() {
			due, when = "due now", bridge.ClockTime(e.NotBefore, now, zone)
			if left := e.NotBefore.Sub(now); left >= time.Second {
				due = "in " + span(left)
			}
		}
		if e.Approved != nil && a.EventStatus != statusStarted {
			state, due = "approved "+ago(now, e.Approved.At)+" ago by "+printable(e.Approved.By), "any moment"
		}
		rows = append(rows, fmt.Sprintf("%.8s\t%s\t%s\t%s\t%s\t%s", printable(a.EventID), printable(a.EventType), state, due, when,
			printable(machines(a.Resources, s.Observer.Name))))
		detail := ""
		if e.Approval != "" {
			detail = "not approved: " + printable(e.Approval)
		}
		details = append(details, detail)
	}
	return table(rows, details) + moreText(len(s.Events)-len(details), "forewarn status -o json")
}

// moreText says how many rows a list leaves out, and what shows them; "" for none.
func moreText(more int, command string) string {
	if more <= 0 {
		return ""
	}
	return fmt.Sprintf("and %d more; %s shows all\n", more, command)
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
	if more := len(names) - shownVMs; more > 0 {
		names = append(names[:shownVMs], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// sinksText are the sinks, those that need somebody first.
func sinksText(s bridge.Status, heard time.Time) string {
	if len(s.Sinks) == 0 {
		return "No sink is configured, so nobody is told.\n"
	}
	rows := []string{"SINK\tSTATE\tOWED\tLAST TOLD\tTOLD\tGIVEN UP\tKIND"}
	var details []string
	for _, k := range first(byNeed(s.Sinks, heard), shownRows) {
		state, class := sinkState(k, heard)
		if class == bridge.SinkIsBlocked {
			state = strings.ToUpper(state)
		}
		told := "-"
		if !k.LastAccepted.IsZero() {
			told = ago(heard, k.LastAccepted) + " ago"
		}
		owed := fmt.Sprint(k.Pending)
		if k.Pending > 0 {
			owed += ", for " + span(time.Duration(k.OldestPendingSeconds*float64(time.Second)))
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", printable(k.Name), state, owed, told, k.Delivered, k.DeadLetters, printable(k.Kind)))
		detail := errorWords(k.LastError)
		switch {
		case detail == "" || k.Pending == 0:
		case k.NextAttempt.IsZero():
			detail = "trying now; before: " + detail
		default:
			detail = "next try in " + span(k.NextAttempt.Sub(heard)) + ": " + detail
		}
		details = append(details, detail)
	}
	return table(rows, details) + moreText(len(s.Sinks)-len(details), "forewarn status -o json")
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

// byUrgency are the events in the order in which they matter: those that have begun, then the nearest.
func byUrgency(events []bridge.EventStatus) []bridge.EventStatus {
	type ranked struct {
		bridge.EventStatus
		rank int
	}
	all := make([]ranked, len(events))
	for i, e := range events {
		all[i] = ranked{e, 2}
		switch {
		case readEvent(e.Event).EventStatus == statusStarted:
			all[i].rank = 0
		case !e.NotBefore.IsZero():
			all[i].rank = 1
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.NotBefore.Compare(b.NotBefore))
	})
	sorted := make([]bridge.EventStatus, len(all))
	for i, e := range all {
		sorted[i] = e.EventStatus
	}
	return sorted
}

// byNeed are the sinks in the order in which they matter: those that need somebody, then those that may soon.
func byNeed(sinks []bridge.SinkStatus, now time.Time) []bridge.SinkStatus {
	rank := func(k bridge.SinkStatus) int {
		_, class := sinkState(k, now)
		return slices.Index([]string{bridge.SinkIsBlocked, bridge.SinkRetrying, bridge.SinkOrphaned, bridge.SinkOK}, class)
	}
	return slices.SortedStableFunc(slices.Values(sinks), func(a, b bridge.SinkStatus) int { return cmp.Compare(rank(a), rank(b)) })
}

// sinkState says in words how a sink is, and like which state that is to be seen: one that has accepted nothing for
// long needs somebody, whatever it answers.
func sinkState(k bridge.SinkStatus, now time.Time) (words, class string) {
	switch {
	case needsSomebody(k, now):
		return "needs you", bridge.SinkIsBlocked
	case k.State == bridge.SinkRetrying:
		return "trying again", k.State
	case k.State == bridge.SinkOrphaned:
		return "not in the settings", k.State
	case k.Pending > 0:
		return "sending", bridge.SinkOK
	case k.LastError != "":
		return "gave up the last", bridge.SinkRetrying
	case k.LastAccepted.IsZero():
		return "ready", bridge.SinkOK
	}
	return "works", bridge.SinkOK
}

// needsSomebody says whether a sink is blocked, or has accepted nothing for so long that other sinks tell of it too.
func needsSomebody(k bridge.SinkStatus, now time.Time) bool {
	owed := time.Duration(k.OldestPendingSeconds * float64(time.Second))
	return k.State == bridge.SinkIsBlocked ||
		k.State == bridge.SinkRetrying && min(owed, now.Sub(k.LastAccepted)) >= bridge.SilentFor
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
