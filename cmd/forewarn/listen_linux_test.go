package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// Anybody who can connect to the page or metrics can open thousands of idle connections. They do not use up the files
// that a sink needs: with a limit of 1,024 files an event is still delivered, and most files are free.
func TestIdleConnectionsDoNotStopDelivery(t *testing.T) {
	t.Parallel()
	azure, err := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}}).Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { azure.Close() })
	hook, err := newReceiver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hook.close)
	dir := t.TempDir()
	page, metrics := "127.0.0.1:"+freePort(t), "127.0.0.1:"+freePort(t)
	settings := filepath.Join(dir, "forewarn.yaml")
	text := fmt.Sprintf("{imds: {endpoint: %q, interval: 100ms}, state: %q, listen: %q, metrics: %q, sinks: [{name: hook, webhook: {url: %q}}]}",
		azure.URL, filepath.Join(dir, "state"), page, metrics, hook.url)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("forewarn")
	if err != nil {
		t.Fatal(err)
	}
	fw := exec.Command("sh", "-c", `ulimit -n 1024 && exec "$0" "$@"`, path, "run", "--config", settings)
	fw.Env = forewarn(t).Env
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fw.Process.Kill(); _ = fw.Wait() })

	const each = 600
	for _, address := range []string{page, metrics} {
		for range each {
			idle := dial(t, address)
			t.Cleanup(func() { idle.Close() })
			if _, err := io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	azure.Schedule(imdstest.Event{ID: eventID("idle"), Type: "Reboot"})
	for deadline := time.Now().Add(patience); !slices.Contains(hook.accepted(),
		eventID("idle")+"-scheduled"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("with %d idle connections, the event was not delivered; the program has %d files open", 2*each,
				openFiles(t, fw.Process.Pid))
		}
	}
	if n := openFiles(t, fw.Process.Pid); n > 512 {
		t.Errorf("the program has %d files open, want that at least half of 1,024 are free", n)
	}
}

// dial connects to a program that may not listen yet.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			return c
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
