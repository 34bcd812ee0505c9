//go:build !windows

package control

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What is at the path of the control socket and is no socket stays there.
func TestListenReplacesNothingButSockets(t *testing.T) {
	dir := t.TempDir()
	file, empty := filepath.Join(dir, "outbox.db"), filepath.Join(dir, "run")
	if err := errors.Join(os.WriteFile(file, []byte("keep"), 0o600), os.Mkdir(empty, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, empty} {
		if l, err := Listen(path, slog.New(slog.DiscardHandler)); err == nil {
			l.Close()
			t.Errorf("%s was replaced by a socket", path)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
}

// A relay without the key control leaves the socket of the VM's forewarn alone, whichever starts first, and is asked on
// its own.
func TestRelayHasASocketOfItsOwn(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	vm := Location{State: t.TempDir()}
	relay := vm
	relay.Relay = true
	for _, at := range []Location{relay, vm} {
		l, err := Listen(at.Sockets()[0], log)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}

// A service whose state can't be written has its socket in the runtime directory of its unit. Commands find it there,
// though only the service has the environment variable.
func TestSocketOfTheUnitIsFoundWithoutItsEnvironment(t *testing.T) {
	service := Location{State: "/var/lib/forewarn", Runtime: "/run/forewarn"}
	command := Location{State: "/var/lib/forewarn"}
	if got, want := command.looked(), service.Sockets(); !slices.Equal(got, want) {
		t.Errorf("a command looks for %v, the service has %v", got, want)
	}
	if got := command.Sockets(); len(got) != 1 {
		t.Errorf("one that is run by hand has %v, want none in the place of the service", got)
	}
	relay := Location{State: "/var/lib/forewarn", Relay: true}
	if want := "/run/forewarn-relay/relay.sock"; !slices.Contains(relay.looked(), want) {
		t.Errorf("with the settings of a relay it looks for %v, want %s too", relay.looked(), want)
	}
	edited := Location{State: "/data", DefaultState: "/var/lib/forewarn", Control: "/run/own.sock", Service: true}
	for _, path := range append(service.Sockets(), "/run/own.sock", "/data/control.sock") {
		if !slices.Contains(edited.looked(), path) {
			t.Errorf("with settings of the service that were edited since, it looks for %v, want %s too", edited.looked(), path)
		}
	}
	other := Location{State: "/var/lib/other", DefaultState: "/var/lib/forewarn", Control: "/run/other.sock"}
	if got := other.looked(); len(got) != 2 {
		t.Errorf("with settings that are not the service's it looks for %v, want only its own two", got)
	}
	other = Location{State: "/var/lib/other"}
	if got := other.Sockets(); len(got) != 1 {
		t.Errorf("with another state it looks for %v, want only the one there", got)
	}
}
