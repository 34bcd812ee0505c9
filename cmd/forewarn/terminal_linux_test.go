package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"forewarn/bridge/imdstest"
)

// steering are characters by which a text takes over the terminal that shows it: an 8-bit CSI, DEL, and a mark that
// turns the direction of writing. escape, in JSON, is one that becomes raw when it is decoded.
const (
	steering = "\u009b2J\u007f\u202e"
	escaped  = `\u009b2J\u007f\u202e`
	escape   = `\u001b]0;owned\u0007`
)

// pty is a terminal: what a program writes to tty can be read from screen.
func pty(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return screen, tty
}

// shownBy is what the command writes to a terminal. After each piece, see is told of all of it so far.
func shownBy(t *testing.T, c *exec.Cmd, see func(c *exec.Cmd, shown string)) string {
	t.Helper()
	screen, tty := pty(t)
	c.Stdout, c.Stderr = tty, tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	var all []byte
	piece := make([]byte, 4096)
	for {
		n, err := screen.Read(piece)
		all = append(all, piece[:n]...)
		see(c, string(all))
		if err != nil { // EIO: nobody has the terminal any more
			break
		}
	}
	_ = c.Wait() // most of these commands fail, as they should
	return string(all)
}

// No text printed by any command can control the terminal: control characters are shown as escapes, which mean the
// same in JSON. Data written to a pipe is unchanged.
func TestTerminalOutputIsEscaped(t *testing.T) {
	t.Parallel()
	azure, err := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}}).Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { azure.Close() })
	document := func(incarnation, id string) {
		azure.SetDocument([]byte(`{"DocumentIncarnation": ` + incarnation + `, "Events": [{"EventId": "` + eventID(id) + `", "EventStatus": "Scheduled",
			"EventType": "Reboot` + steering + `", "ResourceType": "VirtualMachine", "Resources": ["vm-0"],
			"Description": "` + steering + `", "EventSource": "Platform` + escape + `"}]}`))
	}
	document("1", "now")
	dir := t.TempDir()
	settings := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ours := settings("ours.yaml",
		fmt.Sprintf("{imds: {endpoint: %q, interval: 100ms}, state: %q, listen: '', sinks: [{name: all, only: {vms: all}, "+
			"file: {path: %q}}]}", azure.URL, filepath.Join(dir, "state"), filepath.Join(dir, "all.jsonl")))
	fw := forewarn(t, "run", "--config", ours)
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fw.Process.Kill(); _ = fw.Wait() })
	for told := ""; !strings.Contains(told, "accepted"); {
		out, _ := forewarn(t, "history", "--config", ours, "-o", "json").Output()
		told = string(out)
	}

	// An endpoint and a control socket that answer with what steers.
	bad := "HTTP/1.1 503 \x1b]0;owned\x07" + steering + "\r\nContent-Length: 0\r\n\r\n"
	endpoint := answerWith(t, bad)
	socket := filepath.Join(dir, "c.sock")
	serveHostileControl(t, socket)
	theirs := settings("theirs.yaml",
		fmt.Sprintf("{control: %q, state: %q, sinks: []}", socket, filepath.Join(dir, "none")))

	for _, tt := range []struct {
		command string
		enough  string // after which the command is interrupted
		shows   string
		raw     string // what a pipe gets instead; "" where words are printed, and not data
	}{
		{command: "events --config " + ours, shows: escaped, raw: steering},
		{command: "history -o json --config " + ours, shows: escaped, raw: steering},
		{command: "history -o csv --config " + ours, shows: escape, raw: "\x1b]0;owned\x07"},
		{command: "history --config " + ours, shows: "owned"},
		{command: "status --config " + ours, shows: "Reboot"},
		{command: "status --watch --config " + ours, enough: "Reboot", shows: "Reboot"},
		{command: "status -o json --config " + ours, shows: escaped, raw: steering},
		{command: "tail --config " + ours, enough: "dev.forewarn", shows: escaped},
		{command: "events --endpoint " + endpoint, shows: "owned"},
		{command: "status --config " + theirs, shows: "owned"},
		{command: "outbox list --config " + theirs, shows: "owned"},
	} {
		name, _, _ := strings.Cut(tt.command, " --config")
		args := strings.Fields(tt.command)
		shown := shownBy(t, forewarn(t, args...), func(c *exec.Cmd, shown string) {
			switch {
			case tt.enough != "" && strings.Contains(shown, tt.enough):
				_ = c.Process.Signal(os.Interrupt)
			case strings.Contains(shown, "following"):
				document("2", "next")
			}
		})
		if !strings.Contains(shown, tt.shows) {
			t.Errorf("%s shows %q, want %q in it", name, shown, tt.shows)
		}
		for _, r := range withoutOwn(shown) {
			if r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
				t.Errorf("%s shows a %U:\n%q", name, r, shown)
				break
			}
		}
		if tt.raw != "" {
			if out, err := forewarn(t, args...).Output(); err != nil || !bytes.Contains(out, []byte(tt.raw)) {
				t.Errorf("%s gives a pipe %q (%v), want %q in it", name, out, err, tt.raw)
			}
		}
	}
}

// withoutOwn takes out how lines end on a terminal, and how status --watch holds the screen.
func withoutOwn(shown string) string {
	for _, own := range []string{takeScreen, giveScreen, "\x1b[H", "\x1b[K"} {
		shown = strings.ReplaceAll(shown, own, "")
	}
	return strings.NewReplacer("\r\r\n", "\n", "\r\n", "\n").Replace(shown)
}

// answerWith is the address of a server that answers everything with these bytes.
func answerWith(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, answer)
			c.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// serveHostileControl serves a control socket whose every answer is an error that would steer a terminal.
func serveHostileControl(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "\x1b]0;owned\x07"+steering, http.StatusConflict)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
}

// What run prints to a terminal is text for a person; with -o json it is the CloudEvents that a pipe gets, and with
// -o text a pipe gets the text.
func TestRunPrintsTextToATerminal(t *testing.T) {
	t.Parallel()
	azure, err := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}}).Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { azure.Close() })
	azure.Schedule(imdstest.Event{ID: eventID("A"), Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
	const text, line = "vm-0 will reboot", `"specversion":"1.0"`
	command := func(args ...string) *exec.Cmd {
		dir := t.TempDir()
		config := filepath.Join(dir, "forewarn.yaml")
		settings := "imds: {endpoint: '" + azure.URL + "'}\nstate: state\nlisten: ''\ntimezone: Europe/Berlin\n" +
			"sinks: [{name: out, file: {path: '-'}}]\n"
		if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		return forewarn(t, append([]string{"run", "--config", config}, args...)...)
	}
	endAfter := func(c *exec.Cmd, shown string) {
		if strings.Contains(shown, "dev.forewarn.scheduledevent.scheduled") {
			c.Process.Signal(syscall.SIGTERM)
		}
	}
	if got := shownBy(t, command(), endAfter); !strings.Contains(got, text) || strings.Contains(got, line) {
		t.Errorf("a terminal shows\n%s\nwant text", got)
	}
	if got := shownBy(t, command("-o", "json"), endAfter); !strings.Contains(got, line) {
		t.Errorf("with -o json a terminal shows\n%s\nwant CloudEvents", got)
	}
	for want, args := range map[string][]string{line: nil, text: {"-o", "text"}} {
		c := command(args...)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		first, _ := bufio.NewReader(out).ReadString('\n')
		c.Process.Signal(syscall.SIGTERM)
		if _ = c.Wait(); !strings.Contains(first, want) {
			t.Errorf("with %v a pipe gets %q first, want %s", args, first, want)
		}
	}
}

// A test message to standard output follows the same rule as run: text for a person on a terminal, CloudEvents in a pipe.
func TestSendPrintsTextToATerminal(t *testing.T) {
	t.Parallel()
	const text, line = "TEST: ", `"specversion":"1.0"`
	config := filepath.Join(t.TempDir(), "forewarn.yaml")
	settings := "imds: {vm_name: vm-0}\nstate: state\nlisten: ''\nsinks: [{name: out, file: {path: '-'}}]\n"
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) *exec.Cmd {
		return forewarn(t, append([]string{"send", "--config", config}, args...)...)
	}
	onTerminal := func(args ...string) string { return shownBy(t, command(args...), func(*exec.Cmd, string) {}) }
	if got := onTerminal(); !strings.Contains(got, text) || strings.Contains(got, line) {
		t.Errorf("a terminal shows\n%s\nwant text", got)
	}
	if got := onTerminal("-o", "json"); !strings.Contains(got, line) {
		t.Errorf("with -o json a terminal shows\n%s\nwant a CloudEvent", got)
	}
	for want, args := range map[string][]string{line: nil, text: {"-o", "text"}} {
		out, err := command(args...).Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("with %v a pipe gets %q (%v), want %s", args, out, err, want)
		}
	}
}

// On a terminal a topic of help is shown by the pager that the user has chosen, and printed where that doesn't exist.
func TestHelpIsShownByThePager(t *testing.T) {
	t.Parallel()
	for pager, want := range map[string]string{"sed s/^/paged:/": "paged:SETTINGS", "/nowhere/pager": "SETTINGS"} {
		c := forewarn(t, "help", "settings")
		c.Env = append(c.Environ(), "PAGER="+pager)
		if got := shownBy(t, c, func(*exec.Cmd, string) {}); !strings.HasPrefix(got, want) {
			t.Errorf("with %s a terminal shows %.60q, want %q first", pager, got, want)
		}
	}
}
