package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"
)

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
