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
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"forewarn/bridge/systemtest"
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

// The script of examples/fleet does what it says: each change of three VMs gives one message, although a relay is
// killed.
func TestFleetDemoShowsOneMessageForEachChange(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the script is one for sh")
	}
	c := exec.Command("sh", filepath.Join("..", "..", "examples", "fleet", "demo.sh"))
	c.Env = append(os.Environ(), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir(), fmt.Sprint("PORTS=", 10000+os.Getpid()%900*10))
	out, err := c.CombinedOutput()
	const want = "People got 4 messages about 4 changes, from two relays."
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, want the last line to say %q:\n%s", err, want, out)
	}
}

// With the permissions in examples/fleet/nats.conf a bridge can send heartbeats only for its own set.
func TestBridgesSendHeartbeatsOnlyForTheirSet(t *testing.T) {
	for _, name := range []string{"ADMIN_PASSWORD", "RELAY_PASSWORD", "WEB_PASSWORD"} {
		t.Setenv(name, strings.ToLower(name))
	}
	o, err := server.ProcessConfigFile(filepath.Join("..", "..", "examples", "fleet", "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	o.Port, o.NoSigs, o.NoLog, o.StoreDir = -1, true, true, t.TempDir()
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server takes no connections")
	}
	refused := make(chan error, 10)
	conn, err := nats.Connect(s.ClientURL(), nats.UserInfo("web", "web_password"), nats.CustomInboxPrefix("_INBOX_web"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for subject, allowed := range map[string]bool{
		"forewarn.heartbeat.sub.rg-prod.web.web_0": true, "forewarn.heartbeat.sub.rg-prod.db.db_0": false,
	} {
		err := conn.Publish(subject, nil)
		if err == nil {
			err = conn.Flush()
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err = <-refused:
		case <-time.After(time.Second):
		}
		if (err == nil) != allowed {
			t.Errorf("publish to %s: %v, want it allowed: %v", subject, err, allowed)
		}
	}
}
