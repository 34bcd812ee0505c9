//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
	"forewarn/cmd/forewarn/internal/wording"
)

// A manager is systemd's side of sd_notify: a socket, and what was said to it.
type manager struct {
	t       *testing.T
	path    string
	conn    *net.UnixConn
	process *os.Process
	log     string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	return m
}

// starts starts forewarn under the manager.
func (m *manager) starts(config string, env ...string) {
	m.t.Helper()
	m.log = filepath.Join(m.t.TempDir(), "log")
	log, err := os.Create(m.log)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	fw := forewarn(m.t, "run", "--config", config)
	fw.Env = append(append(fw.Env, "NOTIFY_SOCKET="+m.path), env...)
	fw.Stderr = log
	if err := fw.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.process = fw.Process
	m.t.Cleanup(func() {
		_ = fw.Process.Kill()
		_ = fw.Wait()
	})
}

// hears gives the next message that is not one of those to pass over, as its fields.
func (m *manager) hears(over ...string) map[string]string {
	m.t.Helper()
	buf := make([]byte, 8<<10)
	for {
		if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			m.t.Fatal(err)
		}
		n, err := m.conn.Read(buf)
		if err != nil {
			text, _ := os.ReadFile(m.log)
			m.t.Fatalf("%v; the log:\n%s", err, text)
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(buf[:n])) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			fields[name] = value
		}
		passed := false
		for _, name := range over {
			_, has := fields[name]
			passed = passed || has && len(fields) == 1
		}
		if !passed {
			return fields
		}
	}
}

func (m *manager) wants(what string, over ...string) map[string]string {
	m.t.Helper()
	got := m.hears(over...)
	if got[what] != "1" {
		m.t.Fatalf("the service manager hears %v, want %s=1", got, what)
	}
	return got
}

// monotonic is the time of the clock that the kernel and systemd share.
func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func notifySettings(t *testing.T, endpoint string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "forewarn.yaml")
	text := fmt.Sprintf("imds: {endpoint: %q, interval: 100ms}\nstate: %s\nlisten: \"\"\nsinks: [{name: audit, file: {path: %s}}]\n",
		endpoint, filepath.Join(dir, "state"), filepath.Join(dir, "audit.jsonl"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The service manager is notified that forewarn is ready before Azure has answered, of what it waits for, of each turn
// of the poll loop, of each reload from start to end, also a refused one, and of the stop.
func TestServiceManagerIsNotified(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	azure.SetFault(imdstest.Fault{Status: 503})
	m, config := newManager(t), notifySettings(t, azure.URL)
	m.starts(config, "WATCHDOG_USEC=240000000")

	if got := m.wants("READY"); !strings.Contains(got["STATUS"], "has not answered yet") {
		t.Errorf("ready with the words %q, want that the endpoint has not answered", got["STATUS"])
	}
	azure.ClearFaults()
	m.wants("WATCHDOG", "STATUS")
	m.wants("WATCHDOG", "STATUS")

	before := monotonic(t)
	if err := m.process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	reloading := m.wants("RELOADING", "WATCHDOG", "STATUS")
	at, err := strconv.ParseInt(reloading["MONOTONIC_USEC"], 10, 64)
	if got := time.Duration(at) * time.Microsecond; err != nil || got < before-time.Millisecond || got > monotonic(t) {
		t.Errorf("the reload began at %q on the monotonic clock, want between %d and now", reloading["MONOTONIC_USEC"],
			before.Microseconds())
	}
	if got := m.wants("READY", "WATCHDOG", "STATUS"); strings.Contains(got["STATUS"],
		"not ready") || !strings.Contains(got["STATUS"], "0 events open") {
		t.Errorf("ready with the words %q, want that nothing is open", got["STATUS"])
	}

	if err := os.WriteFile(config, []byte("sinsk: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.wants("RELOADING", "WATCHDOG", "STATUS")
	if got := m.wants("READY", "WATCHDOG", "STATUS"); !strings.Contains(got["STATUS"], "the newest settings are wrong") {
		t.Errorf("ready with the words %q, want that the settings were refused", got["STATUS"])
	}

	if err := m.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.wants("STOPPING", "WATCHDOG", "STATUS")
}

// If the poll loop hangs, nothing feeds the watchdog.
func TestOnlyThePollLoopFeedsTheWatchdog(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	m := newManager(t)
	m.starts(notifySettings(t, azure.URL), "WATCHDOG_USEC=1000000")
	m.wants("READY")
	m.wants("WATCHDOG", "STATUS")
	azure.SetFault(imdstest.Fault{Hang: true})
	for range 100 { // what was under way when the fault began is heard out
		if err := m.conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.conn.Read(make([]byte, 8<<10)); err != nil {
			return // silence for twice the watchdog's patience; the poll gives up after 10 s
		}
	}
	t.Error("the watchdog is fed though the poll loop hangs")
}

// A watchdog that is shorter than a slow answer of Azure is reported at the start. Without a watchdog nothing is fed.
func TestShortWatchdogIsReported(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	for _, tt := range []struct {
		env    []string
		warned bool
		fed    bool
	}{
		{nil, false, false},
		{[]string{"WATCHDOG_USEC=240000000"}, false, true},
		{[]string{"WATCHDOG_USEC=30000000"}, true, true},
		{[]string{"WATCHDOG_USEC=30000000", "WATCHDOG_PID=1"}, false, false}, // another's
	} {
		m := newManager(t)
		m.starts(notifySettings(t, azure.URL), tt.env...)
		m.wants("READY")
		for polled := len(azure.Requests()); len(azure.Requests()) < polled+3; time.Sleep(5 * time.Millisecond) {
			if t.Context().Err() != nil {
				return
			}
		}
		if err := m.process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		fed := false
		for got := m.hears("STATUS"); got["STOPPING"] == ""; got = m.hears("STATUS") {
			fed = fed || got["WATCHDOG"] == "1"
		}
		if fed != tt.fed {
			t.Errorf("%q: the watchdog is fed: %v, want %v", tt.env, fed, tt.fed)
		}
		text, err := os.ReadFile(m.log)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), "WatchdogSec is too short"); got != tt.warned {
			t.Errorf("%q: warned of an impatient watchdog: %v, want %v; the log:\n%s", tt.env, got, tt.warned, text)
		}
	}
	if bridge.LongestTurn >= 4*time.Minute {
		t.Errorf("a turn of the poll loop may take %v; the unit's WatchdogSec=4min is less than that", bridge.LongestTurn)
	}
}

// The status line for the service manager is one line, whatever the error of a sink or a reason contains.
func TestStatusLineIsOneLine(t *testing.T) {
	for _, tt := range []struct {
		status bridge.Status
		want   string
	}{
		{bridge.Status{Ready: true}, "0 events open, 0 pending"},
		{bridge.Status{Reasons: []string{"one\ntwo", "three"}}, "not ready: one two; three; 0 events open, 0 pending"},
		{bridge.Status{Ready: true, Events: make([]bridge.EventStatus, 1),
			Outbox: bridge.OutboxStatus{Pending: 3, DeadLetters: 1},
			Sinks: []bridge.SinkStatus{{Name: "a", State: bridge.SinkIsBlocked}, {Name: "b", State: bridge.SinkRetrying},
				{Name: "c", State: bridge.SinkRetrying, OldestPendingSeconds: 300}},
			Settings: bridge.SettingsInfo{LastError: "x"}},
			"1 event open, 3 pending; a needs you; c needs you; 1 dead letter; the newest settings are wrong"},
	} {
		if got := wording.StatusLine(tt.status); got != tt.want {
			t.Errorf("got  %q\nwant %q", got, tt.want)
		}
	}
}
