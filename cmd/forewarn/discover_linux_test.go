package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// If Azure's fixed address answers, here in a network namespace, discover finds it there, and events and run ask it.
func TestFixedAddressIsFound(t *testing.T) {
	dir := t.TempDir()
	settings := "imds: {interval: 100ms}\nstate: " + dir + "/state\nlisten: ''\nsinks: []\n"
	if err := os.WriteFile(filepath.Join(dir, "forewarn.yaml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := exec.CommandContext(t.Context(), "sh", "-c", `
		ip link set lo up && ip addr add 169.254.169.254/32 dev lo || exit 77
		set -e
		timeout 60 forewarn emulate --listen 169.254.169.254:80 --control 127.0.0.1:0 >emulator 2>announced & started=$!
		trap 'kill $started; wait' EXIT
		until [ -s emulator ]; do sleep 0.02; done
		forewarn discover
		forewarn discover -o json
		forewarn events --config forewarn.yaml
		timeout 60 forewarn run --config forewarn.yaml 2>log & started="$started $!"
		n=0
		until forewarn status --config forewarn.yaml 2>/dev/null | grep 'endpoint  answered'; do
			n=$((n+1)); [ $n -lt 200 ] || exit 1; sleep 0.05
		done
	`)
	sh.Dir = dir
	sh.Env = append(os.Environ(), "HOME="+dir)
	sh.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	out, err := sh.CombinedOutput()
	var exit *exec.ExitError
	if errors.Is(err, fs.ErrPermission) || errors.As(err, &exit) && exit.ExitCode() == 77 {
		t.Skipf("no network namespace can be made here: %v: %s", err, out)
	}
	got := strings.Join(strings.Fields(string(out)), " ")
	const want = `http://169.254.169.254 { "endpoint": "http://169.254.169.254", "method": "fixed" } ` +
		`{"DocumentIncarnation":1,"Events":[]} endpoint answered`
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("%v: got %s\nwant %s …\nlog:\n%s", err, got, want, log)
	}
}
