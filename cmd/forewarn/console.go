package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
	"forewarn/templates"
)

// A console is a sink that prints CloudEvents for a person.
type console struct {
	text   *templates.Template
	zone   *time.Location
	colour bool

	mu  sync.Mutex // guards the fields below
	out io.Writer
	n   int   // CloudEvents printed
	err error // the first failure
}

// newConsole returns a console that writes to out, in colour if out is a terminal, unless NO_COLOR is set
// (no-color.org). Times are in the zone; nil means UTC.
func newConsole(out io.Writer, getenv func(string) string, zone *time.Location) (*console, error) {
	text, err := templates.Parse("console", templates.Console)
	if zone == nil {
		zone = time.UTC
	}
	c := &console{text: text, zone: zone, out: out}
	if t, ok := out.(*terminal); ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" {
		c.out, c.colour = t.file, true
	}
	return c, err
}

// Deliver prints the batch.
func (c *console) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range batch {
		if err := c.show(d); err != nil {
			c.note(err)
			return delivery.Answer{}, err
		}
		c.n++
	}
	return delivery.Answer{Status: "shown"}, nil
}

// styles are the SGR styles of the first line, by change.
var styles = map[imds.ChangeKind]string{
	imds.Scheduled: "1;33", imds.Updated: "1;33", imds.Started: "1;31", imds.Vanished: "1;32",
}

// show prints one CloudEvent. The caller holds mu.
func (c *console) show(d delivery.Delivery) error {
	ce, now := d.Event, time.Now()
	var text strings.Builder
	if err := c.text.Execute(&text, sinks.MessageFields(d, c.zone, now)); err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrRejected, err)
	}
	head, rest, _ := strings.Cut(text.String(), "\n")
	style := styles[imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix))]
	var b strings.Builder
	clock := clock.Time(ce.Time(), now, c.zone) + "  "
	indent := strings.Repeat(" ", len(clock))
	c.format(&b, "2", "%s", clock)
	c.format(&b, style, "%s\n", wording.Printable(head))
	for line := range strings.Lines(rest) {
		c.format(&b, "", "%s%s\n", indent, wording.Printable(strings.TrimSpace(line)))
	}
	c.format(&b, "2", "%s%s  id %s\n\n", indent, ce.Type(), ce.ID())
	_, err := io.WriteString(c.out, b.String())
	return err
}

// line prints a line about the demo itself.
func (c *console) line(style, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	c.format(&b, style, format+"\n", args...)
	_, err := io.WriteString(c.out, b.String())
	c.note(err)
}

// format adds a text in an SGR style, such as "1;33"; "" is plain.
func (c *console) format(b *strings.Builder, style, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.colour {
		text = escapeControls(text)
	}
	if c.colour && style != "" {
		text = "\x1b[" + style + "m" + text + "\x1b[0m"
	}
	b.WriteString(text)
}

// note keeps the first failure. The caller holds mu.
func (c *console) note(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *console) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *console) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
