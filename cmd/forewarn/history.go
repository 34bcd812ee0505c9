package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) historyCommand() *cobra.Command {
	var period bridge.Period
	var since, file string
	var verify bool
	c := &cobra.Command{
		Use: "history [--verify FILE...]", Short: "Show what happened to each event, and who was notified when",
		Long: `Shows the Azure events of the last 90 days: each change, when it was seen, when it was delivered to
each sink, and what the destination answered.

It reads the outbox, through the running forewarn or, if none runs, from its file. With --file it
reads an audit file written by a file sink, which has the changes but not the deliveries, or an
outbox.db that forewarn has set aside, as far as it can be read.

With --verify it checks the files of a file sink with chain: true, the oldest first: that no line
was changed, left out, added or moved. It names the first line that does not belong (exit code 1).
See "forewarn help sinks file" for what this proves and what it does not.`,
		Example: `  forewarn history --since 7d
  forewarn history --event 602d9444 -o json
  forewarn history --file /var/log/forewarn/audit.jsonl -o csv
  forewarn history --verify /var/log/forewarn/audit*.jsonl`,
		Args: func(c *cobra.Command, files []string) error {
			switch {
			case !verify:
				return cobra.NoArgs(c, files)
			case len(files) == 0:
				return errors.New("--verify: expected the files to check, the oldest first")
			}
			return nil
		},
		RunE: func(c *cobra.Command, files []string) error {
			if verify && (period != (bridge.Period{}) || since != "" || file != "") {
				return exit(exitUsage, errors.New("--verify checks whole files; expected no --event, --vm, --since or --file"))
			}
			if verify {
				return p.verifyFiles(files)
			}
			var err error
			period.Since, err = parseSince(since, time.Now())
			if err != nil {
				return exit(exitUsage, err)
			}
			n := math.MaxInt // JSON and CSV are complete
			if p.output == "text" {
				n = wording.ShownRows
			}
			var histories []bridge.EventHistory
			var older int
			if file != "" {
				histories, err = p.fileHistory(file, period)
				if err != nil {
					return err
				}
				older = max(0, len(histories)-n)
				histories = histories[older:]
			} else {
				running, _, err := p.running()
				if err != nil {
					return err
				}
				recorded, err := running.History(c.Context(), period, n)
				if err != nil {
					return err
				}
				histories, older = recorded.Rows, recorded.More
			}
			switch p.output {
			case "json":
				return wording.PrintJSON(p.out, append([]bridge.EventHistory{}, histories...))
			case "csv":
				return printHistoryCSV(p.out, histories)
			}
			if len(histories) == 0 {
				none := "no events recorded"
				if period != (bridge.Period{}) {
					none = "no such events recorded; without flags, history shows all"
				}
				fmt.Fprintln(p.err, none)
				return nil
			}
			text := historyText(histories, p.historyZone(c.Context()))
			if older > 0 {
				const note = "%d older events left out; use --since, --event or --vm to select, -o json to print all\n\n"
				text = fmt.Sprintf(note, older) + text
			}
			_, err = io.WriteString(p.out, text)
			return err
		},
	}
	f := c.Flags()
	f.StringVarP(&p.output, "output", "o", "text", "output format: text, json or csv")
	f.StringVar(&period.Event, "event", "", "only the Azure event with this id (a prefix is enough)")
	f.StringVar(&period.VM, "vm", "", "only events that name this VM")
	f.StringVar(&since, "since", "",
		"only events that changed since: a duration such as 7d, or a time such as 2026-11-21T04:00:00Z or 2026-11-21")
	f.StringVar(&file, "file", "", "read this audit file, or this outbox.db that was set aside; - for standard input")
	f.BoolVar(&verify, "verify", false, "check that the files hold one intact chain, the oldest first")
	return c
}

// parseSince parses a time, or a duration before now.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, ok := settings.ParseDuration(s); ok && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %s: expected a duration such as 7d, or a time such as 2026-11-21T04:00:00Z", s)
}

// fileHistory reads an audit file. It skips and counts lines that are no CloudEvents, such as an incomplete last line.
func (p *program) fileHistory(path string, period bridge.Period) ([]bridge.EventHistory, error) {
	if strings.HasPrefix(filepath.Base(path), "outbox.db") {
		return p.setAsideHistory(path, period)
	}
	in := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, exit(exitData, err)
		}
		defer f.Close()
		in = f
	}
	var b bridge.HistoryBuilder
	bad, good := 0, 0
	incomplete := false // the last line is bad
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			if ce, err := cloudevent.Decode(line); err != nil || ce.Context == nil {
				bad++
				incomplete = true
			} else {
				good++
				incomplete = false
				b.Add(ce, nil)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, exit(exitData, err)
		}
	}
	switch {
	case bad > 0 && good == 0:
		return nil, exit(exitData,
			fmt.Errorf("%s holds no CloudEvents; expected one per line, as a file sink writes them", path))
	case bad == 1 && incomplete:
		fmt.Fprintf(p.err, "forewarn: %s: skipped the last line, which is incomplete; read %d\n", path, good)
	case bad > 0:
		fmt.Fprintf(p.err, "forewarn: %s: skipped %d of %d lines, which are no CloudEvents\n", path, bad, bad+good)
	}
	return b.Histories(period), nil
}

// setAsideHistory reads the file of an outbox that was set aside, as far as it can be read.
func (p *program) setAsideHistory(path string, period bridge.Period) ([]bridge.EventHistory, error) {
	var b bridge.HistoryBuilder
	read := 0
	err := outbox.ReadHistory(path, func(r outbox.Record) error {
		b.AddRecord(r)
		read++
		return nil
	})
	switch {
	case err != nil && read == 0:
		return nil, exit(exitData, err)
	case err != nil:
		fmt.Fprintf(p.err, "forewarn: %s: read %d CloudEvents, the others can't be read: %v\n", path, read, err)
	}
	return b.Histories(period), nil
}

// historyZone returns the time zone of histories. An audit file is read without settings too; its times are then UTC.
func (p *program) historyZone(ctx context.Context) *time.Location {
	quiet := slog.New(slog.DiscardHandler)
	s, err := control.Locate(p.loader(quiet), p.config, quiet)
	if err != nil {
		return time.UTC
	}
	return p.zone(ctx, s)
}

// historyText returns the history as text for people, ready for a post-mortem.
func historyText(histories []bridge.EventHistory, zone *time.Location) string {
	var b strings.Builder
	for i, l := range histories {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s of %s%s: %s\nevent %s\n", wording.Printable(l.Type),
			wording.Printable(strings.Join(l.Resources, ", ")), sourceWords(l.Source), outcomeWords(l.Outcome),
			wording.Printable(l.Event))
		width := 0 // of the longest sink's name
		for _, c := range l.Changes {
			for _, d := range c.Deliveries {
				width = max(width, len(d.Route))
			}
		}
		for _, c := range l.Changes {
			fmt.Fprintf(&b, "  %s  %s\n", clock.Due(c.Time, time.Time{}, zone), changeWords(c, l.Outcome, zone))
			for _, d := range c.Deliveries {
				fmt.Fprintf(&b, "    %-*s  %s\n", width, d.Route, deliveryWords(d, c.Time, zone))
			}
		}
	}
	return b.String()
}

// sourceWords says who caused an event.
func sourceWords(source string) string {
	switch imds.Upper(source) {
	case "":
		return ""
	case "PLATFORM":
		return ", by Azure"
	case "USER":
		return ", requested by a user"
	}
	return ", by " + wording.Printable(source)
}

func outcomeWords(o cloudevent.Outcome) string {
	switch o {
	case "":
		return "not over"
	case cloudevent.OutcomeCompleted:
		return "completed"
	case cloudevent.OutcomeCanceled:
		return "cancelled, nothing happened"
	}
	return "no longer on Azure's list; Azure doesn't say whether it happened"
}

// changeWords describes a change of an event with this outcome.
func changeWords(c bridge.HistoryChange, o cloudevent.Outcome, zone *time.Location) string {
	words := map[imds.ChangeKind]string{
		imds.Scheduled: "announced", imds.Updated: "changed", imds.Started: "begun", imds.Vanished: "no longer listed",
	}[c.Change]
	switch {
	case c.Approval != nil:
		words = wording.ApprovalWords(*c.Approval)
		if c.Observer != "" {
			words = "on " + wording.Printable(c.Observer) + ": " + words
		}
		return words
	case c.Lead != "":
		words = "reminder, " + wording.Printable(c.Lead) + " before"
	case words == "":
		words = wording.Printable(string(c.Change))
	case c.Change == imds.Vanished && o == cloudevent.OutcomeCompleted:
		words = "over"
	case c.Change == imds.Vanished && o == cloudevent.OutcomeCanceled:
		words = "cancelled"
	}
	if len(c.Fields) > 0 {
		words += " (" + wording.Printable(strings.Join(c.Fields, ", ")) + ")"
	}
	if !c.NotBefore.IsZero() && c.Change != imds.Vanished && c.Change != imds.Started {
		rules := c.Rules
		if c.Lead != "" { // a reminder says that another VM may start it, not that it will
			rules = slices.DeleteFunc(slices.Clone(rules), func(r cloudevent.Rule) bool { return r.VM != "" })
		}
		when := wording.Begins(c.NotBefore, rules, c.Asked, c.Time, zone)
		if c.NotBefore.After(c.Time) {
			when = "for " + when
		}
		words += ", " + when
	}
	if c.RawNotBefore != "" && c.Change != imds.Vanished {
		words += fmt.Sprintf(", for a time that can't be read (%q)", c.RawNotBefore)
	}
	if c.Observer != "" {
		words += ", seen by " + wording.Printable(c.Observer)
	}
	if c.WhileAway {
		words += ", found late"
		if !c.NotEarlierThan.IsZero() {
			words += ": it happened after " + clock.Time(c.NotEarlierThan, c.Time, zone)
		}
	}
	return words
}

// deliveryWords describes the delivery of a change that was seen at changed.
func deliveryWords(d bridge.HistoryDelivery, changed time.Time, zone *time.Location) string {
	words := d.State
	switch {
	case d.State == outbox.StateAccepted:
		words = "delivered"
	case d.State == outbox.StateSuperseded && d.Answer == delivery.EventOver:
		words, d.Answer = "not delivered, the event is over", ""
		if d.Attempts > 0 {
			words = "given up, the event is over"
		}
	case d.State == outbox.StateSuperseded:
		words = "replaced by a newer change"
	case d.State == outbox.StateDead:
		words = "dead letter (" + d.Reason + ")"
	case d.State == outbox.StatePending && d.Attempts > 0:
		words = "pending, last tried"
	}
	if !d.At.IsZero() {
		words += " " + clock.Time(d.At, changed, zone)
	}
	if d.Attempts > 1 {
		words += fmt.Sprintf(", attempt %d", d.Attempts)
	}
	for _, s := range []string{d.Answer, d.AnswerID, d.Error} {
		if s != "" {
			words += ", " + wording.ErrorWords(s)
		}
	}
	if d.ReplayedBy != "" {
		words += ", replayed by " + wording.Printable(d.ReplayedBy)
	}
	return words
}

// A formulaStart is what a spreadsheet may take for the beginning of a formula: a sign, in any width, at the start of a
// cell or after what separates cells in some countries, behind spaces and quotes at most.
var formulaStart = regexp.MustCompile(`(^|[;\t\r\n])([\p{Z}\p{Cf}"']*[=+\-@＝＋－＠﹦﹢﹣﹫])`)

// withoutFormulas returns a cell that no spreadsheet runs: a quote before each sign makes it text.
func withoutFormulas(cell string) string {
	if strings.HasPrefix(cell, "\t") || strings.HasPrefix(cell, "\r") {
		cell = "'" + cell
	}
	return formulaStart.ReplaceAllString(cell, "$1'$2")
}

// printHistoryCSV prints one line per delivery, and one for a change without deliveries.
func printHistoryCSV(w io.Writer, histories []bridge.EventHistory) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		"event", "type", "source", "resources", "outcome", "id", "change", "time", "notBefore", "whileAway", "observer",
		"sink", "state", "at", "attempts", "answer", "answerId", "reason", "error",
		"replayedBy",
	}}
	when := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	for _, l := range histories {
		for _, c := range l.Changes {
			row := []string{l.Event, l.Type, l.Source, strings.Join(l.Resources, " "), string(l.Outcome), c.ID, string(c.Change),
				when(c.Time), when(c.NotBefore), strconv.FormatBool(c.WhileAway), c.Observer}
			deliveries := c.Deliveries
			if len(deliveries) == 0 {
				deliveries = []bridge.HistoryDelivery{{}}
			}
			for _, d := range deliveries {
				attempts := strconv.Itoa(d.Attempts)
				if d.Route == "" {
					attempts = ""
				}
				rows = append(rows, append(row[:len(row):len(row)], d.Route, d.State, when(d.At), attempts,
					d.Answer, d.AnswerID, d.Reason, d.Error, d.ReplayedBy))
			}
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = withoutFormulas(cell)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
