package service

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// A Host connects a run of forewarn with its surroundings: a terminal, systemd, or the Windows service manager.
type Host struct {
	Ready  func()           // Run calls it once nothing can fail the start any more
	Reload <-chan os.Signal // receives when the settings are to be reloaded
}

// A Program is what Run runs as a Windows service.
type Program struct {
	Run       func(context.Context, Host) error
	Log       func(EventWriter) *slog.Logger // makes the logger; nil means that the Event Log cannot be written
	ExitCode  func(error) int                // must be 0 for a StoppedError
	CrashFile string                         // keeps the runtime's report of a crash until the next start
}

// A StoppedError means that the service was asked to stop but did not stop cleanly. Its exit code must be 0: after any
// other, Windows starts the service again.
type StoppedError struct{ Err error }

func (e *StoppedError) Error() string { return e.Err.Error() }
func (e *StoppedError) Unwrap() error { return e.Err }

// A control is a request of Windows to a service, with Windows' own numbers.
type control uint32

const (
	controlStop        control = 1
	controlInterrogate control = 4
	controlShutdown    control = 5
	controlParamChange control = 6 // reload the settings, as SIGHUP does elsewhere
	controlPreshutdown control = 15
)

// A State is the state of a service, with Windows' own numbers.
type State uint32

// The states that forewarn uses.
const (
	Stopped      State = 1
	StartPending State = 2
	StopPending  State = 3
	Running      State = 4
)

// accepted are the controls that a running service accepts, as Windows' bits: stop, shutdown, paramchange and
// preshutdown. Windows sends preshutdown before it ends any service, and waits longer for it than for shutdown.
const accepted = 0x1 | 0x4 | 0x8 | 0x100

// A report is what a service reports to Windows about itself.
type report struct {
	State    State
	Accepts  uint32
	Progress uint32        // increases while StartPending or StopPending lasts
	Within   time.Duration // time until the next report, at most
}

const (
	progressEvery = time.Second      // interval of reports in StartPending and StopPending
	reportWithin  = 10 * time.Second // report.Within in these states
	stopLimit     = 15 * time.Second // a clean stop takes about five seconds, plus closing the outbox
)

// errStopTooSlow means that the service did not stop in time. Deliveries that were not settled are sent again after the
// next start, with the same ids.
var errStopTooSlow = errors.New("the stop took too long and was aborted; " +
	"unfinished deliveries are sent again after the next start")

// serveControls calls run, answers the controls of Windows and reports the state with reportState, until run returns or
// does not stop in time. It does not report Stopped; the caller does. Calls of reportState never overlap. After a
// request to stop, every error is a StoppedError.
func serveControls(controls <-chan control, reportState func(report), run func(context.Context, Host) error) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ready, reload, ended := make(chan struct{}), make(chan os.Signal, 1), make(chan error, 1)
	now := report{State: StartPending, Within: reportWithin}
	reportState(now)
	go func() {
		ended <- run(ctx, Host{Ready: sync.OnceFunc(func() { close(ready) }), Reload: reload})
	}()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	started, limit := (<-chan struct{})(ready), (<-chan time.Time)(nil)
	finish := func(err error) error {
		if err != nil && now.State == StopPending {
			return &StoppedError{err}
		}
		return err
	}
	for {
		select {
		case <-started:
			started = nil
			if now.State == StartPending {
				now = report{State: Running, Accepts: accepted}
				reportState(now)
			}
		case c := <-controls:
			switch c {
			case controlInterrogate:
				reportState(now)
			case controlParamChange:
				select {
				case reload <- syscall.SIGHUP:
				default: // a reload is pending already
				}
			case controlStop, controlShutdown, controlPreshutdown:
				if now.State == StopPending {
					break
				}
				stop()
				limit = time.After(stopLimit)
				now = report{State: StopPending, Within: reportWithin}
				reportState(now)
			}
		case <-ticker.C:
			if now.Within > 0 {
				now.Progress++
				reportState(now)
			}
		case <-limit:
			return finish(errStopTooSlow)
		case err := <-ended:
			return finish(err)
		}
	}
}

// recordCrashes lets the runtime write the report of a crash to the file, because a service has no standard error. It
// returns the report of the last run.
func recordCrashes(path string) (last string, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close() // the runtime duplicates the handle
	text, err := io.ReadAll(io.LimitReader(f, eventLimit))
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = debug.SetCrashOutput(f, debug.CrashOptions{})
	}
	return string(text), err
}
