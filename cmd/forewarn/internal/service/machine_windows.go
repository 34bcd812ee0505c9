package service

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
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

// StartCommand returns the command that starts the service, if it is installed and its settings are at config; "" if
// not.
func StartCommand(config, _ string) string {
	s, err := windowsMachine{}.query()
	if err != nil || !strings.Contains(strings.ToLower(s.Command), strings.ToLower(config)) {
		return ""
	}
	return "forewarn service start"
}

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

func (windowsMachine) query() (Status, error) {
	s, err := openService(windows.SERVICE_QUERY_STATUS | windows.SERVICE_QUERY_CONFIG)
	if err != nil {
		return Status{}, err
	}
	defer s.Close()
	status, err := s.Query()
	if err != nil {
		return Status{}, fmt.Errorf("look at the service: %w", err)
	}
	c, command, account, err := config(s)
	if err != nil {
		return Status{}, fmt.Errorf("look at the service: %w", err)
	}
	found := Status{
		State: State(status.State), PID: status.ProcessId, ExitCode: status.Win32ExitCode,
		Command: command, Account: account,
		Start: map[uint32]string{
			mgr.StartAutomatic: "automatic", mgr.StartManual: "manual", mgr.StartDisabled: "disabled",
		}[c.StartType],
	}
	switch windows.Errno(status.Win32ExitCode) {
	case windows.ERROR_SERVICE_SPECIFIC_ERROR:
		found.ExitCode = status.ServiceSpecificExitCode
	case windows.ERROR_SERVICE_NEVER_STARTED:
		found.ExitCode = 0
	}
	return found, nil
}

func (windowsMachine) write(p plan) (unsupported []string, err error) {
	s, err := openService(windows.SERVICE_ALL_ACCESS)
	fresh := errors.Is(err, ErrNotInstalled)
	if fresh {
		s, err = create(p)
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	unsupported, err = configure(s, p)
	if err != nil {
		if fresh {
			err = errors.Join(err, s.Delete())
		}
		return nil, fmt.Errorf("set up the service: %w", err)
	}
	return unsupported, nil
}

// create creates the service; configure sets the rest of the plan.
func create(p plan) (*mgr.Service, error) {
	m, err := openManager(windows.SC_MANAGER_CONNECT | windows.SC_MANAGER_CREATE_SERVICE)
	if err != nil {
		return nil, err
	}
	defer m.Disconnect()
	var text [4]*uint16
	for i, s := range []string{p.Name, p.Display, windows.ComposeCommandLine(p.Command), p.Account} {
		text[i], err = windows.UTF16PtrFromString(s)
		if err != nil {
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
// so rights granted to the SID remain. unsupported names what this version of Windows lacks.
func configure(s *mgr.Service, p plan) (unsupported []string, err error) {
	command, err := windows.UTF16PtrFromString(windows.ComposeCommandLine(p.Command))
	if err != nil {
		return nil, err
	}
	display, err := windows.UTF16PtrFromString(p.Display)
	if err != nil {
		return nil, err
	}
	err = windows.ChangeServiceConfig(s.Handle, windows.SERVICE_WIN32_OWN_PROCESS, mgr.StartAutomatic, mgr.ErrorNormal,
		command, nil, nil, nil, nil, nil, display)
	if err != nil {
		return nil, err
	}
	description, err := windows.UTF16PtrFromString(p.Description)
	if err != nil {
		return nil, err
	}
	var restarts []windows.SC_ACTION
	for _, wait := range p.Restarts {
		restarts = append(restarts, windows.SC_ACTION{Type: mgr.ServiceRestart, Delay: uint32(wait / time.Millisecond)})
	}
	var (
		recovery = windows.SERVICE_FAILURE_ACTIONS{
			ResetPeriod: uint32(p.ResetAfter / time.Second), ActionsCount: uint32(len(restarts)), Actions: &restarts[0],
		}
		onExit      = windows.SERVICE_FAILURE_ACTIONS_FLAG{FailureActionsOnNonCrashFailures: 1}
		sid         = uint32(windows.SERVICE_SID_TYPE_UNRESTRICTED) // SERVICE_SID_INFO
		delayed     windows.SERVICE_DELAYED_AUTO_START_INFO         // not delayed
		preshutdown = uint32(p.Preshutdown / time.Millisecond)      // SERVICE_PRESHUTDOWN_INFO
		text        = windows.SERVICE_DESCRIPTION{Description: description}
	)
	for _, set := range []struct {
		what  string
		level uint32
		info  unsafe.Pointer
	}{
		{"descriptions of services", windows.SERVICE_CONFIG_DESCRIPTION, unsafe.Pointer(&text)},
		{"delayed starts", windows.SERVICE_CONFIG_DELAYED_AUTO_START_INFO, unsafe.Pointer(&delayed)},
		{"SIDs of services", windows.SERVICE_CONFIG_SERVICE_SID_INFO, unsafe.Pointer(&sid)},
		{"restarts after a failure", windows.SERVICE_CONFIG_FAILURE_ACTIONS, unsafe.Pointer(&recovery)},
		{"restarts after an exit code", windows.SERVICE_CONFIG_FAILURE_ACTIONS_FLAG, unsafe.Pointer(&onExit)},
		{"a time to stop before a shutdown", windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, unsafe.Pointer(&preshutdown)},
	} {
		switch err := windows.ChangeServiceConfig2(s.Handle, set.level, (*byte)(set.info)); {
		case errors.Is(err, windows.ERROR_INVALID_LEVEL): // wine
			unsupported = append(unsupported, set.what)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", set.what, err)
		}
	}
	return unsupported, nil
}

// config returns what the service was created with; mgr.Service.Config also asks what wine does not know.
func config(s *mgr.Service) (c windows.QUERY_SERVICE_CONFIG, command, account string, err error) {
	var size uint32
	err = windows.QueryServiceConfig(s.Handle, nil, 0, &size)
	if !errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) {
		return c, "", "", err
	}
	room := make([]uint64, (size+7)/8) // aligned
	found := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&room[0]))
	if err := windows.QueryServiceConfig(s.Handle, found, size, &size); err != nil {
		return c, "", "", err
	}
	return *found, windows.UTF16PtrToString(found.BinaryPathName), windows.UTF16PtrToString(found.ServiceStartName), nil
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
