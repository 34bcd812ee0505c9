package sinks

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
)

// prints returns a command that prints a file, and with a second one adds a byte to that.
func prints(t *testing.T, files ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return "['" + strings.Join(append([]string{self, "task=print"}, files...), "', '") + "']"
}

// A command is asked for a token once, and again when the server has refused the one that it gave.
func TestMailTokenIsKeptUntilItIsRefused(t *testing.T) {
	ca := newAuthority(t)
	b := &mailbox{mechanisms: []string{"XOAUTH2"}}
	token, asked := writeFile(t, "token", mailPassword+"\n"), writeFile(t, "asked", "")
	s := mustOpen(t, "email", serveMail(t, b, "starttls", ca, ca.issue(t, "127.0.0.1", time.Hour))+
		"to: [a@example.com]\nusername: azure\ntoken_command: "+prints(t, token, asked)+"\n", testHost(t))
	for i, tt := range []struct {
		password, token, want string
		runs                  int // of the command so far
	}{
		{mailPassword, mailPassword, accepted, 1},
		{mailPassword, "unused", accepted, 1},
		{"second", "second", accepted, 2}, // at once, not at the next attempt
		{"third", "second", blocked, 3},
		{"third", "third", accepted, 4},
	} {
		b.mu.Lock()
		b.password = tt.password
		b.mu.Unlock()
		if err := os.WriteFile(token, []byte(tt.token), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if runs := len(read(t, asked)); classOf(err) != tt.want || runs != tt.runs {
			t.Errorf("%d: %v after %d runs, want it %s after %d", i, err, runs, tt.want, tt.runs)
		}
	}
}

// A token can come from a command.
func TestMailTokenComesFromACommand(t *testing.T) {
	ca := newAuthority(t)
	b := &mailbox{mechanisms: []string{"XOAUTH2"}}
	server := serveMail(t, b, "starttls", ca, ca.issue(t, "127.0.0.1", time.Hour)) +
		"to: [a@example.com]\nusername: azure\n"
	token := writeFile(t, "token", mailPassword+"\nand more\n")
	s := mustOpen(t, "email", server+"token_command: "+prints(t, token)+"\n", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil || len(b.all()) != 1 {
		t.Errorf("Deliver = %v, %d mails", err, len(b.all()))
	}
	s = mustOpen(t, "email", server+"token_command: "+prints(t)+"\n", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again ||
		!strings.Contains(err.Error(), "printed no token") {
		t.Errorf("without a token: %v, want it %s", err, again)
	}
	for command, want := range map[string]string{"[" + someProgram + "-no]": blocked,
		"[no-such-program-anywhere]": blocked, prints(t, filepath.Join(t.TempDir(), "none")): again} {
		s := mustOpen(t, "email", server+"token_command: "+command+"\n", testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != want ||
			!strings.Contains(err.Error(), "token_command") {
			t.Errorf("%s: %v, want it %s", command, err, want)
		}
	}
}

// A command that prints a token has the environment of an exec sink's, and no secrets of other sinks.
func TestATokenCommandHasNoSecretsOfOtherSinks(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skipf("%v; CI has it", err)
	}
	t.Setenv("HOOK_TOKEN", "s3cr3t")
	t.Setenv("HTTPS_PROXY", "http://gatekeeper:s3cr3t@proxy.test")
	h := Host{Getenv: os.Getenv}
	got, err := runTokenCommand(t.Context(), h, []string{sh, "-c", `echo "$HOOK_TOKEN$HTTPS_PROXY in $HOME with $PATH"`})
	home := ""
	own, _ := findAccount("")
	for _, v := range baseVariables(own, os.Getenv) {
		if v.name == "HOME" {
			home = v.value
		}
	}
	if err != nil || !strings.HasPrefix(got, "in "+home+" with /") {
		t.Errorf("the environment is %q, %v; want HOME and PATH alone", got, err)
	}
}

// A key in the arguments of such a command is a secret, as in those of an exec sink's.
func TestAKeyInATokenCommandIsNotShown(t *testing.T) {
	const key = "R03A9vx7kq2LmZ5tYb81Wc"
	ca := newAuthority(t)
	b := &mailbox{mechanisms: []string{"XOAUTH2"}, refuse: map[string]error{"a@example.com": &smtp.SMTPError{Code: 550, Message: "no key " + key}}}
	files := prints(t, writeFile(t, "token", mailPassword), writeFile(t, "asked", ""))
	command := strings.TrimSuffix(files, "]") + ", --key=" + key + "]"
	h := testHost(t)
	h.Known = new(KnownSecrets)
	s := mustOpen(t, "email", serveMail(t, b, "starttls", ca, ca.issue(t, "127.0.0.1", time.Hour))+
		"to: [a@example.com]\nusername: azure\ntoken_command: "+command+"\n", h)
	if got := (Host{Name: "other", Known: h.Known}).redactor().line("key "+key, maxShown); got != notShown {
		t.Errorf("another sink shows %s", got)
	}
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if err == nil || !strings.Contains(err.Error(), notShown) {
		t.Errorf("the error is %v, want one that shows no key", err)
	}
}

// A command that gives no token is ended with all that it has started, and is not waited for.
func TestTokenCommandEndsAsAWhole(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	one, other := newWatch(t), newWatch(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := runTokenCommand(ctx, testHost(t), []string{self, "task=family", one.address(), other.address()})
		ended <- err
	}()
	command, child := one.begun(), other.begun()
	cancel()
	dies(t, command, "the command")
	dies(t, child, "its child")
	if err := <-ended; !errors.Is(err, context.Canceled) || classOf(err) != again {
		t.Errorf("tokenOf = %v, want %v", err, context.Canceled)
	}
}

// Whatever a command prints, a token is one line that is not empty, or there is an error that does not show it.
func FuzzTokenCommand(f *testing.F) {
	for _, printed := range []string{"s3cr3t", "s3cr3t\r\nmore", "\n s3cr3t", " \t\n", "s3cr3t\x00\x01\xff",
		strings.Repeat("s3cr3t", 20_000)} {
		f.Add(printed)
	}
	cat, err := exec.LookPath("cat")
	if err != nil {
		f.Skip("there is no cat")
	}
	f.Fuzz(func(t *testing.T, printed string) {
		token, err := runTokenCommand(t.Context(), Host{Getenv: os.Getenv}, []string{cat, writeFile(t, "token", printed)})
		first, _, _ := strings.Cut(printed, "\n")
		if (err == nil) != (strings.TrimSpace(first) != "") || len(token) > 64<<10 || token != strings.TrimSpace(token) ||
			!strings.Contains(first, token) {
			t.Errorf("%.100q gave the token %.100q and %v", printed, token, err)
		}
		if err != nil && (classOf(err) != again || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("%.100q gave %v, want it to be tried again, without what was printed", printed, err)
		}
	})
}
