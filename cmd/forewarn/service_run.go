package main

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// A host is what runs forewarn: a person's terminal, or the service manager of Windows.
type host struct {
	ready  func()           // is called when what a start may fail for is behind us
	reload <-chan os.Signal // says that the settings are to be read again
}

// A serviceControl is what Windows asks of a service, with Windows' own numbers.
type serviceControl uint32

const (
	controlStop        serviceControl = 1
	controlInterrogate serviceControl = 4
	controlShutdown    serviceControl = 5
	controlParamChange serviceControl = 6 // read the settings again: there is no SIGHUP on Windows
	controlPreshutdown serviceControl = 15
)

// A serviceState is how far a service is, with Windows' own numbers.
type serviceState uint32

const (
	serviceStopped      serviceState = 1
	serviceStartPending serviceState = 2
	serviceStopPending  serviceState = 3
	serviceRunning      serviceState = 4
)

// servicesAccepted are the controls that a running service takes, with Windows' own numbers: stop, shutdown, paramchange
// and preshutdown. Preshutdown comes before all services are ended, and is waited for longer than shutdown is.
const servicesAccepted = 0x1 | 0x4 | 0x8 | 0x100

// A report is what a service says about itself.
type report struct {
	State    serviceState
	Accepts  uint32
	Progress uint32        // rises while a state lasts that is to pass
	Within   time.Duration // the next report comes within
}

const (
	serviceBeat      = time.Second      // between two reports of a state that is to pass
	serviceWithin    = 10 * time.Second // what a report promises for the next
	serviceStopLimit = 15 * time.Second // a stop finishes what is under way within five seconds, and closes the outbox
)

// errStopTooSlow is how a service ends that does not stop. What it has not settled is sent again, with the same ids.
var errStopTooSlow = errors.New("the stop took too long and was cut off; what was under way is sent again after the next start")

// attend runs a service between the controls that Windows sends and what is told in answer, until run returns, or does
// not although it was asked to. tell is never called at the same time twice; that it stopped, the caller says. Once it
// was asked to stop, every error has the exit code 0: Windows takes any other for a failure, and starts the service again.
func attend(controls <-chan serviceControl, tell func(report), run func(context.Context, host) error) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ready, reload, ended := make(chan struct{}), make(chan os.Signal, 1), make(chan error, 1)
	now := report{State: serviceStartPending, Within: serviceWithin}
	tell(now)
	go func() {
		ended <- run(ctx, host{ready: sync.OnceFunc(func() { close(ready) }), reload: reload})
	}()
	beat := time.NewTicker(serviceBeat)
	defer beat.Stop()
	started, limit := (<-chan struct{})(ready), (<-chan time.Time)(nil)
	finish := func(err error) error {
		if now.State == serviceStopPending {
			return exit(exitOK, err)
		}
		return err
	}
	for {
		select {
		case <-started:
			started = nil
			if now.State == serviceStartPending {
				now = report{State: serviceRunning, Accepts: servicesAccepted}
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
				if now.State == serviceStopPending {
					break
				}
				stop()
				limit = time.After(serviceStopLimit)
				now = report{State: serviceStopPending, Within: serviceWithin}
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

// exitCode is the one that err means.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	}
	return exitFailed
}
