package sinks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/templates"
)

type execSettings struct {
	Command   Program          `yaml:"command" required:"" doc:"program and arguments; no shell reads them"`
	Dir       Path             `yaml:"dir" default:"/" doc:"working directory"`
	User      string           `yaml:"user" doc:"run as this user; only root may (default: forewarn's own user)"`
	Env       map[string]Value `yaml:"env" doc:"environment variables to add; others are not passed on"`
	Attempts  int              `yaml:"attempts" default:"3" min:"1" doc:"failed runs until it gives up; exits 75 and 78 do not count"`
	Parallel  int              `yaml:"parallel" default:"4" min:"1" doc:"runs at the same time; those about one Azure event never overlap"`
	StopGrace time.Duration    `yaml:"stop_grace" default:"5s" doc:"time from SIGTERM to SIGKILL for a run that has used up its time"`
}

var execDefaults = execSettings{Attempts: 3, Parallel: execTerms.Parallel, StopGrace: 5 * time.Second}

// execTerms: a command acts on what is true now, so an outdated change is dropped, and after a crash no command runs
// twice. There is no timeout because the sink has one for each CloudEvent.
var execTerms = delivery.Terms{MaxAge: week, Late: delivery.LateDrop, Batch: 1, Parallel: 4, Durable: true}

const (
	maxRun        = 15 * time.Minute       // of one run, unless NotBefore comes first
	shutdownGrace = 300 * time.Millisecond // limits stop_grace when the bridge stops, which waits for a second only
	lastMoment    = time.Second            // for what is about to end by itself after the command; none during a stop
	outputWait    = 500 * time.Millisecond // for the end of the output after the command has ended; part of that second
	maxVariable   = 16 << 10               // bytes of one environment variable about a CloudEvent
	maxEvent      = 64 << 10               // bytes of all of them; every Linux accepts at least 128 KiB
	maxSetting    = 32 << 10               // bytes of one environment variable of the settings
	maxOutput     = 4 << 10                // bytes of the output that are logged
	outputGap     = "\n…\n"                // in place of what is missing from the middle of the output
)

// A command runs a program for each CloudEvent.
//
// A run is over when the program has ended and has left no process behind. What it has left is killed, and the run has
// failed: nobody may take work for done that was only begun. At the end of its time the program and all that it has
// started get SIGTERM, and SIGKILL after stop_grace; the run has failed even if the program then exits with 0. When the
// bridge stops, SIGKILL follows after at most shutdownGrace, so that the bridge can still record how the run ended. If
// the bridge itself is killed, the program is killed too on Linux, but not the program's children.
type command struct {
	Host
	args     []string
	dir      string
	user     account
	env      sources
	attempts int
	grace    time.Duration
	moment   time.Duration // lastMoment
	now      func() time.Time
}

func openExec(s execSettings, h Host) (Opened, error) {
	var wrong KeyErrors
	wrong.when(len(s.Command) == 0, "command",
		"missing; expected a list of the program and its arguments, such as [/usr/local/bin/drain, --now]")
	for i, arg := range s.Command {
		key := "command." + strconv.Itoa(i)
		wrong.when(strings.Contains(arg, "\x00"), key, "holds a NUL byte, which no argument can")
	}
	wrong.add(s.Command.check("command"))
	wrong.when(strings.Contains(string(s.Dir), "\x00"), "dir", "holds a NUL byte, which no path can")
	c := &command{
		Host: h, args: s.Command, dir: cmp.Or(string(s.Dir), string(filepath.Separator)), env: mapSources("env", s.Env),
		attempts: s.Attempts, grace: s.StopGrace, moment: lastMoment, now: time.Now,
	}
	var err error
	c.user, err = findAccount(s.User)
	wrong.when(err != nil, "user", "%w", err)
	for _, v := range c.env {
		err := refusedVariable(v.name)
		wrong.when(err != nil, v.key, "%w", err)
	}
	wrong.add(c.env.check())
	if len(wrong) == 0 {
		_, _, err := c.settingsVariables()
		wrong.add(exceptUnread(err))
	}
	return Opened{Sink: c, Secrets: c.env.files(), Keep: c.env.keep(h), Parallel: s.Parallel}, wrong.err()
}

// refusedVariable returns why the settings cannot set an environment variable, nil if they can.
func refusedVariable(name string) error {
	if !isVariable(name) {
		return errors.New("not the name of a variable; expected letters, digits and underscores")
	}
	if upper := strings.ToUpper(name); strings.HasPrefix(upper, "CE_") || strings.HasPrefix(upper, "FOREWARN_") {
		return errors.New("cannot be set: names that begin with CE_ and FOREWARN_ belong to the CloudEvent")
	}
	return nil
}

// isVariable reports whether a text can be the name of an environment variable.
func isVariable(name string) bool {
	return name != "" && strings.Trim(name, letters+"_0123456789") == "" && strings.Trim(name[:1], letters+"_") == ""
}

type variable struct{ name, value string }

// settingsVariables returns the environment variables of the settings with their current values, and a redactor that
// knows those that may be secret.
func (c *command) settingsVariables() ([]variable, *redactor, error) {
	redact := c.redactor()
	redact.hideKeys(strings.Join(c.args, " "))
	var all []variable
	var unread error
	for _, s := range c.env {
		value, secret := s.Text.plain(), s.Text.text == nil
		var err error
		if secret { // only a text in the settings may be empty
			value, err = s.read(c.Host)
		}
		switch {
		case errors.Is(err, errUnread):
			unread = err
		case err != nil:
			return nil, nil, err
		case strings.Contains(value, "\x00"):
			return nil, nil, s.wrong(errors.New("holds a NUL byte, which no variable can"))
		case len(value) > maxSetting:
			return nil, nil, s.wrong(fmt.Errorf("is longer than %d KiB", maxSetting>>10))
		}
		if secret {
			redact.hideSecret(value)
		} else {
			redact.hideSetting(value)
		}
		all = append(all, variable{s.name, value})
	}
	return all, redact, unread
}

// eventVariables returns the environment variables about a CloudEvent. They are valid UTF-8 without NUL bytes, and cut
// to sizes that every kernel accepts; standard input has the whole CloudEvent.
func eventVariables(d delivery.Delivery, sink string, now time.Time) ([]variable, error) {
	f := messageFields(d, time.UTC, now)
	data, _ := f["data"].(map[string]any)
	word := func(v any) string { s, _ := v.(string); return s }
	test := ""
	if d.Event.Type() == cloudevent.BridgeTest {
		test = "1"
	}
	all := []variable{
		{"FOREWARN_SINK", sink}, {"FOREWARN_ATTEMPT", strconv.Itoa(d.Attempt)}, {"FOREWARN_CHANGE", word(f["change"])},
		{"FOREWARN_OUTCOME", word(data["outcome"])}, {"FOREWARN_TEST", test},
		{"FOREWARN_NOTICE_SECONDS", strconv.Itoa(int(max(0, eventStart(d).Sub(now)).Seconds()))},
	}
	attributes, err := attributes(d.Event)
	if err != nil {
		return nil, err
	}
	for _, a := range attributes {
		all = append(all, variable{"CE_" + strings.ToUpper(a.name), a.value})
	}
	names, _ := f["resources"].([]string)
	all = append(all, variable{"FOREWARN_RESOURCES", strings.Join(names, ",")})
	boundVariables(all)
	return all, nil
}

// boundVariables makes the values valid UTF-8 without NUL bytes, and cuts them to maxVariable each and maxEvent in all.
// A list of VMs is cut after a whole name.
func boundVariables(all []variable) {
	rest := maxEvent
	for i := range all {
		v := &all[i]
		v.value = strings.ToValidUTF8(strings.ReplaceAll(v.value, "\x00", ""), "\uFFFD")
		limit := min(maxVariable, max(0, rest-len(v.name)))
		if len(v.value) > limit {
			v.value = strings.ToValidUTF8(v.value[:limit], "")
			if v.name == "FOREWARN_RESOURCES" { // half a name may be another VM's
				v.value = v.value[:max(0, strings.LastIndexByte(v.value, ','))]
			}
		}
		rest -= len(v.name) + len(v.value) + 2
	}
}

// Deliver runs the program for the one CloudEvent of the batch, and waits until it ends. Beside an error, the receipt
// has the number of failed runs that count as attempts.
func (c *command) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	d := batch[0]
	uncounted := delivery.Answer{Receipt: newExecReceipt(d, failedRuns(d))}
	if err := context.Cause(ctx); err != nil {
		return uncounted, err
	}
	err := c.env.load(ctx, c.Host)
	if err != nil {
		return uncounted, err
	}
	own, redact, err := c.settingsVariables()
	if err != nil {
		return uncounted, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	input, env, err := c.message(d, own)
	if err != nil {
		return uncounted, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
	}
	path, err := findProgram(c.args[0], env)
	if err != nil {
		return uncounted, classOfStart(err)
	}
	if _, ok := ctx.Deadline(); !ok {
		limit := c.limit(d)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end within %s", delivery.Readable(limit)))
		defer cancel()
	}
	out := output{max: maxOutput - len(outputGap)}
	began := c.now()
	state, group, err := c.run(ctx, path, env, input, &out)
	if err != nil {
		return uncounted, classOfStart(err)
	}
	took := c.now().Sub(began).Round(10 * time.Millisecond)
	text := out.text(redact)
	if text != "" {
		c.Log.Info("output of the command", "sink", c.Name, "id", d.Event.ID(), "attempt", d.Attempt, "output", text)
	}
	last := cut(text[strings.LastIndexByte(text, '\n')+1:], 200)
	answer, err := c.judge(ctx, d, end{state, group.cut, last, describeLeft(group.left, redact, group.cut), took})
	c.env.refuse(c.Host, err)
	return answer, err
}

// An end is how a run has ended.
type end struct {
	state *os.ProcessState
	cut   bool   // by the end of ctx
	last  string // line of the output
	left  string // what the program has left running, for people; "" if it left nothing
	took  time.Duration
}

// why returns what is known besides the exit code, after a colon; "" if that is nothing.
func (e end) why() string {
	switch {
	case e.left == "" && e.last == "":
		return ""
	case e.left == "":
		return ": " + e.last
	case e.last == "":
		return ": " + e.left
	}
	return ": " + e.last + "; " + e.left
}

// judge returns the outcome of a delivery from the end of its run. A run that has left something running has failed,
// whatever its exit code, and so has one that was out of time. A run that was ended because the bridge stops is repeated,
// and does not count as an attempt.
func (c *command) judge(ctx context.Context, d delivery.Delivery, e end) (delivery.Answer, error) {
	text := e.state.String() + e.why()
	how := strings.Replace(e.state.String(), "exit status", "exit", 1)
	answer := delivery.Answer{Status: fmt.Sprintf("%s after %s%s", how, delivery.Readable(e.took), e.why())}
	failed := errors.New(text)
	code, runs := e.state.ExitCode(), failedRuns(d)
	if e.cut { // what a program says after it was told to end says nothing about its work
		failed, code = fmt.Errorf("%w: %s", context.Cause(ctx), text), -1
	}
	if code == 0 && e.left == "" {
		return answer, nil
	}
	answer.Receipt = newExecReceipt(d, runs)
	switch {
	case e.cut && errors.Is(ctx.Err(), context.Canceled), code == exitTempFail:
		return answer, failed
	case code == exitConfig:
		return answer, withClass(delivery.ErrBlocked, failed.Error())
	case runs+1 >= c.attempts:
		return answer, withClass(delivery.ErrRejected, failed.Error())
	}
	answer.Receipt = newExecReceipt(d, runs+1)
	return answer, failed
}

// An execReceipt is what the sink remembers about an Azure event: how many runs for one of its CloudEvents have failed
// and count as attempts.
type execReceipt struct {
	ID     string `json:"id"` // the CloudEvent's
	Failed int    `json:"failed"`
}

// newExecReceipt returns the receipt for a delivery; nil for a message about the bridge, which can have none.
func newExecReceipt(d delivery.Delivery, failed int) []byte {
	if !isAzure([]delivery.Delivery{d}) {
		return nil
	}
	raw, _ := json.Marshal(execReceipt{d.Event.ID(), failed}) // this always can be
	return raw
}

// failedRuns returns how many runs for a delivery have failed and count as attempts. For a message about the bridge,
// which has no receipt, every earlier attempt counts. A receipt that is unreadable counts as none, and one from before a
// replay does not count.
func failedRuns(d delivery.Delivery) int {
	before := d.Attempt - 1
	if !isAzure([]delivery.Delivery{d}) {
		return before
	}
	var r execReceipt
	if json.Unmarshal(d.Receipt, &r) != nil || r.ID != d.Event.ID() {
		return 0
	}
	return min(max(0, r.Failed), before)
}

// The exit codes with a meaning of their own, as in sysexits.h.
const (
	exitTempFail = 75 // retry later
	exitConfig   = 78 // somebody has to act
)

// limit returns how long a run may last: until NotBefore, because later it is too late to prepare, but at most maxRun.
// It is maxRun if NotBefore is unknown or past.
func (c *command) limit(d delivery.Delivery) time.Duration {
	if left := eventStart(d).Sub(c.now()); left > 0 {
		return min(left, maxRun)
	}
	return maxRun
}

// eventStart returns the newest NotBefore of a delivery's Azure event. It may have changed since the CloudEvent was
// made, if the sink has a lead. It is zero if it is unknown, or the event has started or is over.
func eventStart(d delivery.Delivery) time.Time {
	f := cloudevent.Fields(d.Event)
	if f["azeventstatus"] == "Started" || f["change"] == "vanished" {
		return time.Time{}
	}
	if !d.NotBefore.IsZero() {
		return d.NotBefore
	}
	notBefore, _ := f["aznotbefore"].(string)
	at, _ := time.Parse(time.RFC3339, notBefore) // zero if it is not a time
	return at
}

// message returns the standard input and the environment of a run. The environment is a base that does not depend on
// who started the bridge, the variables about the CloudEvent, and own, those of the settings, which replace others of
// the same name.
func (c *command) message(d delivery.Delivery, own []variable) (input []byte, env []variable, err error) {
	input, err = jsonLines([]delivery.Delivery{d})
	if err != nil {
		return nil, nil, err
	}
	event, err := eventVariables(d, c.Name, c.now())
	replaced := map[string]bool{}
	for _, v := range own {
		replaced[v.name] = true
	}
	for _, v := range append(baseVariables(c.user, c.Getenv), event...) {
		if !replaced[v.name] {
			env = append(env, v)
		}
	}
	return input, append(env, own...), err
}

// findProgram returns the path of a program. A name is looked up in the absolute directories of the PATH in env.
func findProgram(name string, env []variable) (string, error) {
	if filepath.IsAbs(name) {
		return exec.LookPath(name)
	}
	path := ""
	for _, v := range env {
		if v.name == "PATH" {
			path = v.value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(dir) {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s: %w in %s", templates.HideKeys(name, name), exec.ErrNotFound, path)
}

// run runs the program, and returns how it and its process group ended. An error means that it was not started.
func (c *command) run(ctx context.Context, path string, env []variable, input []byte,
	out io.Writer) (*os.ProcessState, groupEnd, error) {
	cmd := &exec.Cmd{
		Path: path, Args: c.args, Dir: c.dir, Stdin: bytes.NewReader(input), Stdout: out, Stderr: out, WaitDelay: outputWait,
		Env: environ(env), SysProcAttr: processAttributes(c.user),
	}
	group, err := runGroup(ctx, cmd, runTerms{true, c.grace, c.moment})
	if errors.Is(err, exec.ErrWaitDelay) && len(group.left) == 0 {
		group.left = append(group.left, unfound)
		group.cut = group.cut || ctx.Err() != nil
	}
	if cmd.ProcessState != nil {
		err = nil // the state says more, and enough of the output was read
	}
	return cmd.ProcessState, group, err
}

// environ returns variables as a program gets them.
func environ(env []variable) []string {
	all := make([]string, 0, len(env))
	for _, v := range env {
		all = append(all, v.name+"="+v.value)
	}
	return all
}

// classOfStart returns the error for a program that could not be started, with its class: blocked if somebody has to
// act, such as when the program does not exist.
func classOfStart(err error) error {
	err = fmt.Errorf("start the command: %w", err)
	lasting := append([]error{fs.ErrNotExist, fs.ErrPermission, exec.ErrNotFound, syscall.ENOTDIR}, startErrors...)
	if slices.ContainsFunc(lasting, func(one error) bool { return errors.Is(err, one) }) {
		return fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	return err
}

// Render returns the command line, the environment and the standard input of a run. The values of variables in the
// settings are hidden.
func (c *command) Render(d delivery.Delivery) (string, error) {
	own, _, err := c.settingsVariables()
	if exceptUnread(err) != nil {
		return "", err
	}
	input, env, err := c.message(d, own)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i, arg := range c.args {
		b.WriteString(" "[:min(i, 1)] + quoted(templates.HideKeys(arg, arg)))
	}
	b.WriteString("\n\n")
	for _, v := range env {
		if slices.ContainsFunc(c.env, func(s source) bool { return s.name == v.name }) {
			v.value = hidden
		}
		fmt.Fprintf(&b, "%s=%s\n", v.name, quoted(v.value))
	}
	fmt.Fprintf(&b, "\n%s", input)
	return b.String(), nil
}

// quoted returns a text in quotes if it would be ambiguous without them.
func quoted(s string) string {
	if s == "" || strings.ContainsAny(s, " '`$\\*?") || strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}

// Connect checks that the program and its working directory exist, and that the account may use both. It runs nothing.
func (c *command) Connect(ctx context.Context) (string, error) {
	if err := c.env.load(ctx, c.Host); err != nil {
		return "", err
	}
	own, _, err := c.settingsVariables()
	if err != nil {
		return "", fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	path, err := findProgram(c.args[0], slices.Concat(baseVariables(c.user, c.Getenv), own))
	if err != nil {
		return "", classOfStart(err)
	}
	info, err := os.Stat(c.dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "chdir", Path: c.dir, Err: syscall.ENOTDIR}
	}
	for _, path := range []string{path, c.dir} { // entering a directory takes the same right
		if err == nil {
			err = c.user.mayRun(path)
		}
	}
	if err != nil {
		return "", classOfStart(err)
	}
	return path + " is there and may be run", nil
}
