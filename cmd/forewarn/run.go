package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
)

// firstWord is the first line of every run's log: what asking for scheduled events brings about.
const firstWord = "asking for scheduled events switches them on: from now on a restart or redeploy of this VM, or of any VM of its set, " +
	"from the portal or CLI waits about 15 minutes until it is approved; this ends a day after forewarn was removed"

func (p *program) runCommand() *cobra.Command {
	var dry bool
	c := p.outputFlag(&cobra.Command{
		Use: "run", Short: "Watch this VM and deliver what Azure announces",
		Long: `Watches this VM's scheduled events and delivers every change to the sinks of the settings file,
until SIGTERM or SIGINT.

SIGHUP reads the settings again (on Windows: forewarn service reload). If they are wrong, the old
ones stay in force.

Without a settings file the changes go to standard output, one CloudEvent per line.`,
		Example: "  forewarn run --config /etc/forewarn/forewarn.yaml --log-format json\n  forewarn run --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return p.run(c.Context(), dry)
		},
	})
	c.Flags().BoolVar(&dry, "dry-run", false, "poll, and print what would go where and be approved; send, store and approve nothing")
	c.Flags().Lookup("output").Usage = "with --dry-run, form of the data on standard output: text or json (one value a line)"
	return c
}

// run runs until a signal comes.
func (p *program) run(ctx context.Context, dry bool) error {
	if !dry && service.Managed() {
		return p.runService()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A reader of standard output that goes away must not end us. A signal that is caught, unlike one that is ignored, is
	// as usual again in the commands of exec sinks: they count on ending when their reader does.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if dry {
		return p.dryRun(ctx)
	}
	hup := make(chan os.Signal, 1) // from now on, because a reload may be asked for at any time
	if len(hangup) > 0 {           // none would mean all
		signal.Notify(hup, hangup...)
	}
	defer signal.Stop(hup)
	return p.bridge(ctx, service.Host{Ready: func() {}, Reload: hup})
}

// bridge runs the bridge of the settings file until ctx is done.
func (p *program) bridge(ctx context.Context, h service.Host) error {
	log := p.log()
	s, err := p.settings(log)
	if errors.Is(err, errStaysRoot) { // no reason to tell nobody of anything
		log.Warn("root goes on with another user's state, and what it makes there is not that user's", "err", err)
		s, err = p.settings(log)
	}
	if err != nil {
		return err
	}
	if p.actsFor != nil {
		log.Info("root has become the user whom the state belongs to", "user", p.actsFor.String(), "state", s.State)
	}
	from := s.Path
	if from == "" {
		from = "none: the defaults, and every change of this VM to standard output"
	}
	stdlog.SetOutput(io.Discard) // net/http writes there what destinations sent unasked, secrets they echo included
	log.Info(firstWord, "version", programVersion(), "settings", from, "endpoint", s.IMDS.Endpoint, "state", s.State)

	if err := service.MakeState(s.State); err != nil { // the outbox says what is wrong if it cannot do without
		log.Warn("the state directory could not be closed to other users", "state", s.State, "err", err)
	}
	box, err := outbox.Open(s.State, outbox.Options{Log: log})
	if errors.Is(err, outbox.ErrLocked) {
		return exit(exitTryAgain, fmt.Errorf("another forewarn holds the outbox in %s; stop it, or set another state directory", s.State))
	} else if err != nil {
		return err
	}
	counters, manager := page.NewMetrics(), service.NewNotifier(p.getenv, log)
	o := p.bridgeOptions(s, box, log)
	o.Meter, o.Turned = counters, manager.Turned
	pages := &listener{key: "listen", address: s.Listen, log: log}
	probed := &listener{key: "metrics", address: s.Metrics, log: log}
	o.Warnings = func() []string { return warnings([]*listener{pages, probed}) }
	b := bridge.New(o)
	manager.Bridge = b

	metrics := counters.Handler(b.Status)
	pages.handler, probed.handler = page.Handler(b, metrics, s.Listen), page.Probes(b, metrics)
	defer pages.start()()
	defer probed.start()()
	if l, err := control.Listen(control.LocationOf(s, p.getenv), log); err != nil {
		log.Warn("there is no control socket, so commands such as status cannot reach this forewarn", "err", err,
			"hint", "the key control of the settings names another place for it")
	} else {
		defer serve(l, control.Handler(b, box), log)()
	}

	go func() {
		for {
			select {
			case <-h.Reload:
				manager.Reloading()
				p.reload(b, s, log)
				manager.Ready()
			case <-ctx.Done():
				manager.Stopping()
				return
			}
		}
	}()
	h.Ready()
	manager.Ready()          // nothing that could still fail ends the program; the first answer may take minutes
	defer manager.Stopping() // if it was not said before
	return b.Run(ctx)
}

// bridgeOptions are what the settings and this machine make of a bridge.
func (p *program) bridgeOptions(s *settings.Settings, box *outbox.Outbox, log *slog.Logger) bridge.Options {
	host, _ := os.Hostname()
	booted, err := bootTime()
	if err != nil {
		log.Warn("the boot time of this machine is not known, so a reboot cannot be told from a pause", "err", err)
	}
	o := bridge.Options{
		Client: imds.NewClient(s.IMDS.Endpoint, s.IMDS.APIVersion, log, nil),
		Outbox: box, Routes: s.Routes, Rules: s.Rules, Interval: s.IMDS.Interval, VMName: s.IMDS.VMName, Host: host, Source: s.Source,
		Booted: booted, Version: programVersion(), Settings: bridge.SettingsInfo{Hash: s.Hash, LoadedAt: time.Now().UTC(), Timezone: s.Timezone}, Log: log,
	}
	if s.IMDS.Discover {
		o.Discover = p.search().Find
	}
	return o
}

// reload reads the settings again. On any error the old ones stay.
func (p *program) reload(b *bridge.Bridge, old *settings.Settings, log *slog.Logger) {
	s, err := p.loader(log).Reload(p.config)
	if err != nil {
		log.Error("the settings were not reloaded, the old ones stay in force", "err", err)
		b.SettingsFailed(err)
		return
	}
	for _, fixed := range []struct {
		key      string
		was, now string
	}{
		{"imds", fmt.Sprint(old.IMDS), fmt.Sprint(s.IMDS)}, {"state", old.State, s.State}, {"control", old.Control, s.Control},
		{"listen", old.Listen, s.Listen}, {"metrics", old.Metrics, s.Metrics}, {"cloudevents_source", old.Source, s.Source},
	} {
		if fixed.was != fixed.now {
			log.Warn("this setting changes at the next start only", "key", fixed.key)
		}
	}
	b.Reload(s.Routes, s.Rules, bridge.SettingsInfo{Hash: s.Hash, LoadedAt: time.Now().UTC(), Timezone: s.Timezone})
	log.Info("settings reloaded", "settings", s.Path, "hash", s.Hash, "sinks", len(s.Routes))
}

// maxConnections is how many connections a listener has open; more wait in the kernel, where they take no file that a
// sink, the outbox or the endpoint needs. Those that idle make room for others.
const maxConnections = 64

// serve serves h on l until the function it returns is called.
func serve(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("a server ended", "address", l.Addr(), "err", err)
		}
	}()
	return func() {
		srv.Close()
		<-done
	}
}
