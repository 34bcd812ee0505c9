package sinks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// waysToStart are ways in which a program starts $child, and goes on.
var waysToStart = map[string]string{
	"in its group":                 `$child &`,
	"under timeout":                `timeout 300 $child &`,
	"in a group of its own":        `set -m; $child &`,
	"in a session of its own":      `setsid $child &`,
	"in a session without parents": `setsid -f $child`,
}

// A family is a run of a program, the leader, that has started a child.
type family struct {
	leader, child net.Conn
	ended         chan error // what Deliver returned
}

// startFamily runs a program that starts a child in some way, with a task. The program ends when it gets SIGTERM.
func startFamily(t *testing.T, ctx context.Context, way, task, settings string) family {
	t.Helper()
	one, other := newWatch(t), newWatch(t)
	script := fmt.Sprintf("child=\"$0 task=%s $1\"; %s\nexec \"$0\" \"$2\"", task, way)
	s := mustOpen(t, "exec", asScript(t, "bash", script, other.address(), one.address())+settings, testHost(t))
	f := family{ended: make(chan error, 1)}
	go func() {
		_, err := s.Deliver(ctx, deliveries(t)[:1])
		f.ended <- err
	}()
	f.leader, f.child = one.begun(), other.begun()
	return f
}

// eachWay has a test for each way to start a child.
func eachWay(t *testing.T, test func(*testing.T, string)) {
	for name, way := range waysToStart {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			test(t, way)
		})
	}
}

// At its time limit a run is told to end with all that it has started, wherever that is. What needs a while to end has it,
// also when the program itself has ended, and the run is over as soon as it is gone.
func TestAllThatARunHasStartedMayCleanUpAtItsTimeLimit(t *testing.T) {
	eachWay(t, func(t *testing.T, way string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		f := startFamily(t, expires{ctx}, way, "careful", "stop_grace: 1h\nattempts: 1\n")
		cancel(errors.New("no end within 1s"))
		lines := bufio.NewReader(f.child)
		if said, err := lines.ReadString('\n'); said != "told\n" {
			t.Fatalf("the child says %q (%v), want that it was told to end", said, err)
		}
		dies(t, f.leader, "the program")
		fmt.Fprintln(f.child, "go on")
		if said, err := lines.ReadString('\n'); said != "done\n" {
			t.Errorf("the child says %q (%v), want that it has cleaned up", said, err)
		}
		if err := <-f.ended; err == nil || err.Error() != "rejected: no end within 1s: signal: terminated" {
			t.Errorf("Deliver = %v, want a failure that says it has left nothing", err)
		}
	})
}

// What doesn't end within stop_grace is killed then, not before, and said.
func TestWhatIsStillThereAfterTheGraceIsKilled(t *testing.T) {
	const grace = 300 * time.Millisecond
	eachWay(t, func(t *testing.T, way string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		f := startFamily(t, expires{ctx}, way, "deaf", fmt.Sprintf("stop_grace: %v\nattempts: 1\n", grace))
		began := time.Now()
		cancel(errors.New("no end within 1s"))
		dies(t, f.child, "the child")
		if took := time.Since(began); took < grace {
			t.Errorf("the child was killed after %v, want it to have %v", took, grace)
		}
		err, want := <-f.ended, "rejected: no end within 1s: signal: terminated: left "
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), " ended") {
			t.Errorf("Deliver = %v, want %q", err, want)
		}
	})
}

// When forewarn stops, all that a run has started is told to end too: nothing is left to be killed.
func TestAllThatARunHasStartedIsToldToEndAtAStop(t *testing.T) {
	eachWay(t, func(t *testing.T, way string) {
		ctx, cancel := context.WithCancel(t.Context())
		f := startFamily(t, ctx, way, "hang", "")
		cancel()
		if err := <-f.ended; err == nil || err.Error() != "context canceled: signal: terminated" {
			t.Errorf("Deliver = %v, want another attempt that says it has left nothing", err)
		}
	})
}
