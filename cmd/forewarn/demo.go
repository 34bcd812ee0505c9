package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
	"forewarn/templates"
)

//go:embed demo.yaml
var demoScenario []byte

func (p *program) demoCommand() *cobra.Command {
	var speed float64
	var listen string
	var exitAtEnd bool
	c := &cobra.Command{
		Use: "demo", Short: "Show a reboot and a freeze, from announced to over, on any machine",
		Long: `Emulates Azure in this process and prints the messages that an administrator gets when a VM is
rebooted and later frozen. A web page shows the same. In a terminal the page stays until Ctrl-C. The
demo needs neither Azure nor a network, and leaves no files behind.`,
		Example: "  forewarn demo\n  forewarn demo --exit --speed 5\n  forewarn demo --listen 127.0.0.1:8169",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if speed <= 0 || speed > 20 {
				return exit(exitUsage, fmt.Errorf("--speed %v: expected a number above 0, at most 20", speed))
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			_, person := p.out.(*terminal)
			return p.demo(ctx, speed, listen, person && !exitAtEnd)
		},
	}
	c.Flags().Float64Var(&speed, "speed", 1, "how many times faster than normal, at most 20")
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address of the page; port 0 picks a free one")
	c.Flags().BoolVar(&exitAtEnd, "exit", false, "exit when the demo is over (always so without a terminal)")
	return c
}

// demo plays the scenario to a bridge whose only sink is the console, and serves the page. With stay, the page stays
// until ctx is done.
func (p *program) demo(ctx context.Context, speed float64, listen string, stay bool) (err error) {
	scenario, err := imdstest.ParseScenario("demo.yaml", demoScenario)
	if err != nil {
		return err
	}
	azure := imdstest.New(imdstest.Options{VMs: scenario.VMs})
	served, err := azure.Listen("127.0.0.1:0", "")
	if err != nil {
		return exit(exitUnavailable, fmt.Errorf("emulate Azure: %w", err))
	}
	defer served.Close()
	state, err := os.MkdirTemp("", "forewarn-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)

	console, err := newConsole(p.out, p.getenv)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler) // the console prints everything of interest
	box, err := outbox.Open(state, outbox.Options{Log: log})
	if err != nil {
		return err
	}
	b := bridge.New(bridge.Options{
		Client: imds.NewClient(served.URL, imds.DefaultAPIVersion, log, nil), Outbox: box, Log: log,
		Interval: time.Duration(float64(time.Second) / max(1, speed)), Version: programVersion(),
		Routes: []bridge.Route{{
			Name: "console", Kind: "console", Sink: console,
			Terms: bridge.Terms{Terms: delivery.Terms{Timeout: time.Minute}},
		}},
	})
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return exit(exitUnavailable, errors.Join(fmt.Errorf("listen on %s: %w", listen, wording.Reason(err)), box.Close()))
	}
	defer serve(l, page.Handler(b, http.NotFoundHandler(), listen), log)()
	steps := len(scenario.Steps)
	console.line("",
		"An emulated Azure announces, starts and ends a reboot and a freeze of %s. Minutes take seconds here.",
		scenario.VMs[0])
	console.line("", "Each message below is what an administrator gets, with the CloudEvent that every sink gets.")
	console.line("", "Your browser shows the same: http://%s/\n", l.Addr())

	began := time.Now()
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- b.Run(running) }()
	played := azure.Play(ctx, scenario, speed)
	for played == nil && console.count() < steps && time.Since(began) < time.Minute {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			played = ctx.Err()
		}
	}
	delivered, took := console.count(), time.Since(began)
	if played == nil && delivered == steps && stay {
		console.line("", "The demo is over. The page stays until you press Ctrl-C: http://%s/", l.Addr())
		<-ctx.Done()
	}
	stop()
	if err := errors.Join(<-done, console.failed()); err != nil {
		return err
	}
	switch {
	case errors.Is(played, context.Canceled):
		console.line("", "stopped after %d of %d changes", delivered, steps)
		return nil
	case played != nil:
		return played
	case delivered != steps:
		return fmt.Errorf("%d of %d changes were delivered", delivered, steps)
	}
	console.line("",
		"2 events, %d changes, %d CloudEvents, each delivered once and in order, in %s. Next: forewarn run --help",
		steps, delivered, wording.Span(took))
	return nil
}

// A console is a sink that prints changes for a person.
type console struct {
	text   *templates.Template
	colour bool

	mu  sync.Mutex // guards the fields below
	out io.Writer
	n   int   // changes printed
	err error // the first failure
}

// newConsole returns a console that writes to out, in colour if out is a terminal, unless NO_COLOR is set
// (no-color.org).
func newConsole(out io.Writer, getenv func(string) string) (*console, error) {
	text, err := templates.Parse("console", templates.Console)
	c := &console{text: text, out: out}
	if t, ok := out.(*terminal); ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" {
		c.out, c.colour = t.file, true
	}
	return c, err
}

// Deliver prints one change.
func (c *console) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	ce := batch[0].Event
	var text strings.Builder
	if err := c.text.Execute(&text, sinks.MessageFields(batch[0], time.UTC, time.Now())); err != nil {
		return delivery.Answer{}, c.fail(fmt.Errorf("%w: %w", delivery.ErrRejected, err))
	}
	head, rest, _ := strings.Cut(text.String(), "\n")
	var data cloudevent.Data
	if err := json.Unmarshal(ce.Data(), &data); err != nil {
		return delivery.Answer{}, c.fail(fmt.Errorf("%w: %w", delivery.ErrRejected, err))
	}
	style := map[imds.ChangeKind]string{
		imds.Scheduled: "1;33", imds.Updated: "1;33", imds.Started: "1;31", imds.Vanished: "1;32",
	}[data.Change]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print("2", "%s  ", ce.Time().Format(time.TimeOnly))
	c.print(style, "%s\n", wording.Printable(head))
	for line := range strings.Lines(rest) {
		c.print("", "          %s\n", wording.Printable(strings.TrimSpace(line)))
	}
	c.print("2", "          %s  id %s\n\n", ce.Type(), ce.ID())
	c.n++
	return delivery.Answer{Status: "shown"}, c.err
}

// line prints a line about the demo itself.
func (c *console) line(style, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.print(style, format+"\n", args...)
}

// print writes in an SGR style, such as "1;33"; "" is plain. The caller holds mu.
func (c *console) print(style, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if c.colour {
		text = escapeControls(text)
	}
	if c.colour && style != "" {
		text = "\x1b[" + style + "m" + text + "\x1b[0m"
	}
	if _, err := io.WriteString(c.out, text); err != nil && c.err == nil {
		c.err = err
	}
}

func (c *console) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *console) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	return err
}

func (c *console) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
