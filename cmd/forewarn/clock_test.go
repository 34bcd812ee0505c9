package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// steppable is what time.Now adds to the clock of the machine: the seconds in the file that FOREWARN_CLOCK names, eight
// bytes that are mapped into memory, because Now is also called where no system call may be made. The monotonic reading
// stays as it is, as when an administrator or NTP steps a clock.
const steppable = `
var clockStep = func() *int64 {
	path, _ := syscall.Getenv("FOREWARN_CLOCK")
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return new(int64)
	}
	defer syscall.Close(fd)
	mapped, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("FOREWARN_CLOCK: " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&mapped[0]))
}()

func stepped() int64 {
	if clockStep == nil { // not yet
		return 0
	}
	return *clockStep
}
`

// A rule's wait keeps its length if the clock is stepped by an hour meanwhile. The test runs the real program.
func TestARealClockThatIsSteppedChangesNoWait(t *testing.T) {
	if os.Getenv("FOREWARN_CLOCK_STEPS") == "" {
		t.Skip("it compiles all of Go's library; set FOREWARN_CLOCK_STEPS to run it")
	}
	t.Parallel()
	const wait = 10 * time.Second
	if runtime.GOOS == "windows" {
		t.Skip("its library has no Mmap")
	}
	program := steppableProgram(t)
	for name, step := range map[string]int{"not at all": 0, "an hour forward": 3600, "an hour back": -3600} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
			dir := t.TempDir()
			clock, config := filepath.Join(dir, "clock"), filepath.Join(dir, "forewarn.yaml")
			write := func(path, text string) {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(clock, string(make([]byte, 8)))
			write(config, fmt.Sprintf(`
imds: {endpoint: %q, interval: 100ms, vm_name: vm-0}
state: %q
listen: ""
sinks: [{name: audit, file: {path: %q}}]
approve: [{only: {types: [Reboot], sources: [User]}, after: [audit], wait: %v}]
`, azure.URL, filepath.Join(dir, "state"), filepath.Join(dir, "audit.jsonl"), wait))
			fw := exec.Command(program, "run", "--config", config)
			fw.Env = append(os.Environ(), "FOREWARN_CLOCK="+clock, "HOME="+dir)
			fw.Stderr = t.Output()
			if err := fw.Start(); err != nil {
				t.Fatal(err)
			}
			defer fw.Wait()
			defer fw.Process.Kill()
			until := func(what string, limit time.Duration, ok func() bool) {
				t.Helper()
				for deadline := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: it did not come to that within %v", what, limit)
					}
				}
			}
			azure.Schedule(imdstest.Event{ID: eventID(name), Type: "Reboot", Source: "User"})
			until("the change is told", patience, func() bool {
				told, _ := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
				return strings.Contains(string(told), "-scheduled")
			})
			told := time.Now()
			time.Sleep(wait / 3) // of a real program, whose clock a library moves: a part of its wait has passed
			steps, err := os.OpenFile(clock, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer steps.Close()
			if err := binary.Write(steps, binary.NativeEndian, int64(step)); err != nil {
				t.Fatal(err)
			}
			until("the approval", wait+patience, func() bool { return len(azure.Approvals()) > 0 })
			if took := time.Since(told); took < wait-100*time.Millisecond || took > wait+5*time.Second {
				t.Errorf("approved after %v, want %v and at most the next look, which is a second later", took, wait)
			}
		})
	}
}

// steppableProgram builds the program with a time.Now that can be stepped.
func steppableProgram(t *testing.T) string {
	dir := t.TempDir()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skipf("Go is not there to build the program: %v", err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Skipf("Go's library is not there to be compiled: %v", err)
	}
	now := "sec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 || strings.Count(string(text), "import (\n") != 1 {
		t.Fatal("time.Now is written in another way; look at it")
	}
	changed := strings.NewReplacer(now, now+"\tsec += stepped()\n", "import (\n", "import (\n\t\"syscall\"\n",
		"_ \"unsafe\"", "\"unsafe\"").Replace(string(text)) + steppable
	replaced := filepath.Join(dir, "time.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: replaced}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{replaced: changed, filepath.Join(dir, "overlay.json"): string(overlay)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "forewarn")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
	return program
}
