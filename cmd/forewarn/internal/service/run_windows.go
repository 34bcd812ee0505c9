package service

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// If a number in run.go differed from Windows' own, this would not compile.
var _ = [...][1]struct{}{
	{uint32(controlStop) ^ uint32(svc.Stop): {}},
	{uint32(controlInterrogate) ^ uint32(svc.Interrogate): {}},
	{uint32(controlShutdown) ^ uint32(svc.Shutdown): {}},
	{uint32(controlParamChange) ^ uint32(svc.ParamChange): {}},
	{uint32(controlPreshutdown) ^ uint32(svc.PreShutdown): {}},
	{uint32(Stopped) ^ uint32(svc.Stopped): {}},
	{uint32(StartPending) ^ uint32(svc.StartPending): {}},
	{uint32(StopPending) ^ uint32(svc.StopPending): {}},
	{uint32(Running) ^ uint32(svc.Running): {}},
	{uint32(accepted) ^ uint32(svc.AcceptStop|svc.AcceptShutdown|svc.AcceptParamChange|svc.AcceptPreShutdown): {}},
}

// Run runs the program as a Windows service, until Windows asks it to stop or it ends. It handles no signals: Windows
// sends a service one for every user that logs off, which must not end it.
func Run(p Program) error {
	var write EventWriter
	if events, err := eventlog.Open(serviceName); err == nil {
		defer events.Close()
		write = func(level slog.Level, text string) error { return writeEvent(events, level, text) }
	}
	log := p.Log(write)
	last, err := recordCrashes(p.CrashFile)
	if last != "" {
		log.Error("the last run crashed:\r\n" + last) // in the message, where the Event Viewer shows it readable
	}
	if err != nil {
		log.Warn("cannot record crashes", "err", err)
	}
	m := &handler{program: p, ended: func(err error) {
		if err != nil {
			log.Error("forewarn ended: "+err.Error(), "exitCode", p.ExitCode(err))
		} else {
			log.Info("forewarn stopped cleanly")
		}
	}}
	err = svc.Run(serviceName, m)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		return errors.New("only Windows runs forewarn as a service; to start the service, run forewarn service start")
	} else if err != nil {
		return errors.Join(m.err, fmt.Errorf("run as a service: %w", err))
	}
	return m.err
}

// writeEvent writes an entry. Its id is its level: 1 information, 2 warning, 3 error.
func writeEvent(events *eventlog.Log, level slog.Level, text string) error {
	switch {
	case level >= slog.LevelError:
		return events.Error(3, text)
	case level >= slog.LevelWarn:
		return events.Warning(2, text)
	}
	return events.Info(1, text)
}

// handler adapts serveControls to svc.Handler.
type handler struct {
	program Program
	ended   func(error) // called before the final report, after which Windows may kill the process at any time
	err     error
}

// Execute implements svc.Handler; svc.Run calls it once. The exit code is our own, not one of Windows'.
func (a *handler) Execute(
	_ []string, requests <-chan svc.ChangeRequest, statuses chan<- svc.Status,
) (own bool, code uint32) {
	controls, over := make(chan control), make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case r := <-requests:
				select {
				case controls <- control(r.Cmd):
				case <-over:
					return
				}
			case <-over:
				return
			}
		}
	}()
	a.err = serveControls(controls, func(r report) {
		statuses <- svc.Status{
			State: svc.State(r.State), Accepts: svc.Accepted(r.Accepts), CheckPoint: r.Progress,
			WaitHint: uint32(r.Within / time.Millisecond),
		}
	}, a.program.Run)
	a.ended(a.err)
	return true, uint32(a.program.ExitCode(a.err))
}
