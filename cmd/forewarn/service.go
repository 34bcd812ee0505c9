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
		Use: "service", Short: "Install, start and stop forewarn as a service of Windows",
		Long: `Makes forewarn a service of Windows, which starts with the machine, is started again when it fails
and writes to the Event Log (log Application, source forewarn). It runs as NT SERVICE\forewarn, an
account of its own. That account may write to the state directory, and otherwise read what every
user may; files of secrets elsewhere have to be opened to it.

All of it needs an administrator but status, and each may be repeated. Elsewhere systemd does this.`,
		Example: `  forewarn service install
  forewarn service start
  forewarn service status -o json
  forewarn service reload             read the settings again
  forewarn service uninstall          the settings and the state directory stay`,
	}
	if runtime.GOOS != "windows" {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(*cobra.Command, []string) error { _, err := service.Open(p.err); return exit(exitUsage, err) }
	}
	for _, sub := range []struct {
		use, short, long, example string
		do                        func(context.Context, *service.Service) error
	}{
		{"install", "Make the service, or change it to what is said now",
			"Makes a service that runs forewarn with these settings, from where the program is now, with the log flags given\n" +
				"here. It is not started. The directory of the default settings and state is closed to other users.",
			"  forewarn service install\n  forewarn service install --config D:\\forewarn\\forewarn.yaml --log-format json",
			func(_ context.Context, s *service.Service) error { return p.serviceInstall(s) }},
		{"uninstall", "Stop the service and remove it; settings and state stay", "", "  forewarn service uninstall",
			func(ctx context.Context, s *service.Service) error { return s.Uninstall(ctx) }},
		{"start", "Start the service, and wait until it runs", "", "  forewarn service start",
			func(ctx context.Context, s *service.Service) error { return s.Start(ctx) }},
		{"stop", "Stop the service in order, and wait until it has ended", "", "  forewarn service stop",
			func(ctx context.Context, s *service.Service) error { return s.Stop(ctx) }},
		{"reload", "Have the service read its settings again", "", "  forewarn service reload",
			func(_ context.Context, s *service.Service) error { return s.Reload() }},
		{"status", "Say what Windows knows of the service; 69 unless it runs", "", "  forewarn service status -o json",
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
	return c
}

func (p *program) serviceInstall(s *service.Service) error {
	with, err := p.serviceSetup()
	if err != nil {
		return err
	}
	return s.Install(with)
}

// serviceSetup is what the settings and the flags make of a service. Settings that are missing or wrong are refused:
// without a file the service would write to a standard output that nobody reads.
func (p *program) serviceSetup() (service.Setup, error) {
	s, err := p.places()
	switch {
	case err != nil:
		return service.Setup{}, err
	case s.Path == "":
		return service.Setup{}, exit(exitSettings, fmt.Errorf("there are no settings at %s; write them there, or name them with --config",
			settings.DefaultPath(runtime.GOOS, p.getenv)))
	}
	config, err := filepath.Abs(s.Path)
	if err != nil {
		return service.Setup{}, err
	}
	return service.Setup{
		Config: config, State: s.State, Own: p.ownDirectory(), LogFormat: p.logFormat, LogLevel: p.logLevel,
	}, nil
}

// ownDirectory holds the default settings and state on Windows.
func (p *program) ownDirectory() string { return settings.DefaultState("windows", 0, p.getenv) }

// printServiceStatus prints how the service is; err is what looking at it gave. One that does not run is an error.
func (p *program) printServiceStatus(s service.Status, err error) error {
	if err != nil && !errors.Is(err, service.ErrNotInstalled) {
		return err
	}
	if p.output == "json" {
		shown := map[string]any{"installed": err == nil}
		if err == nil {
			shown = map[string]any{"installed": true, "state": s.State.String(), "start": s.Start, "account": s.Account, "command": s.Command}
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
			state += fmt.Sprintf(", its last run ended with exit code %d", s.ExitCode)
		}
		if _, err := fmt.Fprintf(p.out, "state    %s\nstart    %s\naccount  %s\ncommand  %s\n", state, s.Start, s.Account, s.Command); err != nil {
			return err
		}
	}
	if err == nil && s.State != service.Running {
		err = exit(exitUnavailable, fmt.Errorf("the service forewarn is %s; forewarn service start starts it", s.State))
	}
	return err
}

// serviceExit gives an error of the service its exit code. That of a service which ended is its own, if it is one of
// ours.
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

// runService runs the bridge as the service that Windows has started, with the Event Log for a log.
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
