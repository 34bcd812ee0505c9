package main

import (
	"errors"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"
)

// natsVerb starts a NATS server with JetStream, which ends with the story.
func natsVerb(ts *testscript.TestScript, _ bool, _ []string) {
	s, err := server.NewServer(&server.Options{
		ServerName: "nats-1", Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: filepath.Join(ts.MkAbs("."), "jetstream"),
	})
	ts.Check(err)
	s.Start()
	in(ts).ends = append(in(ts).ends, func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		ts.Check(errors.New("the NATS server takes no connections"))
	}
	ts.Setenv("NATS", s.ClientURL())
}
