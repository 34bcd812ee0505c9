package sinks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// running runs a command in the background. What it gives returns how the delivery ended.
func running(t *testing.T, s delivery.Sink) func() (delivery.Answer, error) {
	t.Helper()
	type end struct {
		answer delivery.Answer
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
		ended <- end{answer, err}
	}()
	return func() (delivery.Answer, error) {
		e := <-ended
		return e.answer, e.err
	}
}

// hastily opens a command that gives what it leaves no moment to end by itself.
func hastily(t *testing.T, settings string) delivery.Sink {
	t.Helper()
	s := mustOpen(t, "exec", settings, testHost(t))
	s.(*command).moment = 0
	return s
}

const leftOne = `left 1 process running \(sinks\.test[^)]*\), which was ended; wait for it, or start it ` + startApart

// A runbook that leaves a child running has failed, whatever its exit code: the child's work is not done, so nothing may
// be approved because of it. The child is ended, and holds nobody up though it keeps the output open.
func TestARunbookThatLeavesAChildHasFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code, attempts int
		class, text    string
	}{
		{0, 2, again, "^exit status 0: " + leftOne + "$"},
		{0, 1, rejected, "^rejected: exit status 0: " + leftOne + "$"},
		{3, 2, again, "^exit status 3: " + leftOne + "$"},
		{75, 1, again, "^exit status 75: " + leftOne + "$"},
		{78, 1, blocked, "^blocked: exit status 78: " + leftOne + "$"},
	} {
		one, other := newWatch(t), newWatch(t)
		settings := asCommand(t, "family", one.address(), other.address()) + "attempts: " + strconv.Itoa(tt.attempts)
		end := running(t, hastily(t, settings))
		leader, child := one.begun(), other.begun()
		fmt.Fprintln(leader, tt.code)
		answer, err := end()
		dies(t, child, "the child")
		if err == nil || classOf(err) != tt.class || !regexp.MustCompile(tt.text).MatchString(err.Error()) {
			t.Errorf("exit code %d with %d attempts: Deliver = %v, want %s and %q", tt.code, tt.attempts, err, tt.class,
				tt.text)
		}
		status := regexp.MustCompile(fmt.Sprintf("^exit %d after .*: %s$", tt.code, leftOne))
		if !status.MatchString(answer.Status) {
			t.Errorf("Answer.Status = %q, want %q", answer.Status, status)
		}
	}
}

// A child that ends when its runbook has ended, as the last member of a pipeline may, is no failure.
func TestAChildThatIsEndingIsNoFailure(t *testing.T) {
	t.Parallel()
	one, other := newWatch(t), newWatch(t)
	s := mustOpen(t, "exec", asCommand(t, "family", one.address(), other.address()), testHost(t))
	s.(*command).moment = time.Hour
	end := running(t, s)
	leader, child := one.begun(), other.begun()
	fmt.Fprintln(leader, 0)
	dies(t, leader, "the runbook")
	fmt.Fprintln(child, 0)
	if _, err := end(); err != nil {
		t.Errorf("Deliver = %v, want success", err)
	}
}

// While forewarn stops, nothing has a moment to end by itself: the run is repeated after the start.
func TestNothingIsWaitedForDuringAStop(t *testing.T) {
	t.Parallel()
	one, other := newWatch(t), newWatch(t)
	s := mustOpen(t, "exec", asCommand(t, "family", one.address(), other.address())+"attempts: 1", testHost(t))
	s.(*command).moment = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := s.Deliver(ctx, deliveries(t)[:1])
		ended <- err
	}()
	leader, child := one.begun(), other.begun()
	fmt.Fprintln(leader, 0)
	dies(t, leader, "the runbook")
	cancel()
	dies(t, child, "the child")
	if err := <-ended; classOf(err) != again || !errors.Is(err, context.Canceled) {
		t.Errorf("Deliver = %v, want another attempt, not counted", err)
	}
}

// Of what others run beside a runbook, nothing is ended and nothing counted as left by it.
func TestWhatOthersRunIsNotLeftByARunbook(t *testing.T) {
	t.Parallel()
	var leaders []net.Conn
	var ends []func() (delivery.Answer, error)
	for range 2 {
		w := newWatch(t)
		ends = append(ends, running(t, hastily(t, asCommand(t, "hang", w.address()))))
		leaders = append(leaders, w.begun())
	}
	for i, leader := range leaders {
		fmt.Fprintln(leader, 0)
		if _, err := ends[i](); err != nil {
			t.Errorf("run %d: Deliver = %v, want success", i, err)
		}
	}
}

// A runbook that closes its output has not ended by that.
func TestARunbookMayCloseItsOutput(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 75} {
		w := newWatch(t)
		end := running(t, mustOpen(t, "exec", asCommand(t, "mute", w.address()), testHost(t)))
		fmt.Fprintln(w.begun(), code)
		if answer, err := end(); (err == nil) != (code == 0) ||
			!strings.HasPrefix(answer.Status, fmt.Sprintf("exit %d after ", code)) {
			t.Errorf("Deliver = %q, %v, want exit %d", answer.Status, err, code)
		}
	}
}

// A program that has ended by itself before it was told to was not cut off, even if nobody has noticed its end yet.
func TestAProgramThatHasEndedIsNotCutOff(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := newWatch(t)
	program := exec.Command(self, w.address())
	program.Env, program.SysProcAttr = []string{"TASK=hang"}, processAttributes(account{})
	if _, err := startMarked(program, false); err != nil {
		t.Fatal(err)
	}
	defer program.Wait()
	group := newProcessGroup(program.Process, 0)
	defer group.close()
	fmt.Fprintln(w.begun(), 0)
	if !group.awaitEnd() {
		t.Skip("on this system the end of a program can't be noticed before it is reaped")
	}
	if group.terminate() {
		t.Error("terminate says that the program was still running, which has ended")
	}
}

// However many processes are left, their names are few, printable and without secrets.
func TestWhatIsLeftIsSaidInFewWords(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cret-token")
	many := []leftover{
		{pid: 1, name: "a\x1b[2J\nb"}, {pid: 2, name: "s3cret-token"}, {pid: 3, name: strings.Repeat("x", 1000)},
	}
	for range 500 {
		many = append(many, leftover{pid: 4, name: "y"})
	}
	got := describeLeft(many, redact, false)
	if !strings.HasPrefix(got, "left 503 processes running (") || !strings.Contains(got, "and 500 more") ||
		len(got) > 300 || bytes.ContainsAny([]byte(got), "\x1b\n") || strings.Contains(got, "s3cret") {
		t.Errorf("describeLeft = %q", got)
	}
	for _, left := range [][]leftover{{unfound}, many} {
		if got := describeLeft(left, redact, true); strings.Contains(got, "wait for") || !strings.HasPrefix(got, "left ") {
			t.Errorf("of a program that was stopped, describeLeft = %q, want no advice", got)
		}
	}
	some := []leftover{{pid: 1, name: "a", lives: true}, {pid: 2, name: "b"}}
	want := "left 2 processes running (a, b), which can't all be ended; wait for them, or start them " + startApart
	if got := describeLeft(some, redact, false); got != want {
		t.Errorf("describeLeft = %q, want %q", got, want)
	}
}
