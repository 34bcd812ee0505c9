package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"forewarn/bridge/systemtest"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asScript returns settings that run a shell script with arguments. The script has a program as $0, which hangs on the
// address that it is given as its argument.
func asScript(t *testing.T, shell, script string, arguments ...string) string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("%v; CI has it", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command, err := json.Marshal(append([]string{path, "-c", script, self}, arguments...))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("command: %s\nenv: {GORACE: atexit_sleep_ms=0, TASK: hang}\n", command)
}

// Whatever way a runbook leaves a child, it is found, ended and said.
func TestEveryWayToLeaveAChildIsFound(t *testing.T) {
	for name, script := range map[string]string{
		"plain":                         `"$0" "$1" &`,
		"nohup":                         `nohup "$0" "$1" >/dev/null 2>&1 &`,
		"setsid":                        `setsid "$0" "$1" &`,
		"setsid -f":                     `setsid -f "$0" "$1"`,
		"below a subshell":              `("$0" "$1" &)`,
		"two sessions away":             `(setsid setsid -f "$0" "$1" </dev/null >/dev/null 2>&1 &)`,
		"a group of its own":            `set -m; "$0" "$1" &`,
		"after output is closed":        `exec >&- 2>&-; "$0" "$1" &`,
		"disowned":                      `"$0" "$1" & disown`,
		"deaf":                          `trap '' TERM HUP; "$0" "$1" &`,
		"a coprocess":                   `coproc "$0" "$1"`,
		"a pipeline's":                  `true | "$0" "$1" &`,
		"an environment of its own":     `env -i TASK=hang setsid -f "$0" "$1"`,
		"an overwritten environment":    `TASK=overwrite setsid -f "$0" "$1"`,
		"a first thread that has ended": `TASK=headless setsid -f "$0" "$1"`,
		"a first thread that has ended, in its group": `TASK=headless "$0" "$1" &`,
		"another directory":                           `cd /tmp; umask 0; unset HOME PATH; "$0" "$1" &`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			one, other := newWatch(t), newWatch(t)
			settings := asScript(t, "bash", script+"\n"+`"$0" "$2"`, other.address(), one.address())
			end := running(t, hastily(t, settings))
			leader, child := one.begun(), other.begun()
			fmt.Fprintln(leader, 0)
			_, err := end()
			if err == nil || !regexp.MustCompile(leftOne).MatchString(err.Error()) {
				t.Errorf("Deliver = %v, want %q", err, leftOne)
			}
			dies(t, child, "the child")
		})
	}
}

// A daemon lets its parents end one after the other, so that whoever looks at the wrong moment sees a process that ends
// and not the one that it has started. It is found whenever that is.
func TestNoDaemonEscapes(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	const daemon = `setsid bash -c '(sleep 60; :) & disown' >/dev/null 2>&1 </dev/null &`
	s := hastily(t, asScript(t, "bash", daemon))
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if err == nil || !strings.Contains(err.Error(), " running (") || !strings.Contains(err.Error(), "ended; wait for") {
				t.Errorf("Deliver = %v, want the daemon found and ended", err)
			}
		})
	}
	all.Wait()
}

// A chain of processes, of which each starts the next one in a session of its own and ends, never stands still to be
// seen. Its run doesn't succeed before the chain has ended, by itself if nobody was quick enough to end it.
func TestAProgramThatKeepsForkingIsNotTakenForDone(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	const chain = `use POSIX; fork and exit; $until = time + 20; while (time < $until) { setsid; fork and _exit 0 }`
	s := hastily(t, asScript(t, "bash", "exec perl -e '"+chain+"' </dev/null >/dev/null 2>&1"))
	began := time.Now()
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	took := time.Since(began)
	switch {
	case err == nil && took < 19*time.Second: // time in perl is in whole seconds
		t.Errorf("Deliver = nil after %v, while the chain goes on; want what it has left", took)
	case err != nil && !strings.Contains(err.Error(), " running ("):
		t.Errorf("Deliver = %v, want what it has left", err)
	}
}

// What a run has left is not only ended: nothing is left of it, also if it is forewarn's own child, as a program can make
// it, and also what has ended by itself while the run lasted.
func TestNoZombieIsLeft(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		`fork or sleep 60`,
		`use POSIX; fork and exit; setsid; fork and exit; sleep 60`,
		`fork or exit; select undef, undef, undef, 0.1`,
		fmt.Sprintf(`syscall(%d, %d, 0, 0, 0, 0) or sleep 60`, unix.SYS_CLONE, unix.CLONE_PARENT|unix.SIGCHLD),
	} {
		cmd := exec.Command("perl", "-e", `$0 = "leavesnothing"; `+script)
		if cmd.Err != nil {
			t.Skipf("%v; CI has it", cmd.Err)
		}
		cmd.SysProcAttr = processAttributes(account{})
		if _, err := runGroup(t.Context(), cmd, runTerms{marked: true}); err != nil {
			t.Errorf("%s: %v", script, err)
		}
		for _, child := range children(t) {
			if child.name == "leavesnothing" {
				t.Errorf("%s: left %+v", script, child)
			}
		}
	}
}

// children returns the children of this process.
func children(t *testing.T) (all []process) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		pid, _ := strconv.Atoi(filepath.Base(path))
		p, err := readProcess(pid)
		if err == nil && p.parent == os.Getpid() {
			all = append(all, p)
		}
	}
	return all
}

// A child that takes off the run's mark, in a session of its own, is not found. If it has the runbook's output open, the
// runbook has failed all the same.
func TestAHiddenChildIsKnownByItsOutput(t *testing.T) {
	t.Parallel()
	one, other := newWatch(t), newWatch(t)
	script := `(ulimit -Sx unlimited; setsid -f "$0" "$1"); "$0" "$2"`
	end := running(t, hastily(t, asScript(t, "bash", script, other.address(), one.address())))
	leader, child := one.begun(), other.begun()
	fmt.Fprintln(leader, 0)
	_, err := end()
	if classOf(err) != again || !strings.Contains(err.Error(), "left something running that has its output open") {
		t.Errorf("Deliver = %v, want a failure because of the output", err)
	}
	fmt.Fprintln(child, 0) // it is still there to hear this, and ends
}

// What a runbook waits for, or has another program start, is nothing that it leaves.
func TestARunbookThatWaitsLeavesNothing(t *testing.T) {
	for name, script := range map[string]string{
		"reaped":              `true & wait`,
		"reaped by the shell": `true & sleep 0; true`,
		"a pipeline":          `seq 10000 | sort -r | tail -n 1`,
		"its own output":      `exec > >(cat); echo drained`,
		"in the background":   `for i in 1 2 3 4 5; do sleep 0 & done; wait`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, "exec", asScript(t, "bash", script), testHost(t))
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
				t.Errorf("Deliver = %v, want success", err)
			}
		})
	}
}

// What a service manager starts for a runbook, as systemd-run asks for, lives on: it is no process of the run.
func TestWhatAServiceManagerStartsLivesOn(t *testing.T) {
	t.Parallel()
	one, other := newWatch(t), newWatch(t)
	end := running(t, hastily(t, asCommand(t, "hang", one.address())))
	leader := one.begun()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	service := exec.Command(self, other.address())
	service.Env = []string{"TASK=hang"}
	if _, err := startMarked(service, false); err != nil {
		t.Fatal(err)
	}
	conn := other.begun()
	fmt.Fprintln(leader, 0)
	if _, err := end(); err != nil {
		t.Errorf("Deliver = %v, want success", err)
	}
	fmt.Fprintln(conn, 0) // it is still there to hear this, and ends
	if err := service.Wait(); err != nil {
		t.Errorf("the service ended with %v, want it left alone", err)
	}
}

// A runbook that leaves many processes leaves none of them, in whatever sessions they are.
func TestARunbookThatForksLeavesNothing(t *testing.T) {
	t.Parallel()
	const children = 30
	one, other := newWatch(t), newWatch(t)
	script := fmt.Sprintf(`for i in $(seq %d); do setsid -f "$0" "$1"; done; "$0" "$2"`, children)
	end := running(t, hastily(t, asScript(t, "bash", script, other.address(), one.address())))
	var all []net.Conn
	for range children {
		all = append(all, other.begun())
	}
	fmt.Fprintln(one.begun(), 0)
	_, err := end()
	if want := fmt.Sprintf("left %d processes running", children); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Deliver = %v, want %q", err, want)
	}
	for _, child := range all {
		dies(t, child, "a child")
	}
}

// The name of a program may hold anything, and is not mistaken for what /proc says beside it.
func TestProcessNamesMayHoldAnything(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := t.TempDir() + "/a) Z 1 (b"
	if err := os.Symlink(self, name); err != nil {
		t.Fatal(err)
	}
	w := newWatch(t)
	odd := exec.Command(name, w.address())
	odd.Env = []string{"TASK=hang"}
	if _, err := startMarked(odd, false); err != nil {
		t.Fatal(err)
	}
	conn := w.begun()
	p, err := readProcess(odd.Process.Pid)
	if err != nil || p.name != "a) Z 1 (b" || p.state == "Z" || p.start == 0 || p.threads < 2 {
		t.Errorf("readProcess = %+v, %v", p, err)
	}
	fmt.Fprintln(conn, 0)
	odd.Wait()
}

// The mark of a run is on what it starts and nowhere else: not on forewarn, nor on what it starts beside the run.
func TestAMarkIsOnOneRunAlone(t *testing.T) {
	t.Parallel()
	mine := func() uint64 {
		marking.Lock()
		defer marking.Unlock()
		return process{pid: os.Getpid()}.mark()
	}
	before := mine()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	marks := map[uint64]bool{}
	for _, marked := range []bool{true, false, true} {
		w := newWatch(t)
		cmd := exec.Command(self, w.address())
		cmd.Env = []string{"TASK=hang"}
		mark, err := startMarked(cmd, marked)
		defer endMarked(mark)
		if err != nil {
			t.Fatal(err)
		}
		conn := w.begun()
		its := process{pid: cmd.Process.Pid}
		if marked && (mark == 0 || its.mark() != mark) || !marked && (mark != 0 || its.mark() != before) || marks[mark] {
			t.Errorf("marked %v: its mark is %d, want %d, and of its own", marked, its.mark(), mark)
		}
		marks[mark] = true
		fmt.Fprintln(conn, 0)
		cmd.Wait()
	}
	if after := mine(); after != before {
		t.Errorf("forewarn's own mark was %d and is now %d", before, after)
	}
}

// What can't be ended, because it has become another user, is found, and not said to have been ended.
func TestWhatCannotBeEndedIsNotSaidToBe(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a program that becomes root")
	}
	a, err := findAccount("nobody")
	if err != nil {
		t.Skip(err)
	}
	becomesRoot := publicCopy(t)
	if err := os.Chmod(becomesRoot, os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	ce, err := deliveries(t)[0].Event.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	one, other := newWatch(t), newWatch(t)
	settings := asScript(t, "bash", `TASK=root setsid -f "$1" "$2"; "$1" "$3"`, becomesRoot, other.address(), one.address())
	var out bytes.Buffer
	bridge := exec.Command(publicCopy(t), settings, string(ce))
	bridge.Env, bridge.Dir, bridge.Stdout = []string{"TASK=bridge"}, "/", &out
	bridge.SysProcAttr = &unix.SysProcAttr{Credential: a.credential}
	if _, err := startMarked(bridge, false); err != nil {
		t.Fatal(err)
	}
	leader, child := one.begun(), other.begun()
	fmt.Fprintln(leader, 0)
	bridge.Wait()
	if want := "left 1 process running (command), which can't be ended; wait for it"; !strings.Contains(out.String(), want) {
		t.Errorf("it says %q, want %q", out.String(), want)
	}
	fmt.Fprintln(child, 0) // it is still there to hear this, and ends
}
