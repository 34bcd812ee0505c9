package service

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// windowsMachine implements machine with this Windows.
type windowsMachine struct{}

func newMachine() (machine, error) { return windowsMachine{}, nil }

// openService opens the service with these rights; ErrNotInstalled if there is none.
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
		return nil, ErrNotInstalled
	case err != nil:
		return nil, denied("reach the service", err)
	}
	return &mgr.Service{Name: serviceName, Handle: h}, nil
}

// openManager connects to the service manager with only these rights; mgr.Connect asks for all.
func openManager(rights uint32) (*mgr.Mgr, error) {
	h, err := windows.OpenSCManager(nil, nil, rights)
	if err != nil {
		return nil, denied("reach the service manager", err)
	}
	return &mgr.Mgr{Handle: h}, nil
}

// denied adds the remedy to an access denied.
func denied(what string, err error) error {
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return fmt.Errorf("%s: %w; open the prompt with Run as administrator", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (windowsMachine) look() (Status, error) {
	s, err := openService(windows.SERVICE_QUERY_STATUS | windows.SERVICE_QUERY_CONFIG)
	if err != nil {
		return Status{}, err
	}
	defer s.Close()
	status, err := s.Query()
	if err != nil {
		return Status{}, fmt.Errorf("look at the service: %w", err)
	}
	config, err := s.Config()
	if err != nil {
		return Status{}, fmt.Errorf("look at the service: %w", err)
	}
	found := Status{
		State: State(status.State), PID: status.ProcessId, ExitCode: status.Win32ExitCode,
		Command: config.BinaryPathName, Account: config.ServiceStartName,
		Start: map[uint32]string{
			mgr.StartAutomatic: "automatic", mgr.StartManual: "manual", mgr.StartDisabled: "disabled",
		}[config.StartType],
	}
	switch windows.Errno(status.Win32ExitCode) {
	case windows.ERROR_SERVICE_SPECIFIC_ERROR:
		found.ExitCode = status.ServiceSpecificExitCode
	case windows.ERROR_SERVICE_NEVER_STARTED:
		found.ExitCode = 0
	}
	return found, nil
}

func (windowsMachine) write(p plan) error {
	s, err := openService(windows.SERVICE_ALL_ACCESS)
	fresh := errors.Is(err, ErrNotInstalled)
	if fresh {
		s, err = create(p)
	}
	if err != nil {
		return err
	}
	defer s.Close()
	if err := configure(s, p); err != nil {
		if fresh {
			err = errors.Join(err, s.Delete())
		}
		return fmt.Errorf("set up the service: %w", err)
	}
	return nil
}

// create creates the service; configure sets the rest of the plan.
func create(p plan) (*mgr.Service, error) {
	m, err := openManager(windows.SC_MANAGER_CONNECT | windows.SC_MANAGER_CREATE_SERVICE)
	if err != nil {
		return nil, err
	}
	defer m.Disconnect()
	var text [4]*uint16
	for i, s := range []string{p.Name, p.Display, p.Command, p.Account} {
		if text[i], err = windows.UTF16PtrFromString(s); err != nil {
			return nil, fmt.Errorf("make the service: %q: %w", s, err)
		}
	}
	h, err := windows.CreateService(m.Handle, text[0], text[1], windows.SERVICE_ALL_ACCESS,
		windows.SERVICE_WIN32_OWN_PROCESS,
		mgr.StartAutomatic, mgr.ErrorNormal, text[2], nil, nil, nil, text[3], nil)
	switch {
	case errors.Is(err, windows.ERROR_SERVICE_MARKED_FOR_DELETE):
		return nil, ErrBeingRemoved
	case err != nil:
		return nil, denied("make the service", err)
	}
	return &mgr.Service{Name: p.Name, Handle: h}, nil
}

// configure sets everything in the plan but the account. The token of the service contains its SID under every account,
// so rights granted to the SID remain.
func configure(s *mgr.Service, p plan) error {
	err := s.UpdateConfig(mgr.Config{
		ServiceType: windows.SERVICE_WIN32_OWN_PROCESS, StartType: mgr.StartAutomatic, ErrorControl: mgr.ErrorNormal,
		BinaryPathName: p.Command, DisplayName: p.Display, Description: p.Description,
		SidType: windows.SERVICE_SID_TYPE_UNRESTRICTED,
	})
	if err != nil {
		return err
	}
	var restarts []mgr.RecoveryAction
	for _, wait := range p.Restarts {
		restarts = append(restarts, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: wait})
	}
	if err := s.SetRecoveryActions(restarts, uint32(p.ResetAfter/time.Second)); err != nil {
		return err
	}
	if err := s.SetRecoveryActionsOnNonCrashFailures(true); err != nil {
		return err
	}
	within := uint32(p.Preshutdown / time.Millisecond) // SERVICE_PRESHUTDOWN_INFO
	return windows.ChangeServiceConfig2(s.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO,
		(*byte)(unsafe.Pointer(&within)))
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

func (windowsMachine) control(c control) error {
	right := uint32(windows.SERVICE_STOP)
	if c == controlParamChange {
		right = windows.SERVICE_PAUSE_CONTINUE
	}
	s, err := openService(right)
	if err != nil {
		return err
	}
	defer s.Close()
	// A service that has ended meanwhile is no error: the caller checks its state next.
	if _, err := s.Control(svc.Cmd(c)); err != nil && !errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE) {
		return fmt.Errorf("control the service: %w", err)
	}
	return nil
}

// registerEvents registers the message file with which the Event Viewer shows entries. It uses EventCreate.exe of
// Windows, whose messages consist of nothing but the given text.
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
