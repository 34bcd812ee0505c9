package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/wording"
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

	console, err := newConsole(p.out, p.getenv, time.UTC)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler) // the console prints everything of interest
	box, err := outbox.Open(state, outbox.Options{Log: log})
	if err != nil {
		return err
	}
	b, err := bridge.New(bridge.Options{
		Client: imds.NewClient(served.URL, imds.DefaultAPIVersion, log, nil), Outbox: box, Log: log,
		Interval: time.Duration(float64(time.Second) / max(1, speed)), Version: programVersion(),
		Routes: []bridge.Route{{
			Name: "console", Kind: "console", Sink: console,
			Terms: bridge.Terms{Terms: delivery.Terms{Timeout: time.Minute}},
		}},
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return exit(exitUnavailable, errors.Join(fmt.Errorf("listen on %s: %w", listen, wording.Reason(err)), box.Close()))
	}
	defer serve(l, page.Handler(b, box, http.NotFoundHandler(), listen), log)()
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
		"2 events, %d changes, %d CloudEvents, each delivered once and in order, in %s. Next: %s run --help",
		steps, delivered, wording.Span(took), cmp.Or(p.name, "forewarn"))
	return nil
}
