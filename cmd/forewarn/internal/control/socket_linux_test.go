package control

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// listenHere opens the control socket in a new directory, for a program that logs to the buffer.
func listenHere(t *testing.T, dir string, log io.Writer) net.Listener {
	t.Helper()
	l, err := Listen(Location{State: dir}.Sockets()[0], slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Other users cannot connect to the control socket at any time: it is created with mode 0600, and never has another.
func TestControlSocketIsNeverOpenToOthers(t *testing.T) {
	dir := t.TempDir()
	notify, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(notify)
	if _, err := unix.InotifyAddWatch(notify, dir, unix.IN_CREATE|unix.IN_ATTRIB|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	listenHere(t, dir, io.Discard)
	info, err := os.Stat(filepath.Join(dir, "control.sock"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket has mode %v (%v), want 0600", info.Mode(), err)
	}
	buffer := make([]byte, 4096)
	n, err := unix.Read(notify, buffer)
	if err != nil {
		t.Fatal(err)
	}
	var seen []uint32
	for at := 0; at < n; {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&buffer[at]))
		seen = append(seen, event.Mask)
		at += unix.SizeofInotifyEvent + int(event.Len)
	}
	if len(seen) != 1 || seen[0] != unix.IN_CREATE {
		t.Errorf("the kernel saw %#x in the directory, want one file made (%#x) and its mode left alone",
			seen, unix.IN_CREATE)
	}
}

// Another user is refused even if the mode of the socket was changed by mistake. The log says so once.
func TestControlSocketRefusesOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user; CI runs this as root")
	}
	const other = 65534
	dir := t.TempDir()
	var log bytes.Buffer
	l := listenHere(t, dir, &log)
	path := filepath.Join(dir, "control.sock")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	// greet connects and is told a word. As another user it takes a thread of its own, which ends with the goroutine.
	greet := func(uid int) (got string, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if uid != 0 {
				runtime.LockOSThread()
				if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
					err = e
					return
				}
			}
			var c net.Conn
			if c, err = net.Dial("unix", path); err != nil {
				return
			}
			defer c.Close()
			text, _ := io.ReadAll(c)
			got = string(text)
		}()
		<-done
		return got, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	for _, tt := range []struct {
		uid  int
		want string
	}{{other, ""}, {other, ""}, {0, "hello"}} {
		if got, err := greet(tt.uid); err != nil || got != tt.want {
			t.Errorf("user %d was told %q (%v), want %q", tt.uid, got, err, tt.want)
		}
	}
	l.Close()
	<-ended
	said := log.String()
	n := strings.Count(said, "refused another user on the control socket")
	if n != 1 || !strings.Contains(said, "uid=65534") {
		t.Errorf("the log says so %d times, want once, with the uid:\n%s", n, said)
	}
}

// Only root and forewarn's own user may use the control socket.
func TestControlSocketIsForRootAndItsOwnUser(t *testing.T) {
	const service, other = 998, 1000
	for _, tt := range []struct {
		uid, own uint32
		want     bool
	}{{0, service, true}, {service, service, true}, {other, service, false}, {0, 0, true}, {service, 0, false}} {
		if got := mayControl(tt.uid, tt.own); got != tt.want {
			t.Errorf("user %d at the forewarn of user %d: %v, want %v", tt.uid, tt.own, got, tt.want)
		}
	}
}
