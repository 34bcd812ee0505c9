//go:build !windows

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// controlPath is a place for the control socket.
func controlPath(dir string) string { return filepath.Join(dir, "fw.sock") }

// holdFile is for Windows: here an open file keeps nobody out.
func holdFile(string, bool) (io.Closer, error) { return nil, errors.ErrUnsupported }

// signals are those of the stories. A stopped process is what a frozen machine looks like from inside.
var signals = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP,
	"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

// signalProcess sends a process the signal of that name.
func signalProcess(p *os.Process, name string) error { return p.Signal(signals[name]) }

// withConsole changes nothing: a signal goes to one process.
func withConsole(*exec.Cmd) {}

// ctrlC is for Windows.
func ctrlC() {}
