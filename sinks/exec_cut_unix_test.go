//go:build unix

package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"forewarn/bridge/delivery"
)

// cutRun runs a command that ends with a code when it is told to, and has the run end as end says once it has begun.
func cutRun(t *testing.T, code, attempts int, end func(context.Context) (ctx context.Context, cut func())) (
	delivery.Answer, error) {
	t.Helper()
	w := newWatch(t)
	settings := asCommand(t, "obliging", w.address(), strconv.Itoa(code)) +
		fmt.Sprintf("stop_grace: 1h\nattempts: %d\n", attempts)
	s := mustOpen(t, "exec", settings, testHost(t))
	ctx, cut := end(t.Context())
	go func() {
		w.begun()
		cut()
	}()
	return s.Deliver(ctx, deliveries(t)[:1])
}

// What a program says after it was told to end says nothing about its work. A run that is out of time has failed, whatever
// its exit code, and that counts.
func TestARunOutOfTimeHasFailedWhateverItsExitCode(t *testing.T) {
	t.Parallel()
	outOfTime := func(ctx context.Context) (context.Context, func()) {
		ctx, cancel := context.WithCancelCause(ctx)
		return expires{ctx}, func() { cancel(errors.New("no end within 1s")) }
	}
	for _, tt := range []struct {
		code, attempts int
		class          string
	}{
		{0, 1, rejected}, {0, 2, again}, {3, 1, rejected}, {3, 2, again},
		{75, 1, rejected}, {75, 2, again}, {78, 1, rejected}, {78, 2, again},
	} {
		answer, err := cutRun(t, tt.code, tt.attempts, outOfTime)
		if want := fmt.Sprintf("no end within 1s: exit status %d: cleaning up", tt.code); err == nil ||
			classOf(err) != tt.class || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("exit code %d with %d attempts: Deliver = %v, want %s that says %q", tt.code, tt.attempts, err, tt.class,
				want)
		}
		if n := failedIn(t, answer); tt.class == again && n != 1 {
			t.Errorf("exit code %d: %d failed runs count, want 1", tt.code, n)
		}
	}
}

// A run that the bridge's stop has cut off is repeated and doesn't count, whatever its exit code.
func TestARunThatAStopCutsOffIsRepeatedWhateverItsExitCode(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 3, 75, 78} {
		answer, err := cutRun(t, code, 1, func(ctx context.Context) (context.Context, func()) {
			return context.WithCancel(ctx)
		})
		if err == nil || classOf(err) != again || !errors.Is(err, context.Canceled) {
			t.Errorf("exit code %d: Deliver = %v, want another attempt", code, err)
		}
		if n := failedIn(t, answer); n != 0 {
			t.Errorf("exit code %d: %d failed runs count, want none", code, n)
		}
	}
}

// failedIn returns how many failed runs an answer counts.
func failedIn(t *testing.T, answer delivery.Answer) int {
	t.Helper()
	var r execReceipt
	if answer.Receipt != nil {
		if err := json.Unmarshal(answer.Receipt, &r); err != nil {
			t.Error(err)
		}
	}
	return r.Failed
}
