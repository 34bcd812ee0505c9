package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// A killing is a real forewarn with a rule of approval that is killed at some step of an approval.
type killing struct {
	*testing.T
	azure    *imdstest.Running
	endpoint string    // by which it is reached
	hook     *receiver // which the rule waits for
	dir      string
	process  *exec.Cmd
	log      string // file of the process that runs
	restarts int
}

// The one event that is to be approved.
var killedEvent = eventID("killed")

func newKilling(t *testing.T) *killing {
	t.Helper()
	hook, err := newReceiver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hook.close)
	k := &killing{T: t, hook: hook, dir: t.TempDir()}
	k.azure = imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}, ApproveDelay: time.Hour})
	k.endpoint = k.azure.URL
	k.settings("approve:\n  - {only: {types: [Reboot], sources: [User]}, after: [drain], wait: 1s}\n")
	t.Cleanup(func() {
		if k.process != nil {
			k.kill()
		}
	})
	return k
}

// settings writes the settings file with what it says about approval.
func (k *killing) settings(approve string) {
	k.Helper()
	text := fmt.Sprintf(`
imds: {endpoint: %q, interval: 100ms}
state: %q
listen: ""
sinks:
  - {name: drain, only: {changes: [scheduled, updated]}, webhook: {url: %q}}
  - {name: audit, only: {vms: all}, file: {path: %q}}
`, k.endpoint, filepath.Join(k.dir, "state"), k.hook.url, k.path("audit.jsonl"))
	if err := os.WriteFile(k.path("forewarn.yaml"), []byte(text+approve), 0o600); err != nil {
		k.Fatal(err)
	}
}

func (k *killing) path(name string) string { return filepath.Join(k.dir, name) }

func (k *killing) start() {
	k.Helper()
	k.restarts++
	k.log = k.path(fmt.Sprint("log", k.restarts))
	log, err := os.Create(k.log)
	if err != nil {
		k.Fatal(err)
	}
	defer log.Close()
	k.process = forewarn(k, "run", "--config", k.path("forewarn.yaml"))
	k.process.Stderr = log
	if err := k.process.Start(); err != nil {
		k.Fatal(err)
	}
}

func (k *killing) kill() {
	k.Helper()
	if err := k.process.Process.Kill(); err != nil {
		k.Fatalf("kill: %v\n%s", err, k.text(k.log))
	}
	_ = k.process.Wait()
	k.process = nil
}

// until waits for what must come.
func (k *killing) until(what string, ok func() bool) {
	k.Helper()
	for deadline := time.Now().Add(3 * patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			k.Fatalf("%s: it did not come to that\n%s", what, k.text(k.log))
		}
	}
}

func (k *killing) text(path string) string {
	text, _ := os.ReadFile(path) // it need not be there yet
	return string(text)
}

func (k *killing) logged(text string) func() bool {
	return func() bool { return strings.Contains(k.text(k.log), text) }
}

// posts counts the approvals that were sent, taken or not.
func (k *killing) posts() (n int) {
	for _, r := range k.azure.Requests() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

// results are those of the approvals in the audit file, each CloudEvent once.
func (k *killing) results() (all []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(k.text(k.path("audit.jsonl"))) {
		var ce struct {
			ID   string
			Data struct{ Approval struct{ Result string } }
		}
		if json.Unmarshal([]byte(line), &ce) == nil && strings.Contains(ce.ID, "-approved-") && !seen[ce.ID] {
			seen[ce.ID] = true
			all = append(all, ce.Data.Approval.Result)
		}
	}
	return all
}

// looksAround waits until the rules must have been asked again: that is done every second, and Azure ten times as
// often.
func (k *killing) looksAround() {
	k.Helper()
	before := documents(k.azure.Requests())
	k.until("more polls", func() bool { return documents(k.azure.Requests()) >= before+25 })
}

// killSteps bring a forewarn that runs, and an event that was announced to it, to a step of its approval.
var killSteps = []struct {
	name    string
	decided bool // the approval is pending, so that its result is reported
	reach   func(k *killing)
}{
	{"before the drain", false, func(k *killing) {
		k.until("an attempt at the drain", func() bool { return len(k.hook.seen()) > 0 })
	}},
	{"before the decision", false, func(k *killing) {
		k.until("an attempt at the drain", func() bool { return len(k.hook.seen()) > 0 })
		k.up()
		k.until("the drain", func() bool { return len(k.hook.accepted()) > 0 })
	}},
	{"after the decision", true, func(k *killing) {
		k.until("an attempt at the drain", func() bool { return len(k.hook.seen()) > 0 })
		k.azure.SetFault(imdstest.Fault{Status: http.StatusServiceUnavailable})
		k.up()
		k.until("the decision", k.logged("approving event"))
	}},
	{"while it is sent", true, func(k *killing) {
		k.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Hang: true})
		k.up()
		k.until("the POST", func() bool { return k.posts() > 0 })
	}},
	{"after the POST", true, func(k *killing) {
		k.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveLate, Hang: true})
		k.up()
		k.until("the approval", func() bool { return len(k.azure.Approvals()) > 0 })
	}},
	{"before the answer is stored", true, func(k *killing) {
		k.up()
		k.until("the approval", func() bool { return len(k.azure.Approvals()) > 0 }) // and the answer comes any moment
	}},
}

func (k *killing) up() {
	k.Helper()
	if err := k.hook.answer("up"); err != nil {
		k.Fatal(err)
	}
}

// kill -9 at any step of an approval does not lose it: after a restart it is sent, unless it was sent for certain, and
// reported. It is not sent if it is no longer allowed: because the event changed and its condition no longer holds,
// because the rule was removed, or because the rule also waits for another sink.
func TestKillDuringAnApproval(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	var all sync.WaitGroup // they wait most of the time, so they do it together
	for _, step := range killSteps {
		for _, then := range []string{"it is still wanted", "the drain does not take a change", "the rule is gone",
			"the rule asks for more"} {
			all.Go(func() {
				t.Run(step.name+", "+then, func(t *testing.T) {
					k := newKilling(t)
					if err := k.hook.answer("503"); err != nil {
						t.Fatal(err)
					}
					k.start()
					k.until("the first answer", func() bool { return documents(k.azure.Requests()) > 1 })
					k.azure.Schedule(imdstest.Event{
						ID: killedEvent, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
						NotBefore: time.Now().Add(time.Hour),
					})
					step.reach(k)
					k.kill()
					sent, reported := k.posts(), len(k.results())
					k.azure.ClearFaults()
					if then == "it is still wanted" {
						k.isSent(sent)
						return
					}
					switch then {
					case "the rule is gone":
						k.settings("")
						k.up()
					case "the rule asks for more":
						k.settings("  - {name: other, only: {vms: all}, webhook: {url: \"http://127.0.0.1:9\"}}\n" +
							"approve:\n  - {only: {types: [Reboot], sources: [User]}, after: [other]}\n")
						k.up()
					default:
						k.azure.Update(killedEvent, func(e *imdstest.Event) { e.NotBefore = time.Now().Add(2 * time.Hour) })
						if err := k.hook.answer("422"); err != nil {
							t.Fatal(err)
						}
					}
					k.isNotSent(sent, reported, step.decided, then == "the rule asks for more")
				})
			})
		}
	}
	all.Wait()
}

// isSent starts again, and wants the approval sent, unless that was done, and reported once as approved.
func (k *killing) isSent(before int) {
	k.Helper()
	k.up()
	k.start()
	k.until("the record of the approval", func() bool { return len(k.results()) > 0 })
	k.looksAround()
	if n := k.posts(); n == 0 || n > before+1 || len(k.azure.Approvals()) == 0 {
		k.Errorf("it was sent %d times, %d before the kill, and counted %d times; want at most one more", n, before,
			len(k.azure.Approvals()))
	}
	if got := k.results(); len(got) != 1 || got[0] != "approved" {
		k.Errorf("it is reported as %q, want approved, once", got)
	}
	k.end()
}

// isNotSent starts again, and wants nothing sent. An approval that was pending, and not reported before, is reported as
// moot or, if it was sent, as unanswered, unless the rule only waits: then it is still to be sent. People who were told that the event starts by itself may
// be told once that it doesn't.
func (k *killing) isNotSent(before, reported int, decided, waits bool) {
	k.Helper()
	k.start()
	switch {
	case waits:
		k.until("the rule to wait", func() bool {
			// What Azure answered may be on record since before the kill: then it is reported now.
			return len(k.results()) > 0 || k.logged(`waits for sink \"other\"`)() || k.logged("change=started")()
		})
	case decided:
		k.until("the record of the approval", func() bool { return len(k.results()) > 0 })
	}
	k.looksAround()
	if n := k.posts(); n != before {
		k.Errorf("it was sent %d times, %d before the kill; want no more", n, before)
	}
	got, withheld := k.results(), 0
	got = slices.DeleteFunc(got, func(result string) bool {
		if result == "withheld" {
			withheld++
		}
		return result == "withheld"
	})
	if withheld > 1 {
		k.Errorf("it is told %d times that the event does not start by itself", withheld)
	}
	switch {
	case waits && len(got) <= 1: // it may be reported if Azure began the event
	case !decided && len(got) > 0:
		k.Errorf("it is reported as %q, want nothing", got)
	case decided && (len(got) != 1 || before > 0 && got[0] == "moot" ||
		reported == 0 && !slices.Contains([]string{"moot", "unanswered", "approved"}, got[0])):
		k.Errorf("it is reported as %q, want once what became of it", got)
	}
	k.end()
}

func (k *killing) end() {
	k.Helper()
	_ = signalProcess(k.process.Process, "TERM")
	if err := k.process.Wait(); err != nil {
		k.Errorf("the last run ended with %v", err)
	}
	k.process = nil
}
