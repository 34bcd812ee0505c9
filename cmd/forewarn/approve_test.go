package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// An interrupt ends the command while Azure does not answer. An approval that was sent is recorded. Those that were
// not sent are not sent later.
func TestInterruptedApprovalIsRecorded(t *testing.T) {
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	for _, label := range []string{"A", "B"} {
		azure.Schedule(imdstest.Event{ID: eventID(label), Type: "Reboot", Resources: []string{"vm-0"},
			NotBefore: time.Now().Add(time.Hour)})
	}
	azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveLate, Hang: true})
	path := filepath.Join(t.TempDir(), "forewarn.yaml")
	text := "imds: {endpoint: '" + azure.URL + "'}\nstate: '" + filepath.Join(t.TempDir(),
		"state") + "'\nlisten: ''\nsinks: []\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command := forewarn(t, "approve", "--config", path, "--yes", eventID("A"), eventID("B"))
	var out bytes.Buffer
	command.Stdout = &out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); len(azure.Approvals()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Azure was not asked")
		}
	}
	if err := signalProcess(command.Process, "INT"); err != nil {
		t.Fatal(err)
	}
	var e *exec.ExitError
	if err := command.Wait(); !errors.As(err, &e) || e.ExitCode() != exitFailed {
		t.Errorf("it ended with %v, want exit code %d", err, exitFailed)
	}
	for _, want := range []string{eventID("A") + "  unanswered", eventID("B") + "  refused"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it prints\n%s\nwithout %q", &out, want)
		}
	}
	history, err := forewarn(t, "history", "--config", path).Output()
	if err != nil || !strings.Contains(string(history), "Azure may have accepted it: interrupt") {
		t.Errorf("history = %v\n%s\nwithout the approval that was sent", err, history)
	}
	if got := azure.Approvals(); len(got) != 1 {
		t.Errorf("Azure was asked to begin %v, want the first only", got)
	}
}

// An event that changes, starts or vanishes after the command showed it is not approved. The command prints the
// difference, whether forewarn runs or not. Changes of other events do not matter.
func TestEventChangedSinceItWasShownIsNotApproved(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		running bool
		then    func(azure *imdstest.Server)
		says    string
		refuse  bool
	}{
		{"nothing happens", false, func(*imdstest.Server) {}, "", false},
		{"another event changes", false, func(azure *imdstest.Server) { azure.Start(eventID("B")) }, "", false},
		{"it becomes another one", false, becomesAnother, "EventType was \"Reboot\" and is now \"Terminate\"", true},
		{"it becomes another one while forewarn runs", true, becomesAnother,
			"Resources was [\"vm-0\"] and is now [\"vm-1\",\"vm-2\"]", true},
		{"it begins", false, func(azure *imdstest.Server) { azure.Start(eventID("A")) }, "is now \"Started\"", true},
		{"it goes", false, func(azure *imdstest.Server) { azure.End(eventID("A")) }, "", true},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			t.Parallel()
			azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}})
			for _, label := range []string{"A", "B"} {
				azure.Schedule(imdstest.Event{ID: eventID(label), Type: "Reboot", Resources: []string{"vm-0"},
					NotBefore: time.Now().Add(time.Hour)})
			}
			// As soon as the command has the document it shows, that changes. A forewarn that runs asks for what is new.
			var news, shown atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				azure.Metadata().ServeHTTP(w, r)
				if !strings.HasSuffix(r.URL.Path, "/scheduledevents") || r.Method != http.MethodGet {
					return
				}
				switch asksForNews := r.Header.Get("If-None-Match") != ""; {
				case asksForNews:
					news.Store(true)
				case tt.running && !news.Load(): // it starts
				case shown.CompareAndSwap(false, true):
					tt.then(azure)
				}
			}))
			defer server.Close()
			dir := t.TempDir()
			path := filepath.Join(dir, "forewarn.yaml")
			text := fmt.Sprintf("imds: {endpoint: %q, interval: 100ms, vm_name: vm-0}\nstate: %q\nlisten: ''\nsinks: []\n",
				server.URL, filepath.Join(dir, "state"))
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if tt.running {
				fw := forewarn(t, "run", "--config", path)
				if err := fw.Start(); err != nil {
					t.Fatal(err)
				}
				defer fw.Wait()
				defer fw.Process.Kill()
				for deadline := time.Now().Add(patience); !news.Load(); time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("forewarn does not poll")
					}
				}
			}
			said, err := forewarn(t, "approve", "--config", path, "--yes", "--timeout", "0s", eventID("A")[:8]).CombinedOutput()
			if got := len(azure.Approvals()); (got == 0) != tt.refuse {
				t.Errorf("Azure was asked %d times to begin it, want refused: %v\n%s", got, tt.refuse, said)
			}
			var e *exec.ExitError
			if refused := errors.As(err,
				&e) && e.ExitCode() == exitFailed; refused != tt.refuse || !strings.Contains(string(said), tt.says) {
				t.Errorf("the command ended with %v, want refused: %v, and to say %q:\n%s", err, tt.refuse, tt.says, said)
			}
		})
	}
}

// becomesAnother makes of the event one of another type for other VMs.
func becomesAnother(azure *imdstest.Server) {
	azure.Update(eventID("A"), func(e *imdstest.Event) { e.Type, e.Resources = "Terminate", []string{"vm-1", "vm-2"} })
}
