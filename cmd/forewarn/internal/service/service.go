// Package service runs forewarn under a service manager.
//
// On Windows, a Service installs, starts, stops, reloads and removes the Windows service (service.go). It acts through
// the interface machine, which is Windows itself (machine_windows.go, files_windows.go) or a fake in tests. The
// configuration of the service and the access to its files are computed before, without I/O (plan.go). Run is the
// other side: in the process that Windows started, it answers the controls that Windows sends while the program runs
// (run.go), and logs to the Event Log (events.go).
//
// Under systemd, a Notifier reports when forewarn is ready, reloads and stops, and feeds the watchdog (notify.go).
//
// The package prints only what Service has done. It knows no exit codes; callers derive them from the types of its
// errors.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"forewarn/cmd/forewarn/internal/wording"
)

// A Service manages the Windows service.
type Service struct {
	machine  machine
	messages io.Writer
}

// Open returns the service of this machine; an error on other systems than Windows. Its methods write to messages what
// they have done.
func Open(messages io.Writer) (*Service, error) {
	m, err := newMachine()
	if err != nil {
		return nil, err
	}
	return &Service{m, messages}, nil
}

// A machine is the part of Windows that Service needs. Its methods act on the service named serviceName.
type machine interface {
	query() (Status, error)                         // ErrNotInstalled if there is no service
	write(p plan) (unsupported []string, err error) // creates or changes the service
	remove() error                                  //
	start() error                                   //
	control(c control) error                        //
	registerEvents() error                          // makes the service a source of the Event Log; may be repeated
	unregisterEvents() error                        // may be repeated
	place(path string) (place, error)               //
	secure(path, access string) error               // creates the directory with this access list, or changes its list
	installer() (sid string, err error)             // the user of this process
	executable() (path, home string, err error)     // of this program, and the home directory of its user
}

// ErrNotInstalled means that the service is not installed.
var ErrNotInstalled = errors.New("the service forewarn is not installed; install it with forewarn service install")

// ErrBeingRemoved means that Windows still holds a removed service, because a program has it open.
var ErrBeingRemoved = errors.New("the service forewarn is still being removed; " +
	"close the Services window, then try again")

// A NotRunningError means that the service cannot reload its settings, because it does not run.
type NotRunningError struct{ State State }

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("the service forewarn is %s; it will read its settings when it starts", e.State)
}

// An EndedError means that the service has ended although it should run.
type EndedError struct{ ExitCode uint32 }

func (e *EndedError) Error() string {
	return fmt.Sprintf("the service forewarn ended with exit code %d; %s", e.ExitCode, eventLogHint)
}

// A SlowError means that the service takes too long to start or stop.
type SlowError struct{ State State }

func (e *SlowError) Error() string {
	return fmt.Sprintf("the service forewarn is still %s after %s", e.State, wording.Duration(stateTimeout))
}

// A Status is the status of an installed service.
type Status struct {
	State    State
	PID      uint32
	ExitCode uint32 // of the last run, if it has ended
	Command  string
	Account  string
	Start    string // automatic, manual or disabled
}

// String names the state for people.
func (s State) String() string {
	switch s {
	case Stopped:
		return "stopped"
	case StartPending:
		return "starting"
	case StopPending:
		return "stopping"
	case Running:
		return "running"
	}
	return fmt.Sprintf("in state %d", uint32(s))
}

// How long await waits for a state, and how often it looks.
const (
	stateTimeout = time.Minute
	queryEvery   = 200 * time.Millisecond
)

// eventLogHint tells an administrator how to read the log of the service.
const eventLogHint = "to see its log, run Get-WinEvent -ProviderName forewarn -MaxEvents 10"

// A Setup is the input of Install.
type Setup struct {
	Config    string // absolute path of the settings file
	State     string // the state directory
	Own       string // the directory of the default settings and state
	LogFormat string // value of the flag --log-format
	LogLevel  string // value of the flag --log-level
}

// Install creates the service, or changes an installed one. It refuses files and directories that another user
// controls.
func (s *Service) Install(with Setup) error {
	m := s.machine
	exe, home, err := m.executable()
	if err == nil {
		err = checkExecutable(exe, home)
	}
	if err != nil {
		return err
	}
	_, err = m.query()
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return err
	}
	was := err == nil
	if err := s.secureDirectories(with); err != nil {
		return err
	}
	// From here on nobody else can replace them.
	for _, path := range []string{with.Config, filepath.Join(with.State, "outbox.db")} {
		if err := s.checkFile(path); err != nil {
			return err
		}
	}
	p := newPlan(exe, arguments(with.Config, with.LogFormat, with.LogLevel))
	if err := m.registerEvents(); err != nil {
		return err
	}
	unsupported, err := m.write(p)
	if err != nil {
		return err
	}
	for _, what := range unsupported {
		fmt.Fprintf(s.messages, "note: this Windows does not know %s\n", what)
	}
	if was {
		fmt.Fprintln(s.messages, "the service forewarn is changed; the changes take effect at its next start")
	} else {
		fmt.Fprintln(s.messages, "the service forewarn is installed and starts with Windows; "+
			"to start it now, run forewarn service start")
	}
	now, err := m.query()
	if err == nil {
		fmt.Fprintf(s.messages, "it runs %s\n", now.Command)
	}
	return err
}

// secureDirectories closes the directory of the default settings and state to other users. It does the same with a
// state directory that it creates, but leaves the access list of an existing one to its owner, and refuses one that
// other users can change.
func (s *Service) secureDirectories(with Setup) error {
	m, own, state := s.machine, with.Own, with.State
	me, err := m.installer()
	if err != nil {
		return err
	}
	for _, path := range []string{own, state} {
		there, err := m.place(path)
		if err != nil {
			return err
		}
		if isBelow(path, own) && there.Type == aDirectory {
			continue // it inherits the access list
		}
		if err := checkPlace(path, there, aDirectory, me); err != nil {
			return err
		}
		if path != own && there.Type != absent {
			if err := checkGrants(path, there, me); err != nil {
				return err
			}
			fmt.Fprintf(s.messages, "the access to %s is unchanged; if the service cannot write there, run: "+
				"icacls \"%s\" /grant *%s:(OI)(CI)M\n", path, path, SID())
			continue
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

// checkFile refuses a file that another user made or can change.
func (s *Service) checkFile(path string) error {
	me, err := s.machine.installer()
	if err != nil {
		return err
	}
	there, err := s.machine.place(path)
	if err != nil {
		return err
	}
	if err := checkPlace(path, there, aFile, me); err != nil {
		return err
	}
	return checkGrants(path, there, me)
}

// Uninstall stops and removes the service. It keeps the settings and the state directory.
func (s *Service) Uninstall(ctx context.Context) error {
	m := s.machine
	now, err := m.query()
	if errors.Is(err, ErrNotInstalled) {
		fmt.Fprintln(s.messages, "the service forewarn is not installed")
		return m.unregisterEvents() // an interrupted install may have left it
	}
	if err == nil && now.State != Stopped {
		err = s.Stop(ctx)
	}
	if err == nil {
		err = m.remove()
	}
	if err == nil {
		err = m.unregisterEvents()
	}
	if err == nil {
		fmt.Fprintln(s.messages, "the service forewarn is removed; its settings and state are kept")
	}
	return err
}

// Start starts the service, and waits until it runs.
func (s *Service) Start(ctx context.Context) error {
	m := s.machine
	now, err := m.query()
	switch {
	case err != nil:
		return err
	case now.State == Running:
		fmt.Fprintln(s.messages, "the service forewarn is already running")
		return nil
	case now.State == StopPending: // it must stop before it can start
		if _, err := s.await(ctx, Stopped); err != nil {
			return err
		}
	}
	if now.State != StartPending {
		if err := m.start(); err != nil {
			return err
		}
	}
	now, err = s.await(ctx, Running)
	if err == nil {
		fmt.Fprintf(s.messages, "the service forewarn is running, process %d\n", now.PID)
	}
	return err
}

// Stop stops the service cleanly, and waits until it has ended.
func (s *Service) Stop(ctx context.Context) error {
	m := s.machine
	now, err := m.query()
	switch {
	case err != nil:
		return err
	case now.State == Stopped:
		fmt.Fprintln(s.messages, "the service forewarn is already stopped")
		return nil
	case now.State == StartPending: // it accepts no controls yet
		now, err = s.await(ctx, Running)
		if err != nil && now.State != Stopped {
			return err
		}
	}
	if now.State == Running {
		if err := m.control(controlStop); err != nil {
			return err
		}
	}
	if _, err := s.await(ctx, Stopped); err != nil {
		return err
	}
	fmt.Fprintln(s.messages, "the service forewarn is stopped")
	return nil
}

// Reload lets the service reload its settings; it returns a NotRunningError if the service does not run.
func (s *Service) Reload() error {
	now, err := s.machine.query()
	switch {
	case err != nil:
		return err
	case now.State != Running:
		return &NotRunningError{now.State}
	}
	if err := s.machine.control(controlParamChange); err != nil {
		return err
	}
	fmt.Fprintln(s.messages,
		"the service forewarn reloads its settings; if they are wrong, the old ones stay in force; "+eventLogHint)
	return nil
}

// Status returns the status of the service, or ErrNotInstalled.
func (s *Service) Status() (Status, error) { return s.machine.query() }

// await waits until the service is in the state. If it ends instead, the error is an EndedError; if it takes too long,
// a SlowError.
func (s *Service) await(ctx context.Context, want State) (Status, error) {
	for until := time.Now().Add(stateTimeout); ; {
		now, err := s.machine.query()
		switch {
		case err != nil:
			return now, err
		case now.State == want:
			return now, nil
		case now.State == Stopped: // although it should run
			return now, &EndedError{now.ExitCode}
		case time.Now().After(until):
			return now, &SlowError{now.State}
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(queryEvery):
		}
	}
}
