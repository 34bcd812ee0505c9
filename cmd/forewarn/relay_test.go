package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"
)

// natsServer is a NATS server as a process of its own: nats-server -c FILE.
func natsServer() {
	o, err := server.ProcessConfigFile(os.Args[len(os.Args)-1])
	if err == nil {
		o.NoLog = true
		var s *server.Server
		if s, err = server.NewServer(o); err == nil {
			s.Start()
			s.WaitForShutdown()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// natsVerb starts a NATS server with JetStream, which ends with the story. It takes a configuration, or none.
func natsVerb(ts *testscript.TestScript, _ bool, args []string) {
	o := &server.Options{}
	if len(args) > 0 {
		for _, name := range []string{"ADMIN_PASSWORD", "RELAY_PASSWORD", "WEB_PASSWORD"} {
			ts.Check(os.Setenv(name, strings.ToLower(name)))
		}
		var err error
		o, err = server.ProcessConfigFile(ts.MkAbs(args[0]))
		ts.Check(err)
	}
	o.ServerName, o.Host, o.Port, o.NoSigs, o.NoLog, o.JetStream = "nats-1", "127.0.0.1", -1, true, true, true
	o.StoreDir = filepath.Join(ts.MkAbs("."), "jetstream")
	s, err := server.NewServer(o)
	ts.Check(err)
	s.Start()
	in(ts).ends = append(in(ts).ends, func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		ts.Check(errors.New("the NATS server takes no connections"))
	}
	ts.Setenv("NATS", s.ClientURL())
}

// The script of examples/fleet shows what it says: of three VMs' changes people get each once, though a relay is killed.
func TestFleetDemoShowsOneMessageForEachChange(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the script is one for sh")
	}
	c := exec.Command("sh", filepath.Join("..", "..", "examples", "fleet", "demo.sh"))
	c.Env = append(os.Environ(), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir(), fmt.Sprint("PORTS=", 20000+os.Getpid()%3000*10))
	out, err := c.CombinedOutput()
	const want = "People got 4 messages about 4 changes, from two relays."
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, want the last line to say %q:\n%s", err, want, out)
	}
}
