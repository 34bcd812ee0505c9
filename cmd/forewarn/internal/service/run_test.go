package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A tended service is one that a test plays the service manager for.
type tended struct {
	controls chan control
	host     chan Host // what the run was given
	end      chan error
	asked    chan struct{} // closed when the run was asked to stop
	ended    chan error    // what serveControls returned

	mu   sync.Mutex
	told []report
}

// tend starts a service whose run ends with what is sent on end.
func tend() *tended {
	s := &tended{
		controls: make(chan control), host: make(chan Host, 1), end: make(chan error, 1),
		asked: make(chan struct{}), ended: make(chan error, 1),
	}
	go func() {
		s.ended <- serveControls(s.controls, func(r report) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.told = append(s.told, r)
		}, func(ctx context.Context, h Host) error {
			s.host <- h
			context.AfterFunc(ctx, func() { close(s.asked) })
			return <-s.end
		})
	}()
	return s
}

// states are those that were told, each once, however often it was repeated.
func (s *tended) states() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for _, r := range s.told {
		words = append(words, r.State.String())
	}
	return strings.Join(slices.Compact(words), " ")
}

func (s *tended) last() report {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[len(s.told)-1]
}

// asks says whether the run was asked to stop.
func (s *tended) asks() bool {
	synctest.Wait()
	select {
	case <-s.asked:
		return true
	default:
		return false
	}
}

// A service starts, accepts controls only when it is ready, stops cleanly on each of the three stop controls, and
// reports each state.
func TestServiceReportsItsStates(t *testing.T) {
	for _, how := range []control{controlStop, controlShutdown, controlPreshutdown} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tend()
				if got := s.last(); got.State != StartPending || got.Accepts != 0 {
					t.Errorf("before it is ready it tells %+v, want it starting and to accept nothing", got)
				}
				(<-s.host).Ready()
				if got, want := s.last(), (report{State: Running, Accepts: 0x10d}); got != want {
					t.Errorf("when it is ready it tells %+v, want %+v", got, want)
				}
				if s.asks() {
					t.Error("the run is asked to stop although nobody asked for it")
				}
				s.controls <- how
				if !s.asks() {
					t.Error("the run is not asked to stop")
				}
				s.controls <- controlStop // again, by somebody without patience
				s.end <- nil
				if err := <-s.ended; err != nil {
					t.Errorf("it ends with %v", err)
				}
				if got, want := s.states(), "starting running stopping"; got != want {
					t.Errorf("it was %s, want %s", got, want)
				}
				if got := s.last(); got.Accepts != 0 {
					t.Errorf("while it stops it accepts %#x, want nothing", got.Accepts)
				}
			})
		})
	}
}

// While it starts or stops, the service reports progress before the previous report expires. While it runs, it reports
// nothing.
func TestServiceReportsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tend()
		time.Sleep(reportWithin)
		starting := s.last()
		if starting.State != StartPending || starting.Progress == 0 || progressEvery >= starting.Within {
			t.Errorf("after a long start it tells %+v, want progress, promised for more than %v", starting, progressEvery)
		}
		(<-s.host).Ready()
		running := s.last()
		time.Sleep(time.Hour)
		if got := s.last(); got != running || running.Within != 0 {
			t.Errorf("while it runs it tells %+v and then %+v", running, got)
		}
		s.controls <- controlStop
		time.Sleep(progressEvery + 1)
		if got := s.last(); got.State != StopPending || got.Progress != 1 {
			t.Errorf("during a stop it tells %+v, want progress", got)
		}
		s.end <- nil
		<-s.ended
	})
}

// A run that does not stop is abandoned before a shutdown would kill it, and the service manager gets answers until
// then. The exit code is 0, because Windows would restart the service after any other.
func TestServiceStopsWithinItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tend()
		(<-s.host).Ready()
		synctest.Wait()
		began := time.Now()
		s.controls <- controlPreshutdown
		time.Sleep(5 * time.Second)
		s.controls <- controlInterrogate
		if got := s.last(); got.State != StopPending {
			t.Errorf("asked during a stop it tells %+v", got)
		}
		if err := <-s.ended; !errors.Is(err, errStopTooSlow) {
			t.Errorf("it ends with %v, want %v", err, errStopTooSlow)
		} else if stopped := (*StoppedError)(nil); !errors.As(err, &stopped) {
			t.Errorf("it ends with %v, want it known as a stop that was asked for", err)
		}
		if took, limit := time.Since(began), newPlan("x", nil).Preshutdown; took >= limit {
			t.Errorf("it took %v, and Windows waits %v", took, limit)
		}
		s.end <- nil
	})
}

// A service that fails while it stops has stopped, and says why.
func TestServiceThatFailsWhileStoppingStaysStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, broken := tend(), errors.New("the outbox cannot be closed")
		(<-s.host).Ready()
		s.controls <- controlStop
		s.end <- broken
		err, stopped := <-s.ended, (*StoppedError)(nil)
		if !errors.Is(err, broken) || !errors.As(err, &stopped) {
			t.Errorf("it ends with %v, want %v, known as a stop that was asked for", err, broken)
		}
	})
}

// The runtime's report of a crash is available at the next start, once.
func TestCrashIsKeptForTheNextStart(t *testing.T) {
	const file = "FOREWARN_TEST_CRASH"
	if path := os.Getenv(file); path != "" {
		if _, err := recordCrashes(path); err != nil {
			t.Fatal(err)
		}
		go panic("the poll loop fell over")
		select {}
	}
	path := filepath.Join(t.TempDir(), "crash.txt")
	for range 2 { // the second one replaces the first
		crash := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		crash.Env = append(os.Environ(), file+"="+path)
		if out, err := crash.CombinedOutput(); err == nil {
			t.Fatalf("it did not crash: %s", out)
		}
		left, err := os.ReadFile(path)
		if err != nil || strings.Count(string(left), "panic: the poll loop fell over") != 1 {
			t.Errorf("a crash leaves %q, %v; want one trace", left, err)
		}
	}
	for _, want := range []int{1, 0} {
		if last, err := recordCrashes(path); err != nil || strings.Count(last, "panic: ") != want {
			t.Errorf("a start finds %q, %v; want %d traces", last, err, want)
		}
	}
	if err := debug.SetCrashOutput(nil, debug.CrashOptions{}); err != nil {
		t.Error(err)
	}
}

// ParamChange reloads the settings, once for all requests before the reload begins. It never blocks the service
// manager.
func TestServiceReloadsOnParamChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tend()
		h := <-s.host
		h.Ready()
		for range 3 {
			s.controls <- controlParamChange
		}
		synctest.Wait()
		got := []os.Signal{<-h.Reload}
		select {
		case again := <-h.Reload:
			got = append(got, again)
		default:
		}
		if len(got) != 1 {
			t.Errorf("three controls before it reads are %v, want one", got)
		}
		s.controls <- controlParamChange
		<-h.Reload
		if s.last().State != Running || s.asks() {
			t.Errorf("after a reload it tells %+v", s.last())
		}
		s.end <- nil
		<-s.ended
	})
}

// A start that fails ends the service with the error of the run, and never reports Running. Its exit code counts,
// because nobody asked it to stop.
func TestServiceThatCannotStartEndsWithItsError(t *testing.T) {
	for _, broken := range []error{errors.New("settings: no"), errStopTooSlow, nil} {
		synctest.Test(t, func(t *testing.T) {
			s := tend()
			s.end <- broken
			if err := <-s.ended; err != broken {
				t.Errorf("it ends with %v, want %v itself", err, broken)
			}
			if got := s.states(); got != "starting" {
				t.Errorf("it was %s, want only starting", got)
			}
		})
	}
}

// A service that becomes ready only after it was asked to stop does not report Running again.
func TestServiceStopsAlsoWhileItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tend()
		s.controls <- controlShutdown
		if !s.asks() {
			t.Error("the run is not asked to stop")
		}
		(<-s.host).Ready()
		if got, want := s.states(), "starting stopping"; got != want {
			t.Errorf("it was %s, want %s", got, want)
		}
		s.end <- nil
		<-s.ended
	})
}
