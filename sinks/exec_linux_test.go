package sinks

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"forewarn/bridge/delivery"
)

func performOnLinux(task string, args []string) int {
	switch task {
	case "whoami":
		groups, _ := os.Getgroups()
		fmt.Println(os.Getuid(), os.Getgid(), len(groups), os.Getenv("USER"), os.Getenv("HOME"))
		return 1
	case "session": // says whether it leads the session that it is in
		id, err := unix.Getsid(0)
		fmt.Println("leads one of its own:", id == os.Getpid(), err)
		return 0
	case "overwrite": // hides what it was started with, as daemons do that show a title
		for _, variable := range os.Environ() {
			clear(unsafe.Slice(unsafe.StringData(variable), len(variable)))
		}
		return hang(args[0])
	case "headless": // ends its first thread, on which this runs, and goes on
		go func() { os.Exit(hang(args[0])) }()
		syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	case "careful": // when it is told to end it says so, and cleans up once it hears to go on
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		conn, err := net.Dial("tcp", args[0])
		if err != nil {
			return 1
		}
		<-told
		fmt.Fprintln(conn, "told")
		conn.Read(make([]byte, 1))
		time.Sleep(100 * time.Millisecond) // long enough for whoever would rather kill it
		fmt.Fprintln(conn, "done")
		return 0
	case "root": // becomes root, if its file lets it
		if err := syscall.Setuid(0); err != nil {
			return 1
		}
		return hang(args[0])
	case "bridge": // runs settings, and gives the error
		var events delivery.Delivery
		if err := events.Event.UnmarshalJSON([]byte(args[1])); err != nil {
			fmt.Println(err)
			return 1
		}
		opened, err := Kinds()["exec"].Open(func(to any) error { return yaml.Unmarshal([]byte(args[0]), to) }, Host{
			Log: slog.New(slog.DiscardHandler), Getenv: os.Getenv,
		})
		if err == nil {
			_, err = opened.Sink.Deliver(context.Background(), []delivery.Delivery{events})
		}
		fmt.Println(err)
		return 0
	}
	return 2
}

// A command leads a session of its own, which has no terminal, so that it cannot type into the one that forewarn was
// started from.
func TestCommandHasASessionOfItsOwn(t *testing.T) {
	s := mustOpen(t, "exec", asCommand(t, "session"), testHost(t))
	answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if want := "leads one of its own: true <nil>"; err != nil || !strings.HasSuffix(answer.Status, want) {
		t.Errorf("Deliver = %q, %v, want an end of %q", answer.Status, err, want)
	}
}

// The command dies with the bridge, even when that is killed.
func TestCommandDiesWithTheBridge(t *testing.T) {
	w := newWatch(t)
	ce, err := deliveries(t)[0].Event.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bridge := exec.Command(self, asCommand(t, "deaf", w.address()), string(ce))
	bridge.Env = []string{"TASK=bridge"}
	if _, err := startMarked(bridge, false); err != nil { // beside no other's mark
		t.Fatal(err)
	}
	conn := w.begun()
	if err := bridge.Process.Kill(); err != nil {
		t.Error(err)
	}
	bridge.Wait()
	dies(t, conn, "the command")
}

// The command outlives the threads of the bridge, though the kernel would have it die with the one that started it.
func TestCommandOutlivesThreads(t *testing.T) {
	w := newWatch(t)
	s := mustOpen(t, "exec", asCommand(t, "hang", w.address()), testHost(t))
	ended := make(chan error, 1)
	go func() {
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		ended <- err
	}()
	conn := w.begun()
	for range 10 { // more threads than are idle, ended for good
		var all sync.WaitGroup
		together := make(chan struct{})
		for range 20 {
			all.Add(1)
			go func() {
				runtime.LockOSThread()
				all.Done()
				<-together
			}()
		}
		all.Wait()
		close(together)
	}
	fmt.Fprintln(conn, 0)
	if err := <-ended; err != nil {
		t.Errorf("Deliver = %v, want the command to end by itself", err)
	}
}

// Root may run a command as another user, with the groups and the home of that one.
func TestCommandRunsAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	self := publicCopy(t)
	settings := fmt.Sprintf("command: [%s]\nuser: nobody\nenv: {TASK: whoami}\n", self)
	a, err := findAccount("nobody")
	if err != nil {
		t.Skip(err)
	}
	s := mustOpen(t, "exec", settings, testHost(t))
	_, err = s.Deliver(t.Context(), deliveries(t)[:1])
	want := fmt.Sprintf("exit status 1: %d %d %d nobody %s", a.credential.Uid, a.credential.Gid, len(a.credential.Groups),
		a.home)
	if err == nil || err.Error() != want {
		t.Errorf("Deliver = %v, want %s", err, want)
	}
	if _, err := s.(delivery.Connecter).Connect(t.Context()); err != nil {
		t.Errorf("Connect = %v", err)
	}
	if err := os.Chmod(self, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.(delivery.Connecter).Connect(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "run as nobody") {
		t.Errorf("Connect = %v, want nobody to be refused", err)
	}
}

// Who is not root is refused another user when the settings are read, not when it matters.
func TestOnlyRootChoosesTheUser(t *testing.T) {
	const settings = "command: [/bin/true]\nuser: nobody\n"
	if os.Geteuid() != 0 {
		wrongKey(t, "exec", settings, "user", "only root")
		return
	}
	ce, err := deliveries(t)[0].Event.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	a, err := findAccount("nobody")
	if err != nil {
		t.Skip(err)
	}
	other := exec.Command(publicCopy(t), settings, string(ce))
	other.Env, other.Dir = []string{"TASK=bridge"}, "/"
	other.SysProcAttr = &unix.SysProcAttr{Credential: a.credential}
	var out bytes.Buffer
	other.Stdout, other.Stderr = &out, &out
	if _, err := startMarked(other, false); err != nil {
		t.Fatal(err)
	}
	if err := other.Wait(); err != nil || !strings.HasPrefix(out.String(), "user: only root") {
		t.Errorf("open as nobody gave %s (%v), want user refused", &out, err)
	}
}

// publicCopy returns the test binary where every user may run it.
func publicCopy(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "forewarn-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "command")
	if err := os.WriteFile(path, read(t, self), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// What a command leaves behind, such as an agent that keeps its output open, doesn't spoil the token that it printed.
func TestTokenCommandMayLeaveSomethingBehind(t *testing.T) {
	for _, program := range []string{"sh", "setsid", "sleep"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v; CI has it", err)
		}
	}
	script := "setsid sleep 60 & sleep 0.2; echo s3cr3t"
	if token, err := runTokenCommand(t.Context(), testHost(t), []string{"sh", "-c", script}); token != "s3cr3t" || err != nil {
		t.Errorf("the token is %q, %v", token, err)
	}
}
