package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
)

// An interrupt while Azure has the approval and does not answer ends the command. What was sent is on record, and what was
// not is not sent any more.
func TestAnInterruptedApprovalIsOnRecord(t *testing.T) {
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	for _, label := range []string{"A", "B"} {
		azure.Schedule(imdstest.Event{ID: eventID(label), Type: "Reboot", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(time.Hour)})
	}
	azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveLate, Hang: true})
	path := filepath.Join(t.TempDir(), "forewarn.yaml")
	text := "imds: {endpoint: '" + azure.URL + "'}\nstate: '" + filepath.Join(t.TempDir(), "state") + "'\nlisten: ''\nsinks: []\n"
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
	if err := command.Process.Signal(os.Interrupt); err != nil {
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
	if err != nil || !strings.Contains(string(history), "nobody knows whether Azure took it: interrupt") {
		t.Errorf("history = %v\n%s\nwithout the approval that was sent", err, history)
	}
	if got := azure.Approvals(); len(got) != 1 {
		t.Errorf("Azure was asked to begin %v, want the first only", got)
	}
}

// An event that changes or begins while somebody thinks about what is shown is not approved; another one's change matters
// to nobody.
func TestWhatChangesWhileSomebodyThinksIsNotApproved(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		then   func(azure *imdstest.Server)
		refuse bool
	}{
		{"nothing happens", func(*imdstest.Server) {}, false},
		{"another event changes", func(azure *imdstest.Server) { azure.Start(eventID("B")) }, false},
		{"it names another VM too", func(azure *imdstest.Server) {
			azure.Update(eventID("A"), func(e *imdstest.Event) { e.Resources = append(e.Resources, "vm-1") })
		}, true},
		{"it begins", func(azure *imdstest.Server) { azure.Start(eventID("A")) }, true},
		{"it goes", func(azure *imdstest.Server) { azure.End(eventID("A")) }, true},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0", "vm-1"}})
			for _, label := range []string{"A", "B"} {
				azure.Schedule(imdstest.Event{ID: eventID(label), Type: "Reboot", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(time.Hour)})
			}
			quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
			client := bridge.NewClient("http://azure.test", bridge.DefaultAPIVersion, quiet, azure.RoundTripper())
			doc, err := client.Document(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			shown, err := chosenEvents(doc, []string{eventID("A")[:8]})
			if err != nil {
				t.Fatal(err)
			}
			tt.then(azure)
			if err := unchanged(t.Context(), client, shown); (err != nil) != tt.refuse {
				t.Errorf("unchanged = %v, want refused %v", err, tt.refuse)
			}
		})
	}
}
