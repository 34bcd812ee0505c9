package sinks

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the command that a test runs: TASK says which.
func TestMain(m *testing.M) {
	task, args := os.Getenv("TASK"), os.Args[1:]
	if named, ok := strings.CutPrefix(os.Args[min(1, len(args))], "task="); ok { // for one that gets no variables
		task, args = named, args[1:]
	}
	if task != "" {
		syscall.Exit(perform(task, args)) // os.Exit would complain, under -cover, of a directory that it lacks
	}
	// They mostly wait for sockets, so more of them run at a time than there are processors.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// perform does a task of the test binary as a command. The result is its exit code.
func perform(task string, args []string) int {
	switch task {
	case "post": // standard input to a URL
		resp, err := http.Post(args[0], "application/json", os.Stdin)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		resp.Body.Close()
		return 0
	case "print": // a file, and a byte into another
		for i, name := range args {
			switch i {
			case 0:
				text, err := os.ReadFile(name)
				if err != nil {
					return 1
				}
				os.Stdout.Write(text)
			case 1:
				f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					return 1
				}
				f.WriteString("x")
				f.Close()
			}
		}
		return 0
	case "exit": // with a code, after some lines
		code, _ := strconv.Atoi(args[0])
		for _, line := range args[1:] {
			fmt.Println(line)
		}
		return code
	case "shout": // more than anybody wants to hear
		fmt.Println("first")
		for range 100_000 {
			fmt.Println("and again, and again")
		}
		fmt.Println("last")
		return 1
	case "environ": // says all that it was given
		input, _ := io.ReadAll(os.Stdin)
		dir, _ := os.Getwd()
		json.NewEncoder(os.Stdout).Encode(given{os.Environ(), string(input), dir, os.Args[1:]})
		return 1
	case "leak": // says all that is in its environment, and ends with a code
		fmt.Println(strings.Join(os.Environ(), "\n"))
		code, _ := strconv.Atoi(args[0])
		return code
	case "hang": // tells an address that it lives, until it is told to end
		return hang(args[0])
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		return hang(args[0])
	case "obliging": // does what many do when they are told to end: cleans up, and ends with a code
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGTERM)
		go hang(args[0])
		<-told
		fmt.Println("cleaning up")
		code, _ := strconv.Atoi(args[1])
		return code
	case "mute": // closes its output, and goes on
		os.Stdout.Close()
		os.Stderr.Close()
		return hang(args[0])
	case "family": // has a child that does not end when it is asked to
		child := exec.Command(os.Args[0], args[1])
		child.Env = []string{"TASK=deaf"}
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return 1
		}
		return hang(args[0])
	}
	return performOnLinux(task, args)
}

// given is what the task environ says.
type given struct {
	Env   []string
	Input string
	Dir   string
	Args  []string
}

func hang(address string) int {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 1
	}
	if code, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
		n, _ := strconv.Atoi(strings.TrimSpace(code))
		return n
	}
	return 1
}

// asCommand returns settings that run a task.
func asCommand(t *testing.T, task string, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command, err := json.Marshal(append([]string{self}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("command: %s\nenv:\n  GORACE: atexit_sleep_ms=0\n  TASK: %s\n", command, task)
}

// A watch hears of processes that live and die.
type watch struct {
	net.Listener
	t *testing.T
}

func newWatch(t *testing.T) watch {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return watch{l, t}
}

func (w watch) address() string { return w.Addr().String() }

// begun waits for a process to live; what it gives ends with the process, and ends it when it is closed.
func (w watch) begun() net.Conn {
	conn, err := w.Accept()
	if err != nil {
		w.t.Error(err)
		return nil
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// dies checks that a process dies though nobody told it to.
func dies(t *testing.T, process net.Conn, which string) {
	t.Helper()
	process.SetReadDeadline(time.Now().Add(20 * time.Second))
	var ne net.Error
	if _, err := process.Read(make([]byte, 1)); err == nil || errors.As(err, &ne) && ne.Timeout() {
		t.Errorf("%s is still there (%v), want it gone", which, err)
	}
}
