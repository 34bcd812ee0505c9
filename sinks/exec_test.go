package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
)

func execAccepts(t *testing.T) (string, func() []string) {
	var r recorder
	srv := serve(t, &r)
	return asCommand(t, "post", srv.URL), func() []string {
		var ids []string
		for _, req := range r.all() {
			ids = append(ids, idsIn(t, []byte(req.body))...)
		}
		return ids
	}
}

func execHangs(t *testing.T) map[string]hung {
	places := make(map[string]hung)
	for _, task := range []string{"hang", "deaf"} {
		w, began := newWatch(t), make(chan struct{})
		go func() {
			conn, err := w.Accept()
			close(began)
			if err != nil {
				return // the attempt was over before the command had begun
			}
			<-t.Context().Done()
			conn.Close()
		}()
		places[task] = hung{asCommand(t, task, w.address()) + "stop_grace: 1h\n", began}
	}
	return places
}

func execFails(t *testing.T) map[string]string {
	return map[string]string{
		again: asCommand(t, "exit", "75", "why"), blocked: asCommand(t, "exit", "78", "why"),
		rejected: asCommand(t, "exit", "1", "why") + "attempts: 1\n",
	}
}

func execSecrets(t *testing.T) []secretPlace {
	file := writeFile(t, "token", "tok-from-a-file\nits second line\n")
	return []secretPlace{
		{"file", asCommand(t, "leak", "1") + "  TOKEN: {file: " + file + "}\n",
			[]string{"tok-from-a-file", "its second line"}, nil},
		{"environment", asCommand(t, "leak", "1") + "  TOKEN: {env: MINE}\n", []string{"tok-from-env"},
			map[string]string{"MINE": "tok-from-env"}},
		{"accepted", asCommand(t, "leak", "0") + "  TOKEN: {env: MINE}\n", []string{"tok-from-env"},
			map[string]string{"MINE": "tok-from-env"}},
		{"wrong", asCommand(t, "leak", "1") + "  TOKEN: {env: MINE}\n", []string{"nul-from-env"},
			map[string]string{"MINE": "nul-from-env\x00"}},
		{"wrong file", asCommand(t, "leak", "1") + "  TOKEN: {file: " +
			writeFile(t, "long", strings.Repeat("very-long", 10_000)) + "}\n",
			[]string{"very-long"}, nil},
	}
}

// The exit code says what becomes of the CloudEvent, and the last line of the output why.
func TestExitCodeIsTheAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code, attempts int
		class          error
		text           string
	}{
		{0, 1, nil, ""},
		{75, 1, nil, "exit status 75: because"},
		{78, 1, delivery.ErrBlocked, "blocked: exit status 78: because"},
		{3, 2, nil, "exit status 3: because"},
		{3, 1, delivery.ErrRejected, "rejected: exit status 3: because"}, // the last attempt
	} {
		settings := asCommand(t, "exit", strconv.Itoa(tt.code), "something", "because", "")
		s := mustOpen(t, "exec", settings+fmt.Sprintf("attempts: %d\n", tt.attempts), testHost(t))
		answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != tt.text || tt.class != nil && !errors.Is(err, tt.class) {
			t.Errorf("exit code %d with %d attempts: Deliver = %v, want %q of class %v", tt.code, tt.attempts, err,
				tt.text, tt.class)
		}
		if want := fmt.Sprintf("exit %d after ", tt.code); !strings.HasPrefix(answer.Status, want) ||
			!strings.HasSuffix(answer.Status, ": because") {
			t.Errorf("Answer.Status = %q, want %s…: because", answer.Status, want)
		}
	}
}

// A run that the bridge's stop cuts off has ended before the bridge has waited for a second, even if it ignores SIGTERM
// and leaves something behind that holds its output.
func TestACutOffRunEndsWithinASecond(t *testing.T) {
	if d := shutdownGrace + killPasses*lookAgain + outputWait; d > 900*time.Millisecond {
		t.Errorf("it may take %v", d)
	}
}

// A CloudEvent is rejected by the third run that fails. Exits 75 and 78, a program that is missing, and a run that was
// ended because the bridge stops do not count, nor does what failed for another CloudEvent.
func TestOnlyRunsThatFailCountAsAttempts(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	bridgeStarted := event.New()
	bridgeStarted.SetID("bridge")
	bridgeStarted.SetSource("/vm")
	bridgeStarted.SetType(cloudevent.BridgeStarted)
	azure, about := deliveries(t)[0], delivery.Delivery{Event: bridgeStarted}
	other := fmt.Appendf(nil, `{"id":%q,"failed":2}`, deliveries(t)[1].Event.ID())
	for _, tt := range []struct {
		claim    string
		d        delivery.Delivery
		receipt  []byte
		runs     []string // exit codes, or how else each attempt ends
		rejected bool     // by the last one
	}{
		{"three failures", azure, nil, []string{"3", "3", "3"}, true},
		{"one failure after exits 75", azure, nil, []string{"75", "75", "75", "3"}, false},
		{"three failures among others", azure, nil, []string{"75", "3", "78", "3", "missing", "stopped", "3"}, true},
		{"two failures among others", azure, nil, []string{"3", "missing", "stopped", "78", "75", "3"}, false},
		{"another CloudEvent's failures", azure, other, []string{"3", "3"}, false},
		{"an unreadable receipt", azure, []byte(`{"id":`), []string{"75", "3", "3"}, false},
		{"about the bridge, where nothing is remembered", about, nil, []string{"75", "3", "3"}, true},
	} {
		d, last := tt.d, error(nil)
		d.Receipt = tt.receipt
		attempt := func(how string) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var settings string
			switch how {
			case "missing":
				settings = "command: [" + filepath.Join(t.TempDir(), "missing") + "]"
			case "stopped":
				w := newWatch(t)
				settings = asCommand(t, "hang", w.address())
				go func() {
					w.begun()
					cancel()
				}()
			default:
				settings = asCommand(t, "exit", how)
			}
			var answer delivery.Answer
			d.Attempt++
			answer, last = mustOpen(t, "exec", settings, testHost(t)).Deliver(ctx, []delivery.Delivery{d})
			if answer.Receipt != nil {
				d.Receipt = answer.Receipt
			}
		}
		d.Attempt = 0
		for i, how := range tt.runs {
			attempt(how)
			want := tt.rejected && i == len(tt.runs)-1
			if last == nil || errors.Is(last, delivery.ErrRejected) != want {
				t.Errorf("%s: attempt %d (%s) = %v, want it rejected: %v", tt.claim, d.Attempt, how, last, want)
			}
		}
		if d.Attempt = 0; tt.rejected { // as after a replay
			if attempt("missing"); errors.Is(last, delivery.ErrRejected) {
				t.Errorf("%s: after a replay, no program = %v", tt.claim, last)
			}
			if attempt("3"); errors.Is(last, delivery.ErrRejected) {
				t.Errorf("%s: after a replay, the first failure = %v, want another attempt", tt.claim, last)
			}
		}
		if isAzure([]delivery.Delivery{d}) != (d.Receipt != nil) {
			t.Errorf("%s: the receipt is %q", tt.claim, d.Receipt)
		}
	}
}

// runWith runs a task that says what it was given.
func runWith(t *testing.T, settings string, h Host, d delivery.Delivery) (g given) {
	t.Helper()
	opened, err := open("exec", settings, h)
	if err != nil {
		t.Fatalf("open: %v\n%s", err, settings)
	}
	c := opened.Sink.(*command)
	c.now = func() time.Time { return d.Event.Time() }
	own, _, err := c.settingsVariables()
	if err != nil {
		t.Fatal(err)
	}
	input, env, err := c.message(d, own)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	state, _, err := c.run(t.Context(), c.args[0], env, input, &out)
	if err != nil || state.ExitCode() != 1 {
		t.Fatalf("run = %v, %v\n%s", state, err, out.Bytes())
	}
	if err := json.Unmarshal(out.Bytes(), &g); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	return g
}

// The command sees what the CloudEvent says and a base that never differs, and nothing of the bridge's own environment.
func TestEnvironmentIsClean(t *testing.T) {
	t.Setenv("LEAKED", "yes")
	g := runWith(t, asCommand(t, "environ", "a b", "$HOME; *", `"`)+"  OWN: mine\n", testHost(t), deliveries(t)[0])
	var names []string
	values := make(map[string]string)
	for _, v := range g.Env {
		name, value, _ := strings.Cut(v, "=")
		if !systemsOwn(name) {
			names, values[name] = append(names, name), value
		}
	}
	slices.Sort(names)
	want := []string{
		"CE_AZDURATION", "CE_AZEVENTSOURCE", "CE_AZEVENTSTATUS", "CE_AZEVENTTYPE", "CE_AZNOTBEFORE", "CE_AZRESOURCES",
		"CE_AZSELF",
		"CE_DATASCHEMA", "CE_ID", "CE_OBSERVER", "CE_SEVERITYNUMBER", "CE_SEVERITYTEXT", "CE_SOURCE", "CE_SPECVERSION",
		"CE_SUBJECT",
		"CE_TIME", "CE_TYPE", "FOREWARN_ATTEMPT", "FOREWARN_CHANGE", "FOREWARN_NOTICE_SECONDS", "FOREWARN_OUTCOME",
		"FOREWARN_RESOURCES", "FOREWARN_SINK", "FOREWARN_TEST", "GORACE", "OWN", "TASK",
	}
	want = append(want, baseNames()...)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("the variables are\n%q, want\n%q", names, want)
	}
	for name, want := range map[string]string{
		"CE_ID": deliveries(t)[0].Event.ID(), "CE_AZSELF": "true", "CE_TIME": "2022-04-11T22:12:00Z", "FOREWARN_ATTEMPT": "1",
		"FOREWARN_CHANGE": "scheduled", "FOREWARN_NOTICE_SECONDS": "898", "FOREWARN_RESOURCES": "vm-0,vm-1",
		"FOREWARN_OUTCOME": "",
		"FOREWARN_TEST":    "", "OWN": "mine",
	} {
		if values[name] != want {
			t.Errorf("%s = %q, want %q", name, values[name], want)
		}
	}
	if want := []string{"a b", "$HOME; *", `"`}; !slices.Equal(g.Args, want) {
		t.Errorf("the arguments are %q, want %q", g.Args, want)
	}
	if slices.Contains(want, "LANG") && values["LANG"] != "C.UTF-8" {
		t.Errorf("LANG = %q, want C.UTF-8", values["LANG"])
	}
	if root := filepath.VolumeName(g.Dir) + string(filepath.Separator); g.Dir != root {
		t.Errorf("the working directory is %s, want %s", g.Dir, root)
	}
}

// A CloudEvent may say anything: the command reads all of it on standard input, and the environment holds as much as
// every kernel takes.
func TestAnyTextReachesTheCommand(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for _, text := range []string{
		"'\"`$(reboot)\\", "one\ntwo\r\n", "<script>alert(1)</script>", "\u202Eright to left\u200F", "=x; rm -rf /",
		"nul\x00inside", "invalid\xff\xfeutf-8", strings.Repeat("long,", 20<<10),
	} {
		d := deliveries(t)[0]
		ce := d.Event.Clone()
		ce.SetSubject(text)
		ce.SetExtension("azresources", text)
		data := map[string]any{"change": "scheduled",
			"event": map[string]any{"Resources": []string{text}, "Description": text}}
		if err := ce.SetData(event.ApplicationJSON, data); err != nil {
			t.Fatal(err)
		}
		d.Event = ce
		g := runWith(t, asCommand(t, "environ"), testHost(t), d)
		var back event.Event
		if err := json.Unmarshal([]byte(g.Input), &back); err != nil {
			t.Errorf("standard input for %.40q is no CloudEvent: %v", text, err)
			continue
		}
		if !bytes.Equal(back.Data(), ce.Data()) {
			t.Errorf("standard input has data\n%.200s, want\n%.200s", back.Data(), ce.Data())
		}
		want := strings.ToValidUTF8(strings.ReplaceAll(ce.Subject(), "\x00", ""), "\uFFFD")
		want = want[:min(len(want), maxVariable)]
		if !slices.Contains(g.Env, "CE_SUBJECT="+want) {
			t.Errorf("the environment lacks CE_SUBJECT=%.40q", want)
		}
		total := 0
		for _, v := range g.Env {
			total += len(v) + 1
		}
		if total > 100<<10 {
			t.Errorf("the environment for %.40q has %d bytes, want less than the 128 KiB that every kernel takes", text, total)
		}
	}
}

// A list of VMs that is too long for a variable ends with a whole name.
func TestNoHalfNameOfAVM(t *testing.T) {
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("vm-%05d", i))
	}
	d := deliveries(t)[0]
	d.Event = d.Event.Clone()
	data := map[string]any{"change": "scheduled",
		"event": map[string]any{"EventId": "A", "EventStatus": "Scheduled", "Resources": names}}
	if err := d.Event.SetData(event.ApplicationJSON, data); err != nil {
		t.Fatal(err)
	}
	all, err := eventVariables(d, "x", monday)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(v variable) bool { return v.name == "FOREWARN_RESOURCES" })
	got := strings.Split(all[i].value, ",")
	if len(got) < 1000 || !slices.Equal(got, names[:len(got)]) {
		t.Errorf("FOREWARN_RESOURCES has %d names, the last %q; want at least 1000 whole ones", len(got), got[len(got)-1])
	}
}

// A command that reads nothing is no failure, however much there was to read.
func TestCommandNeedNotRead(t *testing.T) {
	t.Parallel()
	d := deliveries(t)[0]
	d.Event = d.Event.Clone()
	if err := d.Event.SetData(event.ApplicationJSON, map[string]string{"long": strings.Repeat("x", 4<<20)}); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, "exec", asCommand(t, "exit", "0"), testHost(t))
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{d}); err != nil {
		t.Errorf("Deliver = %v", err)
	}
}

// A run out of time ends with all that it has started: first asked, then forced.
func TestRunOutOfTimeEndsAsAWhole(t *testing.T) {
	one, other := newWatch(t), newWatch(t)
	settings := asCommand(t, "family", one.address(), other.address()) + "stop_grace: 0s\nattempts: 1\n"
	s := mustOpen(t, "exec", settings, testHost(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Deliver(expires{ctx}, deliveries(t)[:1])
		ended <- err
	}()
	command, child := one.begun(), other.begun()
	cancel(errors.New("no end within 1s"))
	dies(t, command, "the command")
	dies(t, child, "its child")
	if err := <-ended; !errors.Is(err, delivery.ErrRejected) ||
		!strings.Contains(err.Error(), "no end within 1s: "+wasEnded) || strings.Contains(err.Error(), "wait for") {
		t.Errorf("Deliver = %v, want a failure that says no end within 1s, without advice", err)
	}
}

// expires is a context whose end is that of its time.
type expires struct{ context.Context }

func (e expires) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (e expires) Err() error {
	if e.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// A run may last until NotBefore, but no longer than a quarter of an hour, and that long when nothing lies ahead. It is
// told how long it has, and both count from NotBefore as it is known now: while a delivery waits for its lead it may
// move.
func TestRunLastsUntilNotBefore(t *testing.T) {
	scheduled, started := deliveries(t)[0], deliveries(t)[2]
	canceled := scheduled
	canceled.Event = scheduled.Event.Clone()
	canceled.Event.SetType("dev.forewarn.scheduledevent.vanished")
	notBefore := time.Date(2022, 4, 11, 22, 26, 58, 0, time.UTC)
	moved := func(d delivery.Delivery, to time.Time) delivery.Delivery {
		d.NotBefore = to
		return d
	}
	for _, tt := range []struct {
		claim  string
		d      delivery.Delivery
		now    time.Time
		want   time.Duration
		notice string
	}{
		{"a minute before", scheduled, notBefore.Add(-time.Minute), time.Minute, "60"},
		{"an hour before", scheduled, notBefore.Add(-time.Hour), maxRun, "3600"},
		{"at it", scheduled, notBefore, maxRun, "0"},
		{"after it", scheduled, notBefore.Add(time.Hour), maxRun, "0"},
		{"started", started, notBefore.Add(-time.Minute), maxRun, "0"},
		{"canceled", moved(canceled, notBefore), notBefore.Add(-time.Minute), maxRun, "0"},
		{"unmoved", moved(scheduled, notBefore), notBefore.Add(-time.Minute), time.Minute, "60"},
		{"moved back", moved(scheduled, notBefore.Add(4*time.Minute)), notBefore.Add(-time.Minute), 5 * time.Minute, "300"},
		{"moved forward", moved(scheduled, notBefore.Add(-time.Hour)), notBefore.Add(-61 * time.Minute), time.Minute, "60"},
		{"started, with a time", moved(started, notBefore), notBefore.Add(-time.Minute), maxRun, "0"},
	} {
		c := command{now: func() time.Time { return tt.now }}
		if got := c.limit(tt.d); got != tt.want {
			t.Errorf("%s: the limit is %v, want %v", tt.claim, got, tt.want)
		}
		event, err := eventVariables(tt.d, "drain", tt.now)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(event, func(v variable) bool { return v.name == "FOREWARN_NOTICE_SECONDS" })
		if got := event[i].value; got != tt.notice {
			t.Errorf("%s: the notice is %s seconds, want %s", tt.claim, got, tt.notice)
		}
	}
}

// A run may be under way for each of several Azure events.
func TestRunsGoSideBySide(t *testing.T) {
	w := newWatch(t)
	opened, err := open("exec", asCommand(t, "hang", w.address())+"parallel: 2\n", testHost(t))
	if err != nil || opened.Parallel != 2 {
		t.Fatalf("open = %+v, %v, want parallel 2", opened, err)
	}
	ended := make(chan error, 2)
	all := deliveries(t)
	for _, d := range []delivery.Delivery{all[0], all[len(all)-1]} {
		go func() {
			_, err := opened.Sink.Deliver(t.Context(), []delivery.Delivery{d})
			ended <- err
		}()
	}
	for _, conn := range []net.Conn{w.begun(), w.begun()} { // neither has ended yet
		fmt.Fprintln(conn, 0)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("Deliver = %v", err)
		}
	}
}

// Of long output the log has the beginning and the end, in one record of bounded size.
func TestLongOutputIsShortened(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	var log bytes.Buffer
	h := testHost(t)
	h.Log = slog.New(slog.NewJSONHandler(&log, nil))
	s := mustOpen(t, "exec", asCommand(t, "shout"), h)
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil || err.Error() != "exit status 1: last" {
		t.Errorf("Deliver = %v, want the last line", err)
	}
	var record struct{ Output string }
	if err := json.Unmarshal(log.Bytes(), &record); err != nil {
		t.Fatalf("%v in the log\n%s", err, &log)
	}
	o := record.Output
	if !strings.HasPrefix(o, "first\n") || !strings.HasSuffix(o, "\nlast") || len(o) > maxOutput || len(o) < maxOutput/2 {
		t.Errorf("the output in the log has %d bytes: %.50q…, want the beginning and the end", len(o), o)
	}
}

// A secret that is cut in two by the bounds of the output shows no eight characters of either half.
func TestCutOutputShowsNoHalfSecret(t *testing.T) {
	const secret = "s3cret-of-the-settings"
	redact := new(redactor)
	redact.hide(secret)
	for shift := range len(secret) {
		o := output{max: maxOutput}
		io.WriteString(&o, strings.Repeat("x", maxOutput/2-shift)+secret)
		io.WriteString(&o, strings.Repeat("y", 3*maxOutput))
		io.WriteString(&o, secret+strings.Repeat("z", maxOutput/2-shift))
		got := o.text(redact)
		for i := range len(secret) - 7 {
			if strings.Contains(got, secret[i:i+8]) {
				t.Fatalf("the output shows %q, a part of the secret", secret[i:i+8])
			}
		}
	}
}

// The output of a command stays readable: short words, numbers, paths and hosts of the settings are no secrets. Any other
// value is one, and so is everything that is kept apart from the settings.
func TestOrdinaryWordsInOutputStayReadable(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	dir, err := os.MkdirTemp("", "words") // the name of this test is long enough for a key
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path, word := filepath.Join(dir, "kubeconfig"), writeFile(t, "word", "production")
	for _, tt := range []struct{ value, said, want string }{
		{"prod", "no prod here", "no prod here"},
		{"Debug", "level Debug", "level Debug"},
		{path, "open " + path + ": no such file", "open " + path + ": no such file"},
		{"1", "1 of 11", "1 of 11"},
		{"8080", "port 8080 is taken", "port 8080 is taken"},
		{"west-1", "nothing in west-1", "nothing in west-1"},
		{"https://lb.test/api/v2", "lb.test: no such host", "lb.test: no such host"},
		{"https://lb.test/hooks/correcthorse", "no correcthorse", notShown},
		{"p4ss", "no p4ss", notShown},
		{"production", "no production here", notShown},
		{"eu-west-1", "nothing in eu-west-1", notShown},
		{"12345678", "the code is 12345678", notShown},
		{"correct horse battery staple", "no correct horse", notShown},
		{"hunter2hunter2", "not hunter2hunter2", notShown},
		{"/aGVsbG8", "not /aGVsbG8", notShown}, // base64 has slashes too
		{"{file: " + word + "}", "no production here", notShown},
	} {
		s := mustOpen(t, "exec", asCommand(t, "exit", "1", tt.said)+"  VALUE: "+tt.value+"\n", testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil || !strings.HasSuffix(err.Error(), ": "+tt.want) {
			t.Errorf("%s: Deliver = %v, want it to say %q", tt.value, err, tt.want)
		}
	}
}

// A program that is not there, or may not be run, blocks the route: somebody has to act.
func TestMissingProgramBlocks(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	plain := writeFile(t, "plain", "#!/bin/sh\n")
	for _, settings := range []string{
		"command: [" + missing + "]", "command: [no-such-program-anywhere]", "command: [" + plain + "]",
		asCommand(t, "exit", "0") + "dir: " + missing,
	} {
		s := mustOpen(t, "exec", settings, testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); !errors.Is(err, delivery.ErrBlocked) {
			t.Errorf("Deliver = %v, want it blocked\n%s", err, settings)
		}
		if _, err := s.(delivery.Connecter).Connect(t.Context()); !errors.Is(err, delivery.ErrBlocked) {
			t.Errorf("Connect = %v, want it blocked\n%s", err, settings)
		}
	}
	s := mustOpen(t, "exec", asCommand(t, "exit", "0"), testHost(t))
	if answer, err := s.(delivery.Connecter).Connect(t.Context()); err != nil || answer == "" {
		t.Errorf("Connect = %q, %v, want a line", answer, err)
	}
}

// What would be run is shown without secrets.
func TestRenderShowsTheRun(t *testing.T) {
	settings := "command: [" + someProgram + ", --now, 'a b']\nenv: {MODE: soft, TOKEN: {env: MINE}}\n"
	h := testHost(t)
	h.Name, h.Getenv = "drain", func(string) string { return "s3cret" }
	s := mustOpen(t, "exec", settings, h)
	got, err := s.(delivery.Renderer).Render(deliveries(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		someProgram + " --now \"a b\"\n\n", "\nMODE=[secret]\n", "\nTOKEN=[secret]\n", "\nFOREWARN_SINK=drain\n",
		"\n\n{\"specversion\":",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("Render lacks %q:\n%s", want, got)
		}
	}
}

// Each wrong key is refused with what was expected.
func TestWrongCommandIsRefused(t *testing.T) {
	for _, tt := range []struct{ settings, key, reason string }{
		{"dir: /tmp", "command", "missing; expected a list"},
		{"command: []", "command", "missing; expected a list"},
		{"command: ['']", "command.0", "no program"},
		{"command: ['/x/drain.sh --now']", "command.0", "expected an item of the list for each"},
		{"command: ['systemctl stop nginx']", "command.0", "expected an item of the list for each"},
		{"command: ['" + someProgram + " now']", "command.0", "expected an item of the list for each"},
		{"command: [bin/drain]", "command.0", "expected an absolute path"},
		{"command: [" + someProgram + ", \"a\\0b\"]", "command.1", "NUL"},
		{"command: [" + someProgram + "]\ndir: \"a\\0b\"", "dir", "NUL byte"},
		{"command: [" + someProgram + "]\nenv: {A-B: x}", "env.A-B", "not the name of a variable"},
		{"command: [" + someProgram + "]\nenv: {1A: x}", "env.1A", "not the name of a variable"},
		{"command: [" + someProgram + "]\nenv: {CE_ID: x}", "env.CE_ID", "belong to the CloudEvent"},
		{"command: [" + someProgram + "]\nenv: {A: {env: NONE}}", "env.A.env", "not set"},
		{"command: [" + someProgram + "]\nuser: no-such-user", "user", ""},
	} {
		wrongKey(t, "exec", tt.settings, tt.key, tt.reason)
	}
}
