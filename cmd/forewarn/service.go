package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) serviceCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "service", Short: "Only on Windows: install, start and stop the service",
		Hidden: runtime.GOOS != "windows",
		Long: `Runs forewarn as a Windows service that starts with the machine, restarts after a failure, and writes
to the Event Log (log Application, source forewarn). It runs as NT SERVICE\forewarn, an account of
its own. That account can write to the state directory and read what every user can read; grant it
access to secret files elsewhere.

All subcommands but status need an administrator, and all can be repeated. On Linux use systemd.`,
		Example: `  forewarn service install
  forewarn service start
  forewarn service status -o json
  forewarn service reload             reload the settings
  forewarn service uninstall          keeps the settings and the state directory`,
	}
	if runtime.GOOS != "windows" {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(*cobra.Command, []string) error { _, err := service.Open(p.err); return exit(exitUsage, err) }
	}
	for _, sub := range []struct {
		use, short, long, example string
		do                        func(context.Context, *service.Service) error
	}{
		{"install", "Install the service, or change an installed one",
			"Installs a service that runs this program file with these settings and log flags. It doesn't start the service.\n" +
				"Other users lose access to the directory of the default settings and state.",
			"  forewarn service install\n  forewarn service install --config D:\\forewarn\\forewarn.yaml --log-format json",
			func(_ context.Context, s *service.Service) error { return p.serviceInstall(s) }},
		{"uninstall", "Stop and remove the service; keep settings and state", "", "  forewarn service uninstall",
			func(ctx context.Context, s *service.Service) error { return s.Uninstall(ctx) }},
		{"start", "Start the service, and wait until it runs", "", "  forewarn service start",
			func(ctx context.Context, s *service.Service) error { return s.Start(ctx) }},
		{"stop", "Stop the service cleanly, and wait until it has ended", "", "  forewarn service stop",
			func(ctx context.Context, s *service.Service) error { return s.Stop(ctx) }},
		{"reload", "Let the service reload its settings", "", "  forewarn service reload",
			func(_ context.Context, s *service.Service) error { return s.Reload() }},
		{"status", "Show the state of the service; exit 69 unless it runs", "", "  forewarn service status -o json",
			func(_ context.Context, s *service.Service) error { return p.printServiceStatus(s.Status()) }},
	} {
		s := &cobra.Command{
			Use: sub.use, Short: sub.short, Long: sub.long, Example: sub.example, Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				s, err := service.Open(p.err)
				if err != nil {
					return exit(exitUsage, err)
				}
				return serviceExit(sub.do(c.Context(), s))
			},
		}
		if sub.use == "status" {
			p.outputFlag(s)
		}
		c.AddCommand(s)
	}
	c.AddCommand(&cobra.Command{
		Use: "run", Short: "Run as the service; only Windows can start this", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			if _, err := service.Open(p.err); err != nil {
				return exit(exitUsage, err)
			}
			return p.runService()
		},
	})
	return c
}

func (p *program) serviceInstall(s *service.Service) error {
	with, err := p.serviceSetup()
	if err != nil {
		return err
	}
	return s.Install(with)
}

// serviceSetup returns the setup of the service from the settings and the flags. It refuses missing or wrong settings:
// without a file, the service would write to a standard output that nobody reads.
func (p *program) serviceSetup() (service.Setup, error) {
	s, err := p.bareSettings()
	switch {
	case err != nil:
		return service.Setup{}, err
	case s.Path == "":
		return service.Setup{}, exit(exitSettings,
			fmt.Errorf("there is no settings file %s; create it, or name another with --config",
				settings.DefaultPath(runtime.GOOS, p.getenv)))
	case s.Relay != nil: // the service runs a bridge
		return service.Setup{}, exit(exitSettings, settings.ErrIsRelay)
	}
	config, err := filepath.Abs(s.Path)
	if err != nil {
		return service.Setup{}, err
	}
	return service.Setup{
		Config: config, State: string(s.State), Own: p.ownDirectory(), LogFormat: p.logFormat, LogLevel: p.logLevel,
	}, nil
}

// ownDirectory is the directory of the default settings and state on Windows.
func (p *program) ownDirectory() string { return settings.DefaultState("windows", 0, p.getenv) }

// printServiceStatus prints the status of the service; err is the error of reading it. A service that does not run is
// an error.
func (p *program) printServiceStatus(s service.Status, err error) error {
	if err != nil && !errors.Is(err, service.ErrNotInstalled) {
		return err
	}
	if p.output == "json" {
		shown := map[string]any{"installed": err == nil}
		if err == nil {
			shown = map[string]any{
				"installed": true, "state": s.State.String(), "start": s.Start, "account": s.Account, "command": s.Command,
			}
			if s.PID != 0 {
				shown["pid"] = s.PID
			}
			if s.State == service.Stopped {
				shown["exitCode"] = s.ExitCode
			}
		}
		if err := wording.PrintJSON(p.out, shown); err != nil {
			return err
		}
	} else if err == nil {
		state := s.State.String()
		if s.PID != 0 {
			state += fmt.Sprintf(", process %d", s.PID)
		}
		if s.State == service.Stopped && s.ExitCode != 0 {
			state += fmt.Sprintf(", last exit code %d", s.ExitCode)
		}
		_, err := fmt.Fprintf(p.out, "state    %s\nstart    %s\naccount  %s\ncommand  %s\n", state, s.Start, s.Account,
			s.Command)
		if err != nil {
			return err
		}
	}
	if err == nil && s.State != service.Running {
		err = exit(exitUnavailable, fmt.Errorf("the service forewarn is %s; start it with forewarn service start", s.State))
	}
	return err
}

// serviceExit adds the exit code to an error of package service. For a service that ended, it is the exit code of the
// service, if that is one of ours.
func serviceExit(err error) error {
	var (
		idle  *service.NotRunningError
		slow  *service.SlowError
		ended *service.EndedError
	)
	switch {
	case errors.Is(err, service.ErrNotInstalled), errors.As(err, &idle):
		return exit(exitUnavailable, err)
	case errors.Is(err, service.ErrBeingRemoved), errors.As(err, &slow):
		return exit(exitTryAgain, err)
	case errors.As(err, &ended):
		switch ended.ExitCode {
		case exitData, exitUnavailable, exitTryAgain, exitSettings:
			return exit(int(ended.ExitCode), err)
		}
	}
	return err
}

// runService runs the bridge as the service that Windows has started, logging to the Event Log.
func (p *program) runService() error {
	err := service.Run(service.Program{
		Run: p.bridge, ExitCode: exitCode, CrashFile: filepath.Join(p.ownDirectory(), "crash.txt"),
		Log: func(events service.EventWriter) *slog.Logger {
			p.events = events
			return p.log()
		},
	})
	return exit(exitCode(err), err)
}
