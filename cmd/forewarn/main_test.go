package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"forewarn/cmd/forewarn/internal/settings"
)

func TestMain(m *testing.M) {
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") != "forewarn" { // which gets its environment from a test
		for _, name := range machineVariables {
			os.Unsetenv(name)
			os.Unsetenv(strings.ToLower(name))
		}
		os.Setenv("GOMAXPROCS", cmp.Or(os.Getenv("GOMAXPROCS"), "1")) // for the programs that tests start: many run at a time
	}
	// They mostly wait for processes and sockets, so more of them run at a time than there are processors. -parallel
	// beats it. Under wine a process takes a second to start. With one processor, as under the race detector, the servers
	// that they talk to share it, and would answer too late.
	parallel := "16"
	if runtime.GOOS == "windows" || runtime.GOMAXPROCS(0) == 1 {
		parallel = "4"
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	testscript.Main(covered{m}, map[string]func(){
		"forewarn": command, "ctrl-c": ctrlC, "append": appendLine, "nats-server": natsServer,
		"powershell": powerShell,
	})
}

// powerShell stands for the program of that name, which wine lacks: it notes beside the script what it was started with,
// and ends with the exit code of a script that is one line, "exit CODE".
func powerShell() {
	script := os.Args[slices.Index(os.Args, "-File")+1]
	noted := fmt.Sprintf("%s %q\n", os.Getenv("FOREWARN_CHANGE"), os.Args[1:])
	if err := os.WriteFile(script+".txt", []byte(noted), 0o600); err != nil {
		panic(err)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		panic(err)
	}
	var code int
	fmt.Sscanf(string(text), "exit %d", &code)
	os.Exit(code)
}

// covered runs the tests. Under -cover it gives the programs that they start a directory for what they cover: they would
// warn that they have none, in what the tests read.
type covered struct{ *testing.M }

func (m covered) Run() int {
	if testing.CoverMode() != "" && os.Getenv("GOCOVERDIR") == "" {
		dir, err := os.MkdirTemp("", "forewarn-cover-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		os.Setenv("GOCOVERDIR", dir)
	}
	return m.M.Run()
}

// appendLine appends its standard input to the file that it is given, as a line.
func appendLine() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	if _, err := f.Write(append(text, '\n')); err != nil {
		panic(err)
	}
	if err := f.Close(); err != nil {
		panic(err)
	}
}

// machineVariables are what the environment may say about the machine that the tests run on. The program hears of them
// only what a test sets.
var machineVariables = []string{
	"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "RUNTIME_DIRECTORY", "XDG_STATE_HOME", "SCHEDULEDEVENTSIP",
	"SUDO_USER",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NO_COLOR",
}

// command is the program as the tests run it: its default places are below $HOME, because the machine may have a
// forewarn of its own.
func command() {
	w := processEnvironment()
	home := os.Getenv("HOME")
	w.defaults = settings.Defaults{Settings: filepath.Join(home, "etc", "forewarn.yaml"),
		State: filepath.Join(home, "var")}
	w.service = func(path, byDefault string) string {
		if os.Getenv("SERVICE") == "" || path != byDefault {
			return ""
		}
		return "sudo systemctl start forewarn"
	}
	os.Exit(run(context.Background(), w))
}
