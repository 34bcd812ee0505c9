package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A drill is a machine on which the scripts of examples/runbooks run: with a service that notes what it is told, and a
// clock that only goes on when somebody sleeps, ten times as fast.
type drill struct {
	t   *testing.T
	dir string
}

// newDrill makes the machine. The clock stands at 1000.
func newDrill(t *testing.T) drill {
	t.Helper()
	for _, tool := range []string{"sh", "flock"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed, and the scripts need it", tool)
		}
	}
	d := drill{t, t.TempDir()}
	d.write("clock", "1000\n")
	d.write("work", "0\n")
	d.write("listing", "")
	d.program("date", `cat "$DRILL/clock"`)
	d.program("sleep", `echo $(($(cat "$DRILL/clock") + $1 * 10)) >"$DRILL/clock"`)
	d.program("ss", `if [ -e "$DRILL/broken" ]; then exit 1; fi; cat "$DRILL/listing"`)
	// Its work is done when the clock has come to the number in the file work.
	d.program("service", `if [ "$1" = check ]; then echo "the pool is gone"; exec test ! -e "$DRILL/broken-check"; fi
echo "$1" >>"$DRILL/told"
if [ -e "$DRILL/broken-$1" ]; then exit 1; fi
case $1 in
busy) left=$(($(cat "$DRILL/work") - $(cat "$DRILL/clock"))); if [ $left -lt 0 ]; then left=0; fi; echo $left ;;
*) echo "$1" >"$DRILL/state" ;;
esac`)
	if err := os.Mkdir(filepath.Join(d.dir, "drained"), 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d drill) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d drill) program(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		d.t.Fatal(err)
	}
}

func (d drill) read(name string) string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// marks are the files that drain.sh keeps for events.
func (d drill) marks() (names []string) {
	d.t.Helper()
	files, err := filepath.Glob(filepath.Join(d.dir, "drained", "*.event"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

// run runs a script and returns its exit code and the last line of its output.
func (d drill) run(script string, arg []string, env ...string) (code int, last string) {
	path, err := filepath.Abs(filepath.Join("..", "..", "examples", "runbooks", script))
	if err != nil {
		d.t.Error(err)
	}
	// The umask is that of the packaged unit.
	c := exec.Command("sh", append([]string{"-c", `umask 077 && exec sh "$0" "$@"`, path}, arg...)...)
	c.Dir = d.dir
	c.Env = append([]string{"PATH=" + d.dir + ":" + os.Getenv("PATH"), "DRILL=" + d.dir}, env...)
	out, err := c.CombinedOutput()
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		d.t.Error(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return c.ProcessState.ExitCode(), lines[len(lines)-1]
}

// hear runs drain.sh as forewarn does about a change of an event.
func (d drill) hear(change, event string, env ...string) (code int, last string) {
	return d.run("drain.sh", nil, append([]string{
		"DRAIN_SERVICE=" + filepath.Join(d.dir, "service"), "DRAIN_STATE=" + filepath.Join(d.dir, "drained"),
		"FOREWARN_CHANGE=" + change, "CE_SUBJECT=" + event, "FOREWARN_NOTICE_SECONDS=900", "FOREWARN_TEST=",
	}, env...)...)
}

// want checks what came of a run.
func (d drill) want(claim string, code int, last string, wantCode int, wantLast string) {
	d.t.Helper()
	if code != wantCode || last != wantLast {
		d.t.Errorf("%s: exit %d, %q, want %d, %q", claim, code, last, wantCode, wantLast)
	}
}

// A drain lasts until the service has no work left, but not longer than the notice minus its reserve, and not longer
// than its limit.
func TestDrainEndsInTime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		claim string
		work  int // seconds that it goes on
		env   []string
		code  int
		took  int
		says  string
	}{
		{"it is idle", 0, nil, 0, 0, "drained"},
		{"it has work for a while", 120, nil, 0, 120, "drained"},
		{"it is done at the last moment", 60, []string{"DRAIN_LIMIT=60"}, 0, 60, "drained"},
		{"it is not done within the limit", 700, nil, 1, 600, "not drained in time: 100 under way"},
		{"the limit is another", 700, []string{"DRAIN_LIMIT=20"}, 1, 20, "not drained in time: 680 under way"},
		{"the notice is short", 700, []string{"FOREWARN_NOTICE_SECONDS=90"}, 1, 60, "not drained in time: 640 under way"},
		{"the reserve is another", 700, []string{"FOREWARN_NOTICE_SECONDS=90", "DRAIN_RESERVE=10"}, 1, 80,
			"not drained in time: 620 under way"},
		{"the notice is shorter than the reserve", 3, []string{"FOREWARN_NOTICE_SECONDS=10"}, 1, 0,
			"not drained in time: 3 under way"},
		{"it is idle then", 0, []string{"FOREWARN_NOTICE_SECONDS=10"}, 0, 0, "drained"},
		{"nobody knows the notice", 700, []string{"FOREWARN_NOTICE_SECONDS=0", "DRAIN_LIMIT=60"}, 1, 60,
			"not drained in time: 640 under way"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			t.Parallel()
			d := newDrill(t)
			d.write("work", fmt.Sprint(1000+tt.work))
			code, last := d.hear("scheduled", "A", tt.env...)
			d.want(tt.claim, code, last, tt.code, tt.says)
			if got, want := d.read("clock"), fmt.Sprint(1000+tt.took); got != want {
				t.Errorf("it ends at %s, want %s", got, want)
			}
			if got := d.read("state"); got != "out" {
				t.Errorf("the service is %q, want out, whatever came of the drain", got)
			}
		})
	}
}

// A repeated drain continues where the first stopped. A failed step does not count as done.
func TestDrainCanBeRepeated(t *testing.T) {
	d := newDrill(t)
	d.write("work", "1100")
	code, last := d.hear("scheduled", "A", "DRAIN_LIMIT=40")
	d.want("first", code, last, 1, "not drained in time: 60 under way")
	code, last = d.hear("updated", "A", "DRAIN_LIMIT=100")
	d.want("again", code, last, 0, "drained")
	code, last = d.hear("updated", "A")
	d.want("once more", code, last, 0, "drained")
	if got := d.marks(); !slices.Equal(got, []string{"A.event"}) {
		t.Errorf("the marks are %q, want one", got)
	}
	d.write("broken-busy", "")
	code, last = d.hear("updated", "A", "DRAIN_LIMIT=20")
	d.want("nobody can say how busy it is", code, last, 1, "not drained in time: an unknown amount of work under way")
	d.write("broken-out", "")
	code, last = d.hear("scheduled", "B")
	d.want("it does not go out", code, last, 1, "the service could not be taken out")
}

// The service returns after the last of its events, and only if an event took it out. A failed return is repeated.
func TestServiceReturnsAfterTheLastEvent(t *testing.T) {
	d := newDrill(t)
	code, last := d.hear("vanished", "A")
	d.want("never out", code, last, 0, "the service was not taken out for this event")
	if got := d.read("told"); got != "" {
		t.Errorf("it was told %q, want nothing", got)
	}
	d.hear("scheduled", "A")
	d.hear("scheduled", "B")
	code, last = d.hear("vanished", "A")
	d.want("the first is over", code, last, 0, "the service stays out, for another event")
	if got := d.read("state"); got != "out" {
		t.Errorf("the service is %q, want out for the second event", got)
	}
	d.write("broken-back", "")
	code, last = d.hear("vanished", "B")
	d.want("it does not come back", code, last, 75, "the service did not come back")
	if err := os.Remove(filepath.Join(d.dir, "broken-back")); err != nil {
		t.Fatal(err)
	}
	code, last = d.hear("vanished", "B")
	d.want("again", code, last, 0, "back in service")
	if got := d.read("state"); got != "back" {
		t.Errorf("the service is %q, want back", got)
	}
	if got := d.marks(); len(got) > 0 {
		t.Errorf("the marks are %q, want none", got)
	}
	code, last = d.hear("vanished", "B")
	d.want("twice", code, last, 0, "the service was not taken out for this event")
}

// However drains and returns of several events overlap, the service is out while an event is open, and back
// afterwards.
func TestConcurrentDrainsAndReturns(t *testing.T) {
	for round := range 3 {
		d := newDrill(t)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				event := fmt.Sprintf("E%d", i)
				if code, last := d.hear("scheduled", event); code != 0 {
					t.Errorf("drain of %s: exit %d, %s", event, code, last)
				}
				if round == 0 && i == 7 {
					return // it is not over
				}
				if code, last := d.hear("vanished", event); code != 0 {
					t.Errorf("return of %s: exit %d, %s", event, code, last)
				}
			})
		}
		all.Wait()
		state, marks := "back", 0
		if round == 0 {
			state, marks = "out", 1
		}
		if got := d.read("state"); got != state || len(d.marks()) != marks {
			t.Errorf("round %d: the service is %q with %q left, want %s", round, got, d.marks(), state)
		}
	}
}

// A test or another change does nothing, and no event's name leads out of the directory. A wrong setup is reported
// with the exit code that blocks the sink, also for a test.
func TestDrainIgnoresOtherChanges(t *testing.T) {
	d := newDrill(t)
	for _, tt := range []struct {
		claim, change, event string
		env                  []string
		code                 int
		says                 string
	}{
		{"a test", "scheduled", "A", []string{"FOREWARN_TEST=1"}, 0, "a test: nothing is done"},
		{"a test without a service", "scheduled", "A", []string{"FOREWARN_TEST=1", "DRAIN_SERVICE="}, 78,
			`DRAIN_SERVICE is ""; expected a program`},
		{"a test without a directory", "scheduled", "A", []string{"FOREWARN_TEST=1", "DRAIN_STATE=/none"}, 78,
			`DRAIN_STATE is "/none"; expected a directory to write to`},
		{"it names other machines now", "updated", "A", []string{"CE_AZSELF=false"}, 0,
			"the service was not taken out for this event"},
		{"it has begun", "started", "A", nil, 0, "nothing to do when it is started"},
		{"no event", "scheduled", "", nil, 78, "no event: forewarn runs this"},
		{"no service", "scheduled", "A", []string{"DRAIN_SERVICE="}, 78, `DRAIN_SERVICE is ""; expected a program`},
		{"a missing service", "scheduled", "A", []string{"DRAIN_SERVICE=/none"}, 78,
			`DRAIN_SERVICE is "/none"; expected a program`},
		{"no directory", "scheduled", "A", []string{"DRAIN_STATE=/none"}, 78,
			`DRAIN_STATE is "/none"; expected a directory to write to`},
		{"a limit in words", "scheduled", "A", []string{"DRAIN_LIMIT=10m"}, 78,
			`DRAIN_LIMIT is "10m"; expected a number of seconds`},
		{"a negative reserve", "scheduled", "A", []string{"DRAIN_RESERVE=-1"}, 78,
			`DRAIN_RESERVE is "-1"; expected a number of seconds`},
	} {
		code, last := d.hear(tt.change, tt.event, tt.env...)
		d.want(tt.claim, code, last, tt.code, tt.says)
	}
	d.write("broken-check", "")
	code, last := d.hear("scheduled", "A", "FOREWARN_TEST=1")
	d.want("a test of a service that would fail", code, last, 78,
		filepath.Join(d.dir, "service")+" check: the pool is gone")
	if got := d.read("told") + strings.Join(d.marks(), " "); got != "" {
		t.Errorf("something was done all the same: %s", got)
	}
	if code, _ := d.hear("scheduled", "../../etc/x y"); code != 0 || !slices.Equal(d.marks(),
		[]string{"______etc_x_y.event"}) {
		t.Errorf("exit %d, marks %q, want one inside the directory", code, d.marks())
	}
}

// web.sh counts connections. It counts the server as busy until the load balancer must have noticed that its file is
// missing.
func TestWebServerIsBusyUntilTheBalancerKnows(t *testing.T) {
	d := newDrill(t)
	health := "WEB_HEALTH=" + filepath.Join(d.dir, "healthy")
	step := func(word string, wantCode int, want string) {
		t.Helper()
		code, last := d.run("web.sh", []string{word}, health)
		d.want(word+" at "+d.read("clock"), code, last, wantCode, want)
	}
	d.write("healthy", "")
	step("busy", 0, "0")
	step("check", 0, "")
	step("out", 0, "")
	if _, err := os.Stat(filepath.Join(d.dir, "healthy")); err == nil {
		t.Error("the file that the probe asks for is still there")
	}
	step("busy", 0, "1")
	d.write("clock", "1014")
	step("out", 0, "") // again, which does not begin the time anew
	step("busy", 0, "1")
	d.write("clock", "1015")
	step("busy", 0, "0")
	d.write("listing", "ESTAB a\nESTAB b\n")
	step("busy", 0, "2")
	d.write("broken", "")
	if code, _ := d.run("web.sh", []string{"busy"}, health); code == 0 {
		t.Error("it says how busy it is though the connections cannot be counted")
	}
	step("back", 0, "")
	if info, err := os.Stat(filepath.Join(d.dir, "healthy")); err != nil {
		t.Error("the file that the probe asks for is not back")
	} else if info.Mode().Perm() != 0o644 {
		t.Errorf("the file that the probe asks for has mode %v, want one that the web server can read", info.Mode())
	}
	step("check", 1, "the connections to port 443 cannot be counted")
	health = "WEB_HEALTH=" + filepath.Join(d.dir, "none", "healthy")
	step("check", 1, filepath.Join(d.dir, "none")+": expected a directory to write to")
	step("sideways", 64, "expected out, busy, back or check")
}

// The scripts are valid in every kind of shell, and shellcheck, if installed, finds no error. What it only warns of
// depends on its version.
func TestScriptsPassShellcheck(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join("..", "..", "examples", "runbooks", "*.sh"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	for _, check := range [][]string{{"sh", "-n"}, {"dash", "-n"}, {"bash", "--posix", "-n"}, {"busybox", "sh", "-n"},
		{"shellcheck", "-s", "sh", "-S", "error"}} {
		if _, err := exec.LookPath(check[0]); err != nil {
			t.Logf("%s is not installed, so it doesn't read the scripts", check[0])
			continue
		}
		for _, script := range scripts {
			if out, err := exec.Command(check[0], append(check[1:], script)...).CombinedOutput(); err != nil {
				t.Errorf("%s %s: %v\n%s", check[0], script, err, out)
			}
		}
	}
}
