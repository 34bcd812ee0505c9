package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// The numbers of service_run.go are Windows' own: a difference does not compile.
var _ = [...][1]struct{}{
	{uint32(controlStop) ^ uint32(svc.Stop): {}},
	{uint32(controlInterrogate) ^ uint32(svc.Interrogate): {}},
	{uint32(controlShutdown) ^ uint32(svc.Shutdown): {}},
	{uint32(controlParamChange) ^ uint32(svc.ParamChange): {}},
	{uint32(controlPreshutdown) ^ uint32(svc.PreShutdown): {}},
	{uint32(serviceStopped) ^ uint32(svc.Stopped): {}},
	{uint32(serviceStartPending) ^ uint32(svc.StartPending): {}},
	{uint32(serviceStopPending) ^ uint32(svc.StopPending): {}},
	{uint32(serviceRunning) ^ uint32(svc.Running): {}},
	{uint32(servicesAccepted) ^ uint32(svc.AcceptStop|svc.AcceptShutdown|svc.AcceptParamChange|svc.AcceptPreShutdown): {}},
}

// managed says that the service manager has started this process.
func managed() bool {
	is, err := svc.IsWindowsService()
	return err == nil && is
}

// runManaged runs the bridge as a service, with the Event Log for a log. No signal is listened to: to a service, Windows
// sends one for every user that logs off, which is no reason to end.
func (p *program) runManaged() error {
	if events, err := eventlog.Open(serviceName); err == nil {
		defer events.Close()
		p.events = func(level slog.Level, text string) error { return writeEvent(events, level, text) }
	}
	log := p.log()
	last, err := keepCrash(filepath.Join(ownDirectory(p.getenv), "crash.txt"))
	if last != "" {
		log.Error("the last run crashed:\r\n" + last)
	}
	if err != nil {
		log.Warn("a crash would leave no trace", "err", err)
	}
	m := &attended{run: p.bridge, ended: func(err error) {
		if err != nil {
			log.Error("forewarn has ended: "+err.Error(), "exitCode", exitCode(err))
		} else {
			log.Info("forewarn has stopped in order")
		}
	}}
	if err := svc.Run(serviceName, m); err != nil {
		return errors.Join(m.err, fmt.Errorf("be a service: %w", err))
	}
	return m.err
}

// writeEvent writes an entry, whose id says its level: 1 information, 2 warning, 3 error.
func writeEvent(events *eventlog.Log, level slog.Level, text string) error {
	switch {
	case level >= slog.LevelError:
		return events.Error(3, text)
	case level >= slog.LevelWarn:
		return events.Warning(2, text)
	}
	return events.Info(1, text)
}

// attended is attend, as the package svc calls it.
type attended struct {
	run   func(context.Context, host) error
	ended func(error) // is called before Windows is told: after that it may end the process at any time
	err   error
}

// Execute is called once. The exit code is our own, not one of Windows'.
func (a *attended) Execute(_ []string, requests <-chan svc.ChangeRequest, statuses chan<- svc.Status) (own bool, code uint32) {
	controls, over := make(chan serviceControl), make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case r := <-requests:
				select {
				case controls <- serviceControl(r.Cmd):
				case <-over:
					return
				}
			case <-over:
				return
			}
		}
	}()
	a.err = attend(controls, func(r report) {
		statuses <- svc.Status{
			State: svc.State(r.State), Accepts: svc.Accepted(r.Accepts), CheckPoint: r.Progress,
			WaitHint: uint32(r.Within / time.Millisecond),
		}
	}, a.run)
	a.ended(a.err)
	return true, uint32(exitCode(a.err))
}

// windowsMachine is this machine.
type windowsMachine struct{}

func newMachine() (machine, error) { return windowsMachine{}, nil }

// openService opens the service with these rights, errNoService if there is none.
func openService(rights uint32) (*mgr.Service, error) {
	m, err := openManager(windows.SC_MANAGER_CONNECT)
	if err != nil {
		return nil, err
	}
	defer m.Disconnect()
	name, err := windows.UTF16PtrFromString(serviceName)
	if err != nil {
		return nil, err
	}
	h, err := windows.OpenService(m.Handle, name, rights)
	switch {
	case errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST):
		return nil, errNoService
	case err != nil:
		return nil, denied("reach the service", err)
	}
	return &mgr.Service{Name: serviceName, Handle: h}, nil
}

// openManager reaches the service manager with these rights; mgr.Connect would ask for all of them.
func openManager(rights uint32) (*mgr.Mgr, error) {
	h, err := windows.OpenSCManager(nil, nil, rights)
	if err != nil {
		return nil, denied("reach the service manager", err)
	}
	return &mgr.Mgr{Handle: h}, nil
}

// denied says what helps against an access denied.
func denied(what string, err error) error {
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return fmt.Errorf("%s: %w; open the prompt with Run as administrator", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (windowsMachine) look() (service, error) {
	s, err := openService(windows.SERVICE_QUERY_STATUS | windows.SERVICE_QUERY_CONFIG)
	if err != nil {
		return service{}, err
	}
	defer s.Close()
	status, err := s.Query()
	if err != nil {
		return service{}, fmt.Errorf("look at the service: %w", err)
	}
	config, err := s.Config()
	if err != nil {
		return service{}, fmt.Errorf("look at the service: %w", err)
	}
	found := service{
		State: serviceState(status.State), PID: status.ProcessId, ExitCode: status.Win32ExitCode,
		Command: config.BinaryPathName, Account: config.ServiceStartName,
		Start: map[uint32]string{mgr.StartAutomatic: "automatic", mgr.StartManual: "manual", mgr.StartDisabled: "disabled"}[config.StartType],
	}
	switch windows.Errno(status.Win32ExitCode) {
	case windows.ERROR_SERVICE_SPECIFIC_ERROR:
		found.ExitCode = status.ServiceSpecificExitCode
	case windows.ERROR_SERVICE_NEVER_STARTED:
		found.ExitCode = 0
	}
	return found, nil
}

func (windowsMachine) write(plan servicePlan) error {
	s, err := openService(windows.SERVICE_ALL_ACCESS)
	fresh := errors.Is(err, errNoService)
	if fresh {
		s, err = create(plan)
	}
	if err != nil {
		return err
	}
	defer s.Close()
	if err := configure(s, plan); err != nil {
		if fresh {
			err = errors.Join(err, s.Delete())
		}
		return fmt.Errorf("set up the service: %w", err)
	}
	return nil
}

// create makes the service; configure does the rest.
func create(plan servicePlan) (*mgr.Service, error) {
	m, err := openManager(windows.SC_MANAGER_CONNECT | windows.SC_MANAGER_CREATE_SERVICE)
	if err != nil {
		return nil, err
	}
	defer m.Disconnect()
	var text [4]*uint16
	for i, s := range []string{plan.Name, plan.Display, plan.Command, plan.Account} {
		if text[i], err = windows.UTF16PtrFromString(s); err != nil {
			return nil, fmt.Errorf("make the service: %q: %w", s, err)
		}
	}
	h, err := windows.CreateService(m.Handle, text[0], text[1], windows.SERVICE_ALL_ACCESS, windows.SERVICE_WIN32_OWN_PROCESS,
		mgr.StartAutomatic, mgr.ErrorNormal, text[2], nil, nil, nil, text[3], nil)
	switch {
	case errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE):
		return nil, exit(exitTryAgain, errors.New("the service forewarn is still being removed; close the Services window, then try again"))
	case err != nil:
		return nil, denied("make the service", err)
	}
	return &mgr.Service{Name: plan.Name, Handle: h}, nil
}

// configure gives the service all that the plan says but its account. The service's own SID is in its token whatever
// the account, so what was given to the SID stays given.
func configure(s *mgr.Service, plan servicePlan) error {
	err := s.UpdateConfig(mgr.Config{
		ServiceType: windows.SERVICE_WIN32_OWN_PROCESS, StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal,
		BinaryPathName: plan.Command, DisplayName: plan.Display, Description: plan.Description,
		SidType: windows.SERVICE_SID_TYPE_UNRESTRICTED,
	})
	if err != nil {
		return err
	}
	var restarts []mgr.RecoveryAction
	for _, wait := range plan.Restarts {
		restarts = append(restarts, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: wait})
	}
	if err := s.SetRecoveryActions(restarts, uint32(plan.ResetAfter/time.Second)); err != nil {
		return err
	}
	if err := s.SetRecoveryActionsOnNonCrashFailures(true); err != nil {
		return err
	}
	within := uint32(plan.Preshutdown / time.Millisecond) // SERVICE_PRESHUTDOWN_INFO
	return windows.ChangeServiceConfig2(s.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, (*byte)(unsafe.Pointer(&within)))
}

func (windowsMachine) remove() error {
	s, err := openService(windows.DELETE)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Delete(); err != nil && !errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE) {
		return denied("remove the service", err)
	}
	return nil
}

func (windowsMachine) start() error {
	s, err := openService(windows.SERVICE_START)
	if err != nil {
		return err
	}
	defer s.Close()
	switch err := s.Start(); {
	case errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING):
		return nil
	case errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return fmt.Errorf("start the service: %w; may its account read the program?", err)
	case err != nil:
		return fmt.Errorf("start the service: %w", err)
	}
	return nil
}

func (windowsMachine) control(c serviceControl) error {
	right := uint32(windows.SERVICE_STOP)
	if c == controlParamChange {
		right = windows.SERVICE_PAUSE_CONTINUE
	}
	s, err := openService(right)
	if err != nil {
		return err
	}
	defer s.Close()
	// ControlService fails for a service that has ended meanwhile; whoever asks looks at its state next.
	if _, err := s.Control(svc.Cmd(c)); err != nil && !errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE) {
		return fmt.Errorf("control the service: %w", err)
	}
	return nil
}

// registerEvents lets the Event Viewer find the text of the entries. EventCreate.exe, which is part of Windows, has
// messages that are nothing but the text that is given to them.
func (m windowsMachine) registerEvents() error {
	if err := m.unregisterEvents(); err != nil {
		return err
	}
	if err := eventlog.InstallAsEventCreate(serviceName, eventlog.Info|eventlog.Warning|eventlog.Error); err != nil {
		return denied("make forewarn a source of the Event Log", err)
	}
	return nil
}

func (windowsMachine) unregisterEvents() error {
	if err := eventlog.Remove(serviceName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return denied("remove forewarn from the sources of the Event Log", err)
	}
	return nil
}
