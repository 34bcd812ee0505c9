//go:build budget

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// The budgets of the program's size at rest. What is measured is printed each time, so that a log shows the drift.
const (
	maxBinary    = 24_000_000 // bytes, stripped, linux/amd64
	maxRSS       = 24 << 20   // bytes
	maxAnonymous = 6 << 20    // bytes: what cannot be given back to the binary's file
	maxCPU       = 2.0        // times a bare poll loop

	atRest = 90 * time.Second // by then a garbage collection has come and gone
)

// The stripped binary for linux/amd64 stays within its budget.
func TestBudgetBinary(t *testing.T) {
	info, err := os.Stat(build(t, ".", "GOOS=linux", "GOARCH=amd64"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("binary: %.2f MB, budget %.1f MB", float64(info.Size())/1e6, maxBinary/1e6)
	if info.Size() > maxBinary {
		t.Errorf("the binary has %d bytes, want at most %d", info.Size(), maxBinary)
	}
}

// With a sink of every kind, polling once a second without changes, forewarn's memory stays within its budget.
// Directly after a delivery it may use more, because Go's heap grows to 4 MiB before a collection. That is printed.
func TestBudgetMemory(t *testing.T) {
	onLinux(t)
	t.Parallel() // it hardly takes time of a CPU from the other
	cloud, all := emulate(t), everyKind(t)
	pid := start(t, build(t, "."), "run", "--config", writeSettings(t, cloud.url, time.Second, all))
	show := func(when string) (rss, anonymous int64) {
		rss, anonymous = memory(t, pid)
		t.Logf("memory %s: RSS %.2f MiB, bound %d; anonymous %.2f MiB, bound %d", when, mebi(rss), maxRSS>>20,
			mebi(anonymous), maxAnonymous>>20)
		return rss, anonymous
	}
	within := func(when string) {
		rss, anonymous := show(when)
		if rss > maxRSS {
			t.Errorf("%s RSS is %d bytes, want at most %d", when, rss, maxRSS)
		}
		if anonymous > maxAnonymous {
			t.Errorf("%s anonymous memory is %d bytes, want at most %d", when, anonymous, maxAnonymous)
		}
	}
	// The real time of a real process: there is nothing to wait for.
	cloud.wait(t, 1)
	time.Sleep(5 * time.Second)
	within("after the start")
	time.Sleep(atRest)
	within("at rest")
	if polls, seconds := cloud.polls.Load(), int64(atRest/time.Second); polls < seconds-3 {
		t.Errorf("forewarn polled %d times in %d s, want once a second: what sleeps is small for the wrong reason", polls,
			seconds)
	}

	// What could not tell an event would be small for the wrong reason too.
	id := eventID("budget")
	cloud.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"})
	all.hear(id+"-scheduled", 1)
	show("after an event was told")
}

// A poll costs at most twice the CPU time of a minimal poll, measured side by side.
func TestBudgetCPU(t *testing.T) {
	onLinux(t)
	t.Parallel()
	const (
		interval = 100 * time.Millisecond
		window   = 5 * time.Second
		windows  = 6
	)
	ours, bare := emulate(t), emulate(t)
	forewarn, barepoll := build(t, "."), build(t, "./testdata/barepoll")
	ours.pid = start(t, forewarn, "run", "--config", writeSettings(t, ours.url, interval, everyKind(t)))
	bare.pid = start(t, barepoll, bare.url+"/metadata/scheduledevents?api-version=2020-07-01", interval.String())
	ours.wait(t, 20) // past the start, which is paid once
	bare.wait(t, 20)

	// The median of several windows: one of them may fall on a moment when the machine was busy.
	var ratios []float64
	for range windows {
		o, b := ours.mark(t), bare.mark(t)
		time.Sleep(window)
		mine, least := o.perPoll(t), b.perPoll(t)
		ratios = append(ratios, float64(mine)/float64(least))
		t.Logf("CPU per poll: forewarn %v, bare loop %v, ratio %.2f", mine, least, ratios[len(ratios)-1])
	}
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	_, anonymous := memory(t, bare.pid)
	t.Logf("CPU per poll: median ratio %.2f, budget %.2f (the bare loop has %.2f MiB of anonymous memory)",
		median, maxCPU, mebi(anonymous))
	if median > maxCPU {
		t.Errorf("a poll costs %.2f times a bare poll, want at most %.2f", median, maxCPU)
	}
}

func onLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("memory and CPU are read from /proc, which only Linux has")
	}
}

// build compiles pkg as a release does, and says where the binary is.
func build(t *testing.T, pkg string, env ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, pkg)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return binary
}

// writeSettings writes a settings file with a sink of every kind, and says where it is.
func writeSettings(t *testing.T, endpoint string, interval time.Duration, all *destinations) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "imds: {endpoint: %q, interval: %v}\n", endpoint, interval)
	fmt.Fprintf(&text, "state: %s\nlisten: 127.0.0.1:0\nsinks:\n", filepath.Join(t.TempDir(), "state"))
	for kind, section := range all.sections() {
		fmt.Fprintf(&text, "  - {name: %s, only: {vms: all}, %[1]s: %s}\n", kind, section)
	}
	if err := os.WriteFile(all.config, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return all.config
}

// start runs binary until the test ends and shows what it said when the test failed.
func start(t *testing.T, binary string, args ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(args[0]), said.String())
		}
	})
	return cmd.Process.Pid
}

// A cloud is an emulated metadata service that counts the polls of the one process that asks it.
type cloud struct {
	azure *imdstest.Server
	url   string
	polls atomic.Int64
	pid   int // of the process that polls
}

func emulate(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{azure: imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})}
	metadata := c.azure.Metadata()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/scheduledevents") {
			c.polls.Add(1)
		}
		metadata.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// wait returns once n polls have arrived.
func (c *cloud) wait(t *testing.T, n int64) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); c.polls.Load() < n; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d polls in 30 s, want %d", c.polls.Load(), n)
		}
	}
}

// A mark is a moment from which the cost of a process's polls is counted.
type mark struct {
	of    *cloud
	polls int64
	cpu   time.Duration
}

func (c *cloud) mark(t *testing.T) mark {
	t.Helper()
	return mark{of: c, polls: c.polls.Load(), cpu: cpu(t, c.pid)}
}

// perPoll is the CPU time of a poll since the mark.
func (m mark) perPoll(t *testing.T) time.Duration {
	t.Helper()
	now := m.of.mark(t)
	if now.polls-m.polls < 20 {
		t.Fatalf("process %d polled %d times in a window, too few to measure", m.of.pid, now.polls-m.polls)
	}
	return (now.cpu - m.cpu) / time.Duration(now.polls-m.polls)
}

// cpu is the time that all threads of the process have run so far, in user mode and in the kernel. It comes from
// schedstat, which counts nanoseconds where /proc/PID/stat has ticks of 10 ms.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no /proc/%[1]d/task/*/schedstat; has it ended?", pid)
	}
	var sum time.Duration
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			t.Fatal(err)
		}
		ran, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", thread, err)
		}
		sum += time.Duration(ns)
	}
	return sum
}

// memory is what smaps_rollup says of the process, in bytes.
func memory(t *testing.T, pid int) (rss, anonymous int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatalf("%v; has the process ended?", err)
	}
	of := func(name string) int64 {
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 3 && fields[0] == name+":" {
				n, err := strconv.ParseInt(fields[1], 10, 64)
				if err != nil {
					t.Fatalf("smaps_rollup: %s: %v", name, err)
				}
				return n << 10
			}
		}
		t.Fatalf("smaps_rollup has no %s", name)
		return 0
	}
	return of("Rss"), of("Anonymous")
}

func mebi(bytes int64) float64 { return float64(bytes) / (1 << 20) }
