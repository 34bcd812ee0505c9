package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// A machine is what Windows has to offer for a service. Its methods act on the one that is called serviceName.
type machine interface {
	look() (service, error)                     // errNoService when there is none
	write(plan servicePlan) error               // makes the service, or changes the one that is there
	remove() error                              //
	start() error                               //
	control(c serviceControl) error             //
	registerEvents() error                      // makes the service a source of the Event Log, if it is none yet
	unregisterEvents() error                    // if it is one
	place(path string) (place, error)           //
	secure(path, access string) error           // makes the directory with this access list, or gives the list to it
	executable() (path, home string, err error) // of this program and of its user
}

// errNoService says that the service is not installed.
var errNoService = errors.New("the service forewarn is not installed; forewarn service install does that")

// A service is the state of one that is installed.
type service struct {
	State    serviceState
	PID      uint32
	ExitCode uint32 // of its last run, if it has ended
	Command  string
	Account  string
	Start    string // automatic, manual or disabled
}

// word is what people read of a state.
func (s serviceState) word() string {
	switch s {
	case serviceStopped:
		return "stopped"
	case serviceStartPending:
		return "starting"
	case serviceStopPending:
		return "stopping"
	case serviceRunning:
		return "running"
	}
	return fmt.Sprintf("in state %d", uint32(s))
}

// How long a change of the service is waited for, and how often it is looked at.
const (
	servicePatience = time.Minute
	serviceLook     = 200 * time.Millisecond
)

// whereEvents is how an administrator finds what the service said.
const whereEvents = "Get-WinEvent -ProviderName forewarn -MaxEvents 10 shows what it said"

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
		c.RunE = func(*cobra.Command, []string) error { _, err := newMachine(); return err }
	}
	for _, sub := range []struct {
		use, short, long, example string
		do                        func(context.Context, machine) error
	}{
		{"install", "Make the service, or change it to what is said now",
			"Makes a service that runs forewarn with these settings, from where the program is now, with the log flags given\n" +
				"here. It is not started. The directory of the default settings and state is closed to other users.",
			"  forewarn service install\n  forewarn service install --config D:\\forewarn\\forewarn.yaml --log-format json", p.serviceInstall},
		{"uninstall", "Stop the service and remove it; settings and state stay", "", "  forewarn service uninstall", p.serviceUninstall},
		{"start", "Start the service, and wait until it runs", "", "  forewarn service start", p.serviceStart},
		{"stop", "Stop the service in order, and wait until it has ended", "", "  forewarn service stop", p.serviceStop},
		{"reload", "Have the service read its settings again", "", "  forewarn service reload", p.serviceReload},
		{"status", "Say what Windows knows of the service; 69 unless it runs", "", "  forewarn service status -o json", p.serviceStatus},
	} {
		s := &cobra.Command{
			Use: sub.use, Short: sub.short, Long: sub.long, Example: sub.example, Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				m, err := newMachine()
				if err != nil {
					return err
				}
				return sub.do(c.Context(), m)
			},
		}
		if sub.use == "status" {
			p.outputFlag(s)
		}
		c.AddCommand(s)
	}
	return c
}

// serviceInstall makes or changes the service. Settings that are missing or wrong are refused first: without a file the
// service would write to a standard output that nobody reads.
func (p *program) serviceInstall(_ context.Context, m machine) error {
	s, err := p.places()
	switch {
	case err != nil:
		return err
	case s.Path == "":
		return exit(exitSettings, fmt.Errorf("there are no settings at %s; write them there, or name them with --config",
			settings.DefaultPath(runtime.GOOS, p.getenv)))
	}
	config, err := filepath.Abs(s.Path)
	if err != nil {
		return err
	}
	exe, home, err := m.executable()
	if err == nil {
		err = checkExecutable(exe, home)
	}
	if err != nil {
		return err
	}
	_, err = m.look()
	if err != nil && !errors.Is(err, errNoService) {
		return err
	}
	was := err == nil
	if err := p.secureDirectories(m, s.State); err != nil {
		return err
	}
	if strings.EqualFold(filepath.Dir(config), ownDirectory(p.getenv)) { // now that nobody can exchange it
		there, err := m.place(config)
		if err == nil {
			err = checkPlace(config, there, aFile)
		}
		if err != nil {
			return err
		}
	}
	plan := planService(exe, serviceArguments(config, p.logFormat, p.logLevel))
	if err := errors.Join(m.registerEvents(), m.write(plan)); err != nil {
		return err
	}
	if was {
		fmt.Fprintln(p.err, "the service forewarn was there already and is now as said here; a change counts at its next start")
	} else {
		fmt.Fprintln(p.err, "the service forewarn is installed and starts with Windows; forewarn service start starts it now")
	}
	fmt.Fprintf(p.err, "it runs %s\n", plan.Command)
	return nil
}

// ownDirectory holds the default settings and state.
func ownDirectory(getenv func(string) string) string {
	return settings.DefaultState("windows", 0, getenv)
}

// secureDirectories closes the directory of the default settings and state to other users, and the state directory if it
// is made here. Another one that is there already is its owner's to open and close.
func (p *program) secureDirectories(m machine, state string) error {
	own := ownDirectory(p.getenv)
	for _, path := range []string{own, state} {
		there, err := m.place(path)
		if err != nil {
			return err
		}
		if below(path, own) && there.Type == aDirectory {
			continue // it has the list of the one above
		}
		if path != own && there.Type != nothingThere {
			fmt.Fprintf(p.err, "%s is left as it is; let the service write there, if it may not: icacls \"%s\" /grant *%s:(OI)(CI)M\n",
				path, path, serviceSID(serviceName))
			continue
		}
		if err := checkPlace(path, there, aDirectory); err != nil {
			return err
		}
		if err := m.secure(path, directoryAccess("")); err != nil {
			return fmt.Errorf("close %s to other users: %w", path, err)
		}
		if strings.EqualFold(own, state) {
			break
		}
	}
	return nil
}

func (p *program) serviceUninstall(ctx context.Context, m machine) error {
	s, err := m.look()
	if errors.Is(err, errNoService) {
		fmt.Fprintln(p.err, "the service forewarn is not installed")
		return m.unregisterEvents() // what a broken install left
	}
	if err == nil && s.State != serviceStopped {
		err = p.serviceStop(ctx, m)
	}
	if err == nil {
		err = m.remove()
	}
	if err == nil {
		err = m.unregisterEvents()
	}
	if err == nil {
		fmt.Fprintln(p.err, "the service forewarn is removed; its settings and its state stay")
	}
	return err
}

func (p *program) serviceStart(ctx context.Context, m machine) error {
	s, err := m.look()
	switch {
	case err != nil:
		return noService(err)
	case s.State == serviceRunning:
		fmt.Fprintln(p.err, "the service forewarn runs already")
		return nil
	case s.State == serviceStopPending: // it has to end before it can begin
		if _, err := awaitService(ctx, m, serviceStopped); err != nil {
			return err
		}
	}
	if s.State != serviceStartPending {
		if err := m.start(); err != nil {
			return err
		}
	}
	s, err = awaitService(ctx, m, serviceRunning)
	if err == nil {
		fmt.Fprintf(p.err, "the service forewarn runs, process %d\n", s.PID)
	}
	return err
}

func (p *program) serviceStop(ctx context.Context, m machine) error {
	s, err := m.look()
	switch {
	case err != nil:
		return noService(err)
	case s.State == serviceStopped:
		fmt.Fprintln(p.err, "the service forewarn is stopped already")
		return nil
	case s.State == serviceStartPending: // it takes no controls yet
		s, err = awaitService(ctx, m, serviceRunning)
		if err != nil && s.State != serviceStopped {
			return err
		}
	}
	if s.State == serviceRunning {
		if err := m.control(controlStop); err != nil {
			return err
		}
	}
	if _, err := awaitService(ctx, m, serviceStopped); err != nil {
		return err
	}
	fmt.Fprintln(p.err, "the service forewarn is stopped")
	return nil
}

func (p *program) serviceReload(_ context.Context, m machine) error {
	s, err := m.look()
	switch {
	case err != nil:
		return noService(err)
	case s.State != serviceRunning:
		return exit(exitUnavailable, fmt.Errorf("the service forewarn is %s; it reads its settings when it starts", s.State.word()))
	}
	if err := m.control(controlParamChange); err != nil {
		return err
	}
	fmt.Fprintln(p.err, "the service forewarn reads its settings again; if they are wrong, the old ones stay; "+whereEvents)
	return nil
}

func (p *program) serviceStatus(_ context.Context, m machine) error {
	s, err := m.look()
	if err != nil && !errors.Is(err, errNoService) {
		return err
	}
	if p.output == "json" {
		shown := map[string]any{"installed": err == nil}
		if err == nil {
			shown = map[string]any{"installed": true, "state": s.State.word(), "start": s.Start, "account": s.Account, "command": s.Command}
			if s.PID != 0 {
				shown["pid"] = s.PID
			}
			if s.State == serviceStopped {
				shown["exitCode"] = s.ExitCode
			}
		}
		if err := wording.PrintJSON(p.out, shown); err != nil {
			return err
		}
	} else if err == nil {
		state := s.State.word()
		if s.PID != 0 {
			state += fmt.Sprintf(", process %d", s.PID)
		}
		if s.State == serviceStopped && s.ExitCode != 0 {
			state += fmt.Sprintf(", its last run ended with exit code %d", s.ExitCode)
		}
		if _, err := fmt.Fprintf(p.out, "state    %s\nstart    %s\naccount  %s\ncommand  %s\n", state, s.Start, s.Account, s.Command); err != nil {
			return err
		}
	}
	switch {
	case err != nil:
		return noService(err)
	case s.State != serviceRunning:
		return exit(exitUnavailable, fmt.Errorf("the service forewarn is %s; forewarn service start starts it", s.State.word()))
	}
	return nil
}

// awaitService waits until the service is in the state. One that ends instead of running is an error with its exit code.
func awaitService(ctx context.Context, m machine, want serviceState) (service, error) {
	for until := time.Now().Add(servicePatience); ; {
		s, err := m.look()
		switch {
		case err != nil:
			return s, noService(err)
		case s.State == want:
			return s, nil
		case s.State == serviceStopped: // it was to run
			return s, exit(serviceExit(s.ExitCode), fmt.Errorf("the service forewarn ended with exit code %d; %s", s.ExitCode, whereEvents))
		case time.Now().After(until):
			return s, exit(exitTryAgain, fmt.Errorf("the service forewarn is still %s after %s", s.State.word(), servicePatience))
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(serviceLook):
		}
	}
}

// serviceExit is the exit code of a command that the service's own one makes fail: the same if it is one of ours.
func serviceExit(code uint32) int {
	switch code {
	case exitData, exitUnavailable, exitTryAgain, exitSettings:
		return int(code)
	}
	return exitFailed
}

// noService gives errNoService its exit code.
func noService(err error) error {
	if errors.Is(err, errNoService) {
		return exit(exitUnavailable, err)
	}
	return err
}
