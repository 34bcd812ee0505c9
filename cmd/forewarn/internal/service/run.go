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

// A Host is what runs forewarn: a person's terminal, or the service manager of Windows.
type Host struct {
	Ready  func()           // is called when what a start may fail for is behind us
	Reload <-chan os.Signal // says that the settings are to be read again
}

// A Program is what Run runs as a service.
type Program struct {
	Run       func(context.Context, Host) error
	Log       func(EventWriter) *slog.Logger // makes the log; nil is given where the Event Log cannot be written
	ExitCode  func(error) int                // is 0 for a StoppedError
	CrashFile string                         // keeps what the runtime says of a crash until the next start
}

// A StoppedError is how a service ends that was asked to stop, and did not in order. Its exit code is 0: Windows takes any
// other for a failure, and starts the service again.
type StoppedError struct{ Err error }

func (e *StoppedError) Error() string { return e.Err.Error() }
func (e *StoppedError) Unwrap() error { return e.Err }

// A control is what Windows asks of a service, with Windows' own numbers.
type control uint32

const (
	controlStop        control = 1
	controlInterrogate control = 4
	controlShutdown    control = 5
	controlParamChange control = 6 // read the settings again: there is no SIGHUP on Windows
	controlPreshutdown control = 15
)

// A State is how far a service is, with Windows' own numbers.
type State uint32

const (
	Stopped      State = 1
	StartPending State = 2
	StopPending  State = 3
	Running      State = 4
)

// accepted are the controls that a running service takes, with Windows' own numbers: stop, shutdown, paramchange
// and preshutdown. Preshutdown comes before all services are ended, and is waited for longer than shutdown is.
const accepted = 0x1 | 0x4 | 0x8 | 0x100

// A report is what a service says about itself.
type report struct {
	State    State
	Accepts  uint32
	Progress uint32        // rises while a state lasts that is to pass
	Within   time.Duration // the next report comes within
}

const (
	beatEvery    = time.Second      // between two reports of a state that is to pass
	reportWithin = 10 * time.Second // what a report promises for the next
	stopLimit    = 15 * time.Second // a stop finishes what is under way within five seconds, and closes the outbox
)

// errStopTooSlow is how a service ends that does not stop. What it has not settled is sent again, with the same ids.
var errStopTooSlow = errors.New("the stop took too long and was cut off; what was under way is sent again after the next start")

// attend runs a service between the controls that Windows sends and what is told in answer, until run returns, or does
// not although it was asked to. tell is never called at the same time twice; that it stopped, the caller says. Once it
// was asked to stop, every error is a StoppedError.
func attend(controls <-chan control, tell func(report), run func(context.Context, Host) error) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ready, reload, ended := make(chan struct{}), make(chan os.Signal, 1), make(chan error, 1)
	now := report{State: StartPending, Within: reportWithin}
	tell(now)
	go func() {
		ended <- run(ctx, Host{Ready: sync.OnceFunc(func() { close(ready) }), Reload: reload})
	}()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
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
				tell(now)
			}
		case c := <-controls:
			switch c {
			case controlInterrogate:
				tell(now)
			case controlParamChange:
				select {
				case reload <- syscall.SIGHUP:
				default: // one that has not begun will do
				}
			case controlStop, controlShutdown, controlPreshutdown:
				if now.State == StopPending {
					break
				}
				stop()
				limit = time.After(stopLimit)
				now = report{State: StopPending, Within: reportWithin}
				tell(now)
			}
		case <-beat.C:
			if now.Within > 0 {
				now.Progress++
				tell(now)
			}
		case <-limit:
			return finish(errStopTooSlow)
		case err := <-ended:
			return finish(err)
		}
	}
}

// keepCrash has what the runtime says of a crash written to the file, because a service has no standard error, and
// returns what the last run left there.
func keepCrash(path string) (last string, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close() // the runtime has a handle of its own
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
