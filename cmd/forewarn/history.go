package main

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"forewarn/bridge"
)

func (p *program) historyCommand() *cobra.Command {
	var period bridge.Period
	var since, file string
	c := &cobra.Command{
		Use: "history", Short: "Show the lives of Azure's events: what was announced, and who was told when",
		Long: `Shows what is on record of Azure's events, for 90 days: each change, when it was seen, who was told when and what the
destination answered. It reads the outbox, of the running forewarn or the file of one that does not run; with --file an
audit file that a file sink has written, which knows the changes but not who was told.`,
		Example: "  forewarn history --since 7d\n  forewarn history --event 602d9444 -o json\n  forewarn history --file /var/log/forewarn/audit.jsonl -o csv",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if period.Since, err = parseSince(since, time.Now()); err != nil {
				return exit(exitUsage, err)
			}
			var lives []bridge.Life
			if file != "" {
				lives, err = p.fileHistory(file, period)
			} else {
				lives, err = p.outboxHistory(c, period)
			}
			if err != nil {
				return err
			}
			switch p.output {
			case "json":
				return printJSON(p.out, lives)
			case "csv":
				return printLivesCSV(p.out, lives)
			}
			if len(lives) == 0 {
				fmt.Fprintln(p.err, "nothing is on record")
				return nil
			}
			_, err = io.WriteString(p.out, livesText(lives))
			return err
		},
	}
	f := c.Flags()
	f.StringVarP(&p.output, "output", "o", "text", "form of the data on standard output: text, json or csv")
	f.StringVar(&period.Event, "event", "", "only the Azure event whose id begins so")
	f.StringVar(&period.VM, "vm", "", "only events that name this VM")
	f.StringVar(&since, "since", "", "only events that changed since: a duration such as 7d, or a time such as 2026-11-21T04:00:00Z or 2026-11-21")
	f.StringVar(&file, "file", "", "read this audit file instead of the outbox; - for standard input")
	return c
}

// parseSince reads a duration back from now, or a time.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, ok := parseDuration(s); ok && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %s: expected a duration such as 7d, or a time such as 2026-11-21T04:00:00Z", s)
}

// outboxHistory asks the running bridge, or reads the file of one that does not run.
func (p *program) outboxHistory(c *cobra.Command, period bridge.Period) ([]bridge.Life, error) {
	s, err := p.places()
	if err != nil {
		return nil, err
	}
	var lives []bridge.Life
	q := url.Values{"event": {period.Event}, "vm": {period.VM}, "since": {period.Since.Format(time.RFC3339)}}
	err = p.askControl(c.Context(), s, "/history", q, &lives)
	if errors.Is(err, errNoBridge) {
		err = readOutbox(s, func(o *bridge.Outbox) (err error) {
			lives, err = o.History(period)
			return err
		})
	}
	return lives, err
}

// fileHistory reads an audit file. Lines that are none, such as half a last one, are counted and passed over.
func (p *program) fileHistory(path string, period bridge.Period) ([]bridge.Life, error) {
	in := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, exit(exitData, err)
		}
		defer f.Close()
		in = f
	}
	var b bridge.Biographer
	bad, good := 0, 0
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(strings.TrimSpace(string(line))) > 0 {
			var ce event.Event
			if json.Unmarshal(line, &ce) != nil || ce.Context == nil {
				bad++
			} else {
				good++
				b.Add(ce, nil)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, exit(exitData, err)
		}
	}
	if bad > 0 {
		fmt.Fprintf(p.err, "forewarn: %s: %d of %d lines are no CloudEvents and were passed over\n", path, bad, bad+good)
		if good == 0 {
			return nil, exit(exitData, fmt.Errorf("%s holds no CloudEvents; expected one a line, as a file sink writes them", path))
		}
	}
	return b.Lives(period), nil
}

// livesText is what a person pastes into a post-mortem.
func livesText(lives []bridge.Life) string {
	var b strings.Builder
	for i, l := range lives {
		if i > 0 {
			b.WriteByte('\n')
		}
		outcome := "not over"
		if l.Outcome != "" {
			outcome = string(l.Outcome)
		}
		by := ""
		if l.Source != "" {
			by = ", by " + strings.ToLower(l.Source)
		}
		fmt.Fprintf(&b, "%s of %s%s: %s\n  event %s\n", printable(l.Type), printable(strings.Join(l.Resources, ", ")), printable(by), outcome, l.Event)
		for _, c := range l.Changes {
			fmt.Fprintf(&b, "  %s  %s", c.Time.Format("2006-01-02 15:04:05 UTC"), c.Change)
			if len(c.Fields) > 0 {
				fmt.Fprintf(&b, " (%s)", printable(strings.Join(c.Fields, ", ")))
			}
			if !c.NotBefore.IsZero() && c.Change != bridge.Vanished {
				fmt.Fprintf(&b, ", not before %s", c.NotBefore.Format("15:04:05 UTC"))
			}
			if c.Observer != "" {
				fmt.Fprintf(&b, ", seen by %s", printable(c.Observer))
			}
			if c.WhileAway {
				b.WriteString(", found late")
				if !c.NotEarlierThan.IsZero() {
					fmt.Fprintf(&b, " (not earlier than %s)", c.NotEarlierThan.Format("15:04:05 UTC"))
				}
			}
			b.WriteByte('\n')
			for _, d := range c.Deliveries {
				fmt.Fprintf(&b, "      %s: %s", d.Sink, d.State)
				if d.Reason != "" {
					fmt.Fprintf(&b, " (%s)", d.Reason)
				}
				if !d.At.IsZero() {
					fmt.Fprintf(&b, " %s", d.At.UTC().Format("15:04:05 UTC"))
				}
				if d.Attempts > 1 {
					fmt.Fprintf(&b, ", attempt %d", d.Attempts)
				}
				for _, s := range []string{d.Answer, d.AnswerID, d.Error} {
					if s != "" {
						fmt.Fprintf(&b, ", %s", printable(s))
					}
				}
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// printLivesCSV prints one line a delivery, or a change that nobody was owed.
func printLivesCSV(w io.Writer, lives []bridge.Life) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"event", "type", "source", "resources", "outcome", "id", "change", "time", "notBefore", "whileAway", "observer",
		"sink", "state", "at", "attempts", "answer", "answerId", "reason", "error"}}
	when := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	for _, l := range lives {
		for _, c := range l.Changes {
			row := []string{l.Event, l.Type, l.Source, strings.Join(l.Resources, " "), string(l.Outcome), c.ID, string(c.Change),
				when(c.Time), when(c.NotBefore), strconv.FormatBool(c.WhileAway), c.Observer}
			deliveries := c.Deliveries
			if len(deliveries) == 0 {
				deliveries = []bridge.LifeDelivery{{}}
			}
			for _, d := range deliveries {
				rows = append(rows, append(row[:len(row):len(row)], d.Sink, d.State, when(d.At), strconv.Itoa(d.Attempts),
					d.Answer, d.AnswerID, d.Reason, d.Error))
			}
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r") {
				row[i] = "'" + cell // a spreadsheet must not take it for a formula
			}
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
