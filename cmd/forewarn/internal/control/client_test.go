package control

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// A forewarn that is there and does not answer is told from one that is not there.
func TestStatusOfAForewarnThatHangs(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	c := Client{Location: Location{Control: socket}}
	ask := func() error { _, err := c.Status(t.Context()); return err }
	if err := ask(); err == nil || !strings.Contains(err.Error(), "a forewarn listens on "+socket+" but does not answer: ") || errors.Is(err, ErrNotRunning) {
		t.Errorf("of one that hangs: %v", err)
	}
	l.Close()
	if err := ask(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("of one that is not there: %v", err)
	}
}
