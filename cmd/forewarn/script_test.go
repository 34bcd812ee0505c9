package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
	"forewarn/cmd/forewarn/internal/statustest"
)

// The stories in testdata/script run the real command against an emulated Azure and a real webhook receiver. Beside
// testscript's own verbs they have these; an event is called by a label.
//
//	azure schedule LABEL TYPE [NOTICE]   announce an event
//	azure move LABEL NOTICE              change its NotBefore
//	azure start|end LABEL
//	azure document FILE                  serve these bytes instead
//	azure fault JSON                     spoil the answers; {} ends that
//	azure incarnation N                  count from there
//	hook up|refuse|hang|CODE             how the receiver answers from now on
//	hears [LABEL.change ...]             the receiver accepted exactly these, in this order (waits for it)
//	tried LABEL.change                   the receiver saw an attempt (waits for it)
//	start NAME COMMAND ARGS …            start forewarn; its output is NAME.out, its log NAME.log
//	signal NAME TERM|INT|KILL            send it that and wait for its end, which must be orderly; on Windows also BREAK,
//	                                     which is Ctrl-Break, and CLOSE, for its console
//	signal NAME HUP|STOP|CONT            send it that
//	logged FILE REGEXP                   the file has it (waits for it)
//	approvals [LABEL ...]                Azure was asked to begin exactly these, in this order (waits for it)
//	polls                                two more polls were answered from now on
//	settings FILE                        expand $AZURE, $HOOK, $PORT (a free one) and $WORK in a file
//	nats [FILE]                          start a server with JetStream, with that configuration; $NATS is its address
//	vault SECRET|CODE [INNER]            a Key Vault answers so from now on; asked N waits until it was asked so often
//	exits CODE COMMAND ARGS …            the command ends with this exit code
//	pause DURATION                       let some time pass
//	hold FILE alone|read                 have a file open as other programs on Windows do: for nobody else, or for readers
//	                                     and writers but not for renaming; release lets go of it
//	get PORT/PATH STATUS REGEXP          what is answered over HTTP (waits for it)
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:   filepath.Join("testdata", "script"),
		Setup: setUp,
		Condition: func(name string) (bool, error) {
			switch name {
			case "root": // whom no permission stops
				return os.Geteuid() == 0, nil
			case "service": // may be installed on this machine
				return os.Getenv("FOREWARN_SERVICE") != "", nil
			}
			return false, fmt.Errorf("unknown condition %s", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"azure": azureVerb, "hook": hookVerb, "hears": hearsVerb, "tried": triedVerb, "logged": loggedVerb,
			"approvals": approvalsVerb, "polls": pollsVerb, "settings": settingsVerb, "exits": exitsVerb, "get": getVerb,
			"start": startVerb, "signal": signalVerb, "pause": pauseVerb,
			"hold": holdVerb, "release": releaseVerb, "nats": natsVerb, "vault": vaultVerb,
		},
	})
}

// patience is how long a story waits for what must come. It is long, because machines are slow, and costs nothing.
const patience = time.Minute

// setting is what a story happens in.
type setting struct {
	azure   *imdstest.Running
	hook    *receiver
	running map[string]*exec.Cmd
	held    io.Closer
	vault   *vault   // nil without one
	ends    []func() // of what a verb started
}

func setUp(e *testscript.Env) error {
	// What is approved begins some time after the answer, so that the two are not told in either order.
	azure, err := imdstest.New(imdstest.Options{VMs: []string{"vm-0", "vm-1"},
		ApproveDelay: time.Second}).Listen("127.0.0.1:0", "")
	if err != nil {
		return err
	}
	hook, err := newReceiver()
	if err != nil {
		return err
	}
	s := &setting{azure: azure, hook: hook, running: map[string]*exec.Cmd{}}
	e.Defer(func() {
		failed := e.T().(interface{ Failed() bool }).Failed()
		for name, fw := range s.running {
			_ = fw.Process.Kill()
			_ = fw.Wait()
			if log, err := os.ReadFile(filepath.Join(e.WorkDir, name+".log")); failed {
				e.T().Log(name, "said:", string(log), err)
			}
		}
		for _, end := range s.ends {
			end()
		}
		azure.Close()
		hook.close()
	})
	e.Setenv("AZURE", azure.URL)
	e.Setenv("HOOK", hook.url)
	e.Setenv("PORT", freePort(e.T()))
	e.Setenv("HOME", e.WorkDir)
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	if err != nil {
		return err
	}
	e.Setenv("EXAMPLES", examples)
	program, err := exec.LookPath("forewarn")
	if err != nil {
		return err
	}
	e.Setenv("FOREWARN", program)
	e.Setenv("LONG", strings.Repeat(strings.Repeat("long", 15)+string(filepath.Separator), 4)+"end")
	e.Setenv("CONTROL", controlPath(e.WorkDir))
	for name, word := range map[string]string{
		"STAT": systemtest.StatCall, "NO_SUCH_FILE": systemtest.NoSuchFile.Error(), "NO_SUCH_PATH": systemtest.NoSuchPath.Error(),
		"ADDRESS_TAKEN": systemtest.AddressInUse.Error(),
	} {
		e.Setenv(name, word)
	}
	e.Values["setting"] = s
	return nil
}

func in(ts *testscript.TestScript) *setting { return ts.Value("setting").(*setting) }

// eventID is the EventId behind a label.
func eventID(label string) string {
	return statustest.EventID(label)
}

// cloudEventID is the id of LABEL.change; LABEL.updated stands for any update, *.change for that of any event.
func cloudEventID(ts *testscript.TestScript, what string) string {
	label, change, ok := strings.Cut(what, ".")
	if !ok {
		ts.Fatalf("%s: expected LABEL.change", what)
	}
	if label == "*" {
		return "*-" + change
	}
	return eventID(label) + "-" + change
}

func azureVerb(ts *testscript.TestScript, neg bool, args []string) {
	azure := in(ts).azure
	switch {
	case neg || len(args) < 2:
		ts.Fatalf("usage: azure schedule|move|start|end|document|fault|incarnation …")
	case args[0] == "schedule":
		e := imdstest.Event{ID: eventID(args[1]), Type: args[2]}
		if len(args) > 3 {
			e.NotBefore = time.Now().Add(duration(ts, args[3]))
		}
		if len(args) > 4 { // who asked for it, and whom it hits
			e.Source, e.Resources = args[4], args[5:]
		}
		azure.Schedule(e)
	case args[0] == "move":
		azure.Update(eventID(args[1]), func(e *imdstest.Event) { e.NotBefore = time.Now().Add(duration(ts, args[2])) })
	case args[0] == "start":
		azure.Start(eventID(args[1]))
	case args[0] == "end":
		azure.End(eventID(args[1]))
	case args[0] == "document":
		azure.SetDocument([]byte(ts.ReadFile(args[1])))
	case args[0] == "fault":
		var f imdstest.Fault
		ts.Check(json.Unmarshal([]byte(args[1]), &f))
		azure.SetFault(f)
	case args[0] == "incarnation":
		var n int
		fmt.Sscan(args[1], &n)
		azure.SetIncarnation(n)
	default:
		ts.Fatalf("azure %s: unknown", args[0])
	}
}

func duration(ts *testscript.TestScript, s string) time.Duration {
	d, err := time.ParseDuration(s)
	ts.Check(err)
	return d
}

func hookVerb(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(in(ts).hook.answer(args[0]))
}

func hearsVerb(ts *testscript.TestScript, _ bool, args []string) {
	want := []string{}
	for _, a := range args {
		want = append(want, cloudEventID(ts, a))
	}
	var got []string
	eventually(ts, func() bool {
		got = in(ts).hook.accepted()
		return slices.EqualFunc(got, want, func(g, w string) bool {
			kind, ofAny := strings.CutPrefix(w, "*")
			hasMore := strings.HasSuffix(w, "-updated") || strings.HasSuffix(w, "-approved")
			return g == w || hasMore && strings.HasPrefix(g, w) || ofAny && strings.HasSuffix(g, kind)
		})
	}, func() string { return fmt.Sprintf("the receiver heard %q, not %q", got, want) })
}

func triedVerb(ts *testscript.TestScript, _ bool, args []string) {
	want := cloudEventID(ts, args[0])
	eventually(ts, func() bool { return slices.Contains(in(ts).hook.seen(), want) },
		func() string { return "the receiver saw no attempt of " + want })
}

func loggedVerb(ts *testscript.TestScript, _ bool, args []string) {
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	var text string
	eventually(ts, func() bool {
		b, _ := os.ReadFile(ts.MkAbs(args[0]))
		text = string(b)
		return re.MatchString(text)
	}, func() string { return fmt.Sprintf("%s has no %s:\n%s", args[0], re, text) })
}

func approvalsVerb(ts *testscript.TestScript, _ bool, args []string) {
	want := []string{}
	for _, label := range args {
		want = append(want, eventID(label))
	}
	var got []string
	eventually(ts, func() bool {
		got = nil
		for _, a := range in(ts).azure.Approvals() {
			got = append(got, strings.ToUpper(a.EventID))
		}
		return slices.Equal(got, want)
	}, func() string { return fmt.Sprintf("Azure was asked to begin %q, not %q", got, want) })
}

// pollsVerb waits for some requests to the endpoint, three if no number is given.
func pollsVerb(ts *testscript.TestScript, _ bool, args []string) {
	azure, n := in(ts).azure, 3
	if len(args) > 0 {
		var err error
		n, err = strconv.Atoi(args[0])
		ts.Check(err)
	}
	before := len(azure.Requests())
	eventually(ts, func() bool { return len(azure.Requests()) >= before+n },
		func() string { return "the endpoint is not polled" })
}

func pauseVerb(ts *testscript.TestScript, _ bool, args []string) { time.Sleep(duration(ts, args[0])) }

func holdVerb(ts *testscript.TestScript, _ bool, args []string) {
	f, err := holdFile(ts.MkAbs(args[0]), args[1] == "alone")
	ts.Check(err)
	in(ts).held = f
	ts.Defer(func() { f.Close() })
}

func releaseVerb(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(in(ts).held.Close()) }

func settingsVerb(ts *testscript.TestScript, _ bool, args []string) {
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func startVerb(ts *testscript.TestScript, _ bool, args []string) {
	fw := exec.Command("forewarn", args[1:]...)
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	defer out.Close()
	log, err := os.Create(ts.MkAbs(args[0] + ".log"))
	ts.Check(err)
	defer log.Close()
	fw.Dir, fw.Stdout, fw.Stderr = ts.MkAbs("."), out, log
	fw.Env = os.Environ()
	for _, name := range []string{"HOME", "RUNTIME_DIRECTORY", "SSL_CERT_FILE", "HTTPS_PROXY"} {
		if value := ts.Getenv(name); value != "" || name == "RUNTIME_DIRECTORY" {
			fw.Env = append(fw.Env, name+"="+value)
		}
	}
	withConsole(fw)
	ts.Check(fw.Start())
	in(ts).running[args[0]] = fw
}

func signalVerb(ts *testscript.TestScript, _ bool, args []string) {
	name := args[0]
	fw := in(ts).running[name]
	if fw == nil {
		ts.Fatalf("%s does not run", name)
	}
	sig := args[1]
	ts.Check(signalProcess(fw.Process, sig))
	if slices.Contains([]string{"HUP", "STOP", "CONT"}, sig) {
		return
	}
	delete(in(ts).running, name)
	began := time.Now()
	err := fw.Wait()
	if sig != "KILL" && (err != nil || time.Since(began) > patience) {
		ts.Fatalf("%s ended with %v after %v:\n%s", name, err, time.Since(began), ts.ReadFile(name+".log"))
	}
}

func exitsVerb(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var e *exec.ExitError
	if errors.As(err, &e) {
		code = e.ExitCode()
	} else {
		ts.Check(err)
	}
	if neg || fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, not %s", code, args[0])
	}
}

func getVerb(ts *testscript.TestScript, _ bool, args []string) {
	re, err := regexp.Compile(args[2])
	ts.Check(err)
	var got string
	eventually(ts, func() bool {
		resp, err := http.Get("http://127.0.0.1:" + args[0])
		if err != nil {
			got = err.Error()
			return false
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		got = fmt.Sprint(resp.StatusCode, " ", string(body))
		return fmt.Sprint(resp.StatusCode) == args[1] && re.Match(body)
	}, func() string { return "answered " + got })
}

// eventually waits until ok, and fails with the reason when that takes too long.
func eventually(ts *testscript.TestScript, ok func() bool, reason func() string) {
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			ts.Fatalf("%s", reason())
		}
	}
}

// forewarn starts the real command, which is this test binary under its name.
func forewarn(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command("forewarn", args...) // testscript.Main put it on the path
	c.Env = append(os.Environ(), "HOME="+t.TempDir())
	withConsole(c)
	return c
}
