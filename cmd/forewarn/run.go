package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
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

// startNotice is the first log line of every run. Administrators must read it before the first restart that it delays.
const startNotice = "asking for scheduled events switches them on: from now on a restart or redeploy of this VM, " +
	"or of any VM of its set, from the portal or CLI waits about 15 minutes until it is approved; " +
	"this ends a day after forewarn was removed"

func (p *program) runCommand() *cobra.Command {
	var dry bool
	c := p.outputFlag(&cobra.Command{
		Use: "run", Short: "Watch this VM and deliver what Azure announces",
		Long: `Watches this VM's scheduled events and delivers every change to the sinks of the settings file,
until SIGTERM or SIGINT.

"forewarn reload" or SIGHUP reloads the settings. If they are wrong, the old ones stay in force.

Without a settings file the changes go to standard output: as text to a terminal, else one CloudEvent
per line.

Asking for scheduled events switches them on, also with --dry-run: see "forewarn help approval".`,
		Example: "  forewarn run --config /etc/forewarn/forewarn.yaml --log-format json\n  forewarn run --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p.chooseText(c)
			return p.run(c.Context(), dry)
		},
	})
	c.Flags().BoolVar(&dry, "dry-run", false,
		"poll and print what would be delivered and approved; send, store and approve nothing")
	output := c.Flags().Lookup("output")
	output.Usage = "what goes to standard output: text, or json, one CloudEvent a line (default: text on a terminal)"
	output.DefValue = ""
	return c
}

// run watches the VM until SIGINT or SIGTERM.
func (p *program) run(ctx context.Context, dry bool) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A closed pipe on standard output must not end forewarn. SIGPIPE is caught rather than ignored, because commands of
	// exec sinks would inherit an ignored signal, and they rely on SIGPIPE to end when their reader does.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if dry {
		return p.dryRun(ctx)
	}
	hup := make(chan os.Signal, 1) // a SIGHUP during the start must not end the program
	if len(hangup) > 0 {           // Notify without signals would mean all signals
		signal.Notify(hup, hangup...)
	}
	defer signal.Stop(hup)
	return p.bridge(ctx, service.Host{Ready: func() {}, Reload: hup})
}

// bridge wires the program together from the settings file, and runs it until ctx is done.
func (p *program) bridge(ctx context.Context, h service.Host) error {
	log := p.log()
	s, err := p.settingsToRun(log)
	if err == nil && s.Relay != nil {
		err = exit(exitSettings, settings.ErrIsRelay)
	}
	if err != nil {
		return err
	}
	from := s.Path
	if from == "" {
		from = "none: using the defaults, with every change of this VM on standard output"
	}
	log.Info(startNotice, "version", programVersion(), "settings", from, "endpoint", s.IMDS.Endpoint, "state", s.State)
	warnOfOthers(s, log)

	err = patiently(func() error { return service.MakeState(string(s.State)) })
	if err != nil { // if the directory cannot be used at all, outbox.Open says so
		log.Warn("cannot close the state directory to other users", "state", s.State, "err", err)
	}
	box, err := outbox.Open(string(s.State), outbox.Options{Log: log})
	if errors.Is(err, outbox.ErrLocked) {
		return exit(exitTryAgain,
			fmt.Errorf("another forewarn holds the outbox in %s; stop it, or set another state directory", s.State))
	} else if err != nil {
		return err
	}
	counters, manager := page.NewMetrics(), service.NewNotifier(p.getenv, log)
	o := p.bridgeOptions(s, box, log)
	o.Meter, o.Turned = counters, manager.Turned
	pages := &listener{key: "listen", address: s.Listen, log: log}
	probed := &listener{key: "metrics", address: s.Metrics, log: log}
	o.Warnings = func() []string { return append(warnings([]*listener{pages, probed}), p.secrets.warnings()...) }
	b, err := bridge.New(o)
	if err != nil {
		return err
	}
	manager.Bridge = b

	metrics := counters.Handler(b.Status)
	pages.handler, probed.handler = page.Handler(b, box, metrics, s.Listen), page.Probes(b, metrics)
	defer pages.start()()
	defer probed.start()()
	reloads := p.reloaderOf(b, s, log)
	sockets := p.serveControl(s, control.Handler(b, box, reloads.ask), log)
	defer sockets.stop()
	go reloads.serve(ctx, h.Reload, manager, sockets)
	h.Ready()
	manager.Ready()          // before the first answer, which can take minutes: from here on no failure ends the program
	defer manager.Stopping() // in case Run ends before ctx
	err = b.Run(ctx)
	left := make(map[string]int)
	for _, sink := range b.Status().Sinks {
		left[sink.Name] = sink.Pending
	}
	logStopped(log, left)
	return err
}

// reloaderOf returns the reloader of a bridge.
func (p *program) reloaderOf(b *bridge.Bridge, s *settings.Settings, log *slog.Logger) *reloader {
	return &reloader{program: p, log: log, started: s, refused: b.SettingsFailed, asked: make(chan reloadRequest),
		apply: func(ctx context.Context, now *settings.Settings) error {
			return b.Reload(ctx, now.Routes, now.Rules, settingsInfo(now))
		}}
}

// logStopped logs the last line of a run: how many deliveries are pending, for which sinks. The next start, or another
// relay, delivers them.
func logStopped(log *slog.Logger, left map[string]int) {
	total := 0
	var sinks []string
	for _, name := range slices.Sorted(maps.Keys(left)) {
		total += left[name]
		if left[name] > 0 {
			sinks = append(sinks, fmt.Sprintf("%s %d", name, left[name]))
		}
	}
	log.Info("stopped", "pending", total, "sinks", cmp.Or(strings.Join(sinks, ", "), "none"))
}

// settingsToRun is settings for what runs until it is stopped, also where root can't switch to another user.
func (p *program) settingsToRun(log *slog.Logger) (*settings.Settings, error) {
	if err := checkClock(time.Now()); err != nil {
		return nil, exit(exitTryAgain, err)
	}
	s, err := p.settings(log)
	if errors.Is(err, errStillRoot) { // running as root is better than not running
		log.Warn("running as root on another user's state directory: files made there belong to root", "err", err)
		s, err = p.settings(log)
	}
	if err == nil && p.actsAs != nil {
		log.Info("switched from root to the owner of the state directory", "user", p.actsAs.String(), "state", s.State)
	}
	return s, err
}

// checkClock refuses a clock whose times RFC 3339 can't say, and so neither CloudEvents nor the outbox.
func checkClock(now time.Time) error {
	if year := now.UTC().Year(); year < 0 || year > 9999 {
		return fmt.Errorf("the clock of this machine shows the year %d; set it, and start forewarn again", year)
	}
	return nil
}

// warnOfOthers logs who else can change the settings, and with them what forewarn runs and whom it tells.
func warnOfOthers(s *settings.Settings, log *slog.Logger) {
	for _, file := range s.Files {
		for _, note := range changeableNotes(file.Path) {
			log.Warn("others can change the settings", "why", note)
		}
	}
}

// bridgeOptions returns the options of a bridge with these settings on this machine.
func (p *program) bridgeOptions(s *settings.Settings, box *outbox.Outbox, log *slog.Logger) bridge.Options {
	host, _ := os.Hostname()
	booted, err := bootTime()
	if err != nil {
		log.Warn("cannot read the boot time of this machine: a reboot looks like a pause", "err", err)
	}
	return bridge.Options{
		Client: imds.NewClient(s.IMDS.Endpoint, s.IMDS.APIVersion, log, nil),
		Outbox: box, Routes: s.Routes, Rules: s.Rules, Interval: s.IMDS.Interval, VMName: s.IMDS.VMName, Host: host,
		Source: s.Source, Booted: booted, Version: programVersion(), Settings: settingsInfo(s), Log: log,
	}
}

// settingsInfo describes settings that were loaded just now.
func settingsInfo(s *settings.Settings) bridge.SettingsInfo {
	return bridge.SettingsInfo{Hash: s.Hash, LoadedAt: time.Now().UTC(), Timezone: s.Timezone.String()}
}

// maxConnections bounds the open connections of a listener. Further ones wait in the kernel, where they use none of the
// file descriptors that sinks, the outbox and the poll loop need. Idle connections are closed to make room.
const maxConnections = 64

// serve serves h on l until stop is called.
func serve(l net.Listener, h http.Handler, log *slog.Logger) (stop func()) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("HTTP server ended", "address", l.Addr(), "err", err)
		}
	}()
	return func() {
		srv.Close()
		<-done
	}
}
