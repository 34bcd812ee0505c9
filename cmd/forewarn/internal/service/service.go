// Package service is how a service manager runs forewarn.
//
// To Windows it is a service. A Service installs, starts, stops, reloads and removes it (service.go) through a
// machine, which is Windows itself (machine_windows.go, files_windows.go) or a test's; what it is to be there, and
// who may reach its files, is computed first (plan.go). Run is the other end: in the process that Windows started it
// answers the controls that Windows sends, runs the program in between (run.go), and gives it a log that writes to
// the Event Log (events.go).
//
// To systemd it is a process that says how it goes: a Notifier tells it when forewarn is ready, reloads and stops,
// and feeds its watchdog (notify.go).
//
// The package prints nothing but what its Service has done, and knows no exit codes: its errors say what kind they
// are.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
)

// A Service installs the service of Windows, and acts on it.
type Service struct {
	machine machine
	words   io.Writer
}

// Open reaches the service of this machine. What was done goes to words, in words for people. Only Windows has services
// of this kind.
func Open(words io.Writer) (*Service, error) {
	m, err := newMachine()
	if err != nil {
		return nil, err
	}
	return &Service{m, words}, nil
}

// A machine is what Windows has to offer for a service. Its methods act on the one that is called serviceName.
type machine interface {
	look() (Status, error)                      // ErrNotInstalled when there is none
	write(p plan) error                         // makes the service, or changes the one that is there
	remove() error                              //
	start() error                               //
	control(c control) error                    //
	registerEvents() error                      // makes the service a source of the Event Log, if it is none yet
	unregisterEvents() error                    // if it is one
	place(path string) (place, error)           //
	secure(path, access string) error           // makes the directory with this access list, or gives the list to it
	executable() (path, home string, err error) // of this program and of its user
}

// ErrNotInstalled says that the service is not installed.
var ErrNotInstalled = errors.New("the service forewarn is not installed; forewarn service install does that")

// ErrBeingRemoved says that Windows has not let go of a service that was removed.
var ErrBeingRemoved = errors.New("the service forewarn is still being removed; close the Services window, then try again")

// A NotRunningError says that the service cannot read its settings again, because it does not run.
type NotRunningError struct{ State State }

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("the service forewarn is %s; it reads its settings when it starts", e.State)
}

// An EndedError says that the service has ended instead of running.
type EndedError struct{ ExitCode uint32 }

func (e *EndedError) Error() string {
	return fmt.Sprintf("the service forewarn ended with exit code %d; %s", e.ExitCode, whereEvents)
}

// A SlowError says that the service takes too long to start or to stop.
type SlowError struct{ State State }

func (e *SlowError) Error() string {
	return fmt.Sprintf("the service forewarn is still %s after %s", e.State, patience)
}

// A Status is how a service is that is installed.
type Status struct {
	State    State
	PID      uint32
	ExitCode uint32 // of its last run, if it has ended
	Command  string
	Account  string
	Start    string // automatic, manual or disabled
}

// String is what people read of a state.
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

// How long a change of the service is waited for, and how often it is looked at.
const (
	patience  = time.Minute
	lookEvery = 200 * time.Millisecond
)

// whereEvents is how an administrator finds what the service said.
const whereEvents = "Get-WinEvent -ProviderName forewarn -MaxEvents 10 shows what it said"

// A Setup is what a service is installed with.
type Setup struct {
	Config    string // the settings file, from the root of its volume
	State     string // the state directory
	Own       string // the directory of the default settings and state
	LogFormat string // as the flags have them
	LogLevel  string
}

// Install makes the service, or changes the one that is there. What could not be a safe service is refused.
func (s *Service) Install(with Setup) error {
	m := s.machine
	exe, home, err := m.executable()
	if err == nil {
		err = checkExecutable(exe, home)
	}
	if err != nil {
		return err
	}
	_, err = m.look()
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return err
	}
	was := err == nil
	if err := s.secureDirectories(with); err != nil {
		return err
	}
	if strings.EqualFold(filepath.Dir(with.Config), with.Own) { // now that nobody can exchange it
		there, err := m.place(with.Config)
		if err == nil {
			err = checkPlace(with.Config, there, aFile)
		}
		if err != nil {
			return err
		}
	}
	p := newPlan(exe, arguments(with.Config, with.LogFormat, with.LogLevel))
	if err := errors.Join(m.registerEvents(), m.write(p)); err != nil {
		return err
	}
	if was {
		fmt.Fprintln(s.words, "the service forewarn was there already and is now as said here; a change counts at its next start")
	} else {
		fmt.Fprintln(s.words, "the service forewarn is installed and starts with Windows; forewarn service start starts it now")
	}
	fmt.Fprintf(s.words, "it runs %s\n", p.Command)
	return nil
}

// secureDirectories closes the directory of the default settings and state to other users, and the state directory if it
// is made here. Another one that is there already is its owner's to open and close.
func (s *Service) secureDirectories(with Setup) error {
	m, own, state := s.machine, with.Own, with.State
	for _, path := range []string{own, state} {
		there, err := m.place(path)
		if err != nil {
			return err
		}
		if below(path, own) && there.Type == aDirectory {
			continue // it has the list of the one above
		}
		if path != own && there.Type != nothingThere {
			fmt.Fprintf(s.words, "%s is left as it is; let the service write there, if it may not: icacls \"%s\" /grant *%s:(OI)(CI)M\n",
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

// Uninstall stops the service and removes it. The settings and the state stay.
func (s *Service) Uninstall(ctx context.Context) error {
	m := s.machine
	now, err := m.look()
	if errors.Is(err, ErrNotInstalled) {
		fmt.Fprintln(s.words, "the service forewarn is not installed")
		return m.unregisterEvents() // what a broken install left
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
		fmt.Fprintln(s.words, "the service forewarn is removed; its settings and its state stay")
	}
	return err
}

// Start starts the service, and waits until it runs.
func (s *Service) Start(ctx context.Context) error {
	m := s.machine
	now, err := m.look()
	switch {
	case err != nil:
		return err
	case now.State == Running:
		fmt.Fprintln(s.words, "the service forewarn runs already")
		return nil
	case now.State == StopPending: // it has to end before it can begin
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
		fmt.Fprintf(s.words, "the service forewarn runs, process %d\n", now.PID)
	}
	return err
}

// Stop stops the service in order, and waits until it has ended.
func (s *Service) Stop(ctx context.Context) error {
	m := s.machine
	now, err := m.look()
	switch {
	case err != nil:
		return err
	case now.State == Stopped:
		fmt.Fprintln(s.words, "the service forewarn is stopped already")
		return nil
	case now.State == StartPending: // it takes no controls yet
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
	fmt.Fprintln(s.words, "the service forewarn is stopped")
	return nil
}

// Reload has the service read its settings again; a NotRunningError when it does not run.
func (s *Service) Reload() error {
	now, err := s.machine.look()
	switch {
	case err != nil:
		return err
	case now.State != Running:
		return &NotRunningError{now.State}
	}
	if err := s.machine.control(controlParamChange); err != nil {
		return err
	}
	fmt.Fprintln(s.words, "the service forewarn reads its settings again; if they are wrong, the old ones stay; "+whereEvents)
	return nil
}

// Status says what Windows knows of the service; ErrNotInstalled when there is none.
func (s *Service) Status() (Status, error) { return s.machine.look() }

// await waits until the service is in the state. One that ends instead of running is an error with its exit code.
func (s *Service) await(ctx context.Context, want State) (Status, error) {
	for until := time.Now().Add(patience); ; {
		now, err := s.machine.look()
		switch {
		case err != nil:
			return now, err
		case now.State == want:
			return now, nil
		case now.State == Stopped: // it was to run
			return now, &EndedError{now.ExitCode}
		case time.Now().After(until):
			return now, &SlowError{now.State}
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}
