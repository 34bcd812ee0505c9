package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge/delivery"
	"forewarn/bridge/relay"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// provisionPatience is how long the servers have for all steps of a plan.
const provisionPatience = time.Minute

// relayFlags are those of the command relay.
type relayFlags struct {
	from      string
	provision string // "", true or only
}

func (p *program) relayCommand() *cobra.Command {
	var f relayFlags
	c := p.outputFlag(&cobra.Command{
		Use: "relay", Short: "Notify once for many VMs: read their CloudEvents from NATS JetStream",
		Long: `Reads the CloudEvents that the bridges of a fleet publish to a stream (sink nats), and delivers each
change once to the sinks of the settings file, until SIGTERM or SIGINT. The settings have the section
nats in place of imds.

Any number of relays share the sinks. When one ends, another takes its sinks over within 10 seconds
and continues where it was. A relay keeps nothing on disk.

A sink that is new to the stream gets the latest change of each open event, and what comes from then
on. With --from it gets everything since that time.

--provision creates or changes the stream and what a relay keeps beside it, after printing the plan;
with --provision=only the command ends there.`,
		Example: "  forewarn relay --config /etc/forewarn/relay.yaml --provision\n" +
			"  forewarn relay --config /etc/forewarn/relay.yaml --from 2h",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.provision == "" && c.Flags().Changed("output") {
				return exit(exitUsage, errors.New("--output works only with --provision"))
			}
			p.chooseText(c)
			return p.relay(c.Context(), f)
		},
	})
	c.Flags().StringVar(&f.from, "from", "",
		"new sinks begin at this time, or this long ago, such as 2026-11-21T04:00:00Z or 2h")
	c.Flags().StringVar(&f.provision, "provision", "", "create or change the stream and its buckets first; only: and end")
	c.Flags().Lookup("provision").NoOptDefVal = "true"
	c.Flags().Lookup("output").Usage = "with --provision: form of the plan, text or json"
	return c
}

// since reads the flag --from.
func (f relayFlags) since(now time.Time) (time.Time, error) {
	if f.from == "" {
		return time.Time{}, nil
	}
	if d, ok := settings.ParseDuration(f.from); ok {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, f.from)
	if err != nil {
		return at, exit(exitUsage,
			fmt.Errorf("--from %s: expected a time such as 2026-11-21T04:00:00Z, or a duration such as 2h", f.from))
	}
	return at, nil
}

// relay runs a relay until SIGINT or SIGTERM.
func (p *program) relay(ctx context.Context, f relayFlags) error {
	from, err := f.since(time.Now())
	switch {
	case err != nil:
		return err
	case f.provision != "" && f.provision != "true" && f.provision != "only":
		return exit(exitUsage, fmt.Errorf("--provision=%s: expected only, or no value", f.provision))
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // see run
	hup := make(chan os.Signal, 1)
	if len(hangup) > 0 {
		signal.Notify(hup, hangup...)
	}
	defer signal.Stop(hup)

	log := p.log()
	s, err := p.settingsToRun(log)
	if err == nil && s.Relay == nil {
		err = exit(exitSettings, settings.ErrNoRelay)
	}
	if err != nil {
		return err
	}
	if f.provision != "" {
		if err := p.provision(ctx, s); err != nil || f.provision == "only" {
			return err
		}
	}
	log.Info("relaying", "version", programVersion(), "settings", s.Path, "stream", s.Relay.Stream, "relay", s.Relay.Name)
	warnOfOthers(s, log)

	counters, manager := page.NewMetrics(), service.NewNotifier(p.getenv, log)
	pages := &listener{key: "listen", address: s.Listen, log: log}
	probed := &listener{key: "metrics", address: s.Metrics, log: log}
	r := relay.New(relay.Options{
		Connect: s.Relay.Servers.Dial, Shown: s.Relay.Servers.Shown,
		Domain: s.Relay.Domain, Stream: s.Relay.Stream, Routes: s.Routes, Name: s.Relay.Name,
		From: from, Version: programVersion(), Settings: settingsInfo(s), Log: log, Meter: counters, Turned: manager.Turned,
		Warnings: func() []string { return append(warnings([]*listener{pages, probed}), p.secrets.warnings()...) },
	})
	manager.Bridge = r
	metrics := counters.Handler(r.Status)
	pages.handler, probed.handler = page.RelayHandler(r, metrics, s.Listen), page.Probes(r, metrics)
	defer pages.start()()
	defer probed.start()()
	reloads := &reloader{program: p, log: log, started: s, refused: r.SettingsFailed, asked: make(chan reloadRequest),
		apply: func(_ context.Context, now *settings.Settings) error {
			r.Reload(now.Routes, settingsInfo(now))
			return nil
		}}
	sockets := p.serveControl(s, control.RelayHandler(r, reloads.ask), log)
	defer sockets.stop()
	go reloads.serve(ctx, hup, manager, sockets)
	manager.Ready()
	defer manager.Stopping()
	err = r.Run(ctx)
	logStopped(log, r.Left())
	return err
}

// A connection is one to the servers, of which the command knows no more.
type connection interface {
	Close()
	ConnectedAddr() string
}

// plan looks at what has to be done to the stream and what is kept beside it.
func (p *program) plan(ctx context.Context, s *settings.Settings) (relay.Plan, connection, error) {
	conn, err := s.Relay.Servers.Dial(ctx)
	if err != nil {
		return relay.Plan{}, nil, err
	}
	want := s.Relay.Provision
	plan, err := relay.NewPlan(ctx, conn, s.Relay.Domain, s.Relay.Stream, relay.Retention{
		Subjects: want.Subjects, Replicas: want.Replicas, MaxAge: want.MaxAge, MaxBytes: int64(want.MaxBytes),
		Duplicates: want.Duplicates,
	})
	if err != nil {
		conn.Close()
		return plan, nil, s.Relay.Servers.Shown(err)
	}
	return plan, conn, nil
}

// provision prints what has to be done to the stream and what is kept beside it, and does it.
func (p *program) provision(ctx context.Context, s *settings.Settings) error {
	ctx, cancel := context.WithTimeout(ctx, provisionPatience)
	defer cancel()
	plan, conn, err := p.plan(ctx, s)
	if err != nil {
		return exit(exitUnavailable, err)
	}
	defer conn.Close()
	if p.output == "json" {
		err = wording.PrintJSON(p.out, plan)
	} else {
		t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		for _, step := range plan.Steps {
			fmt.Fprintf(t, "%s\t%s\t%s\n", step.Action, step.Name, strings.Join(step.Changes, ", "))
		}
		err = t.Flush()
	}
	if err != nil {
		return err
	}
	err = plan.Do(ctx)
	if err == nil {
		return nil
	}
	shown := s.Relay.Servers.Shown(err)
	if errors.Is(err, context.DeadlineExceeded) {
		return exit(exitUnavailable, shown)
	}
	return shown
}

// connectToStream reports whether the servers, the stream and what a relay keeps beside it are there. It changes
// nothing.
func (p *program) connectToStream(ctx context.Context, s *settings.Settings) connectResult {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	defer cancel()
	began := time.Now()
	answer, err := func() (string, error) {
		plan, conn, err := p.plan(ctx, s)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		for _, step := range plan.Steps {
			if step.Action == "create" {
				return "", fmt.Errorf("there is no stream %s; forewarn relay --provision creates it", step.Name)
			}
		}
		return "connected to " + conn.ConnectedAddr() + ", stream " + s.Relay.Stream + " is there", nil
	}()
	r := connectResult{Sink: "(nats)", Result: "reached", Answer: answer,
		Seconds: time.Since(began).Round(time.Millisecond).Seconds()}
	if err != nil {
		r.Result, r.Answer = "unreachable", delivery.WithoutClass(err.Error())
	}
	return r
}
