package control

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"forewarn/cmd/forewarn/internal/service"
)

// The pipe belongs to the account that runs forewarn. Only that account, Windows and administrators can connect.
func TestPipeIsForAdministratorsAndItsOwnAccount(t *testing.T) {
	own, err := ownSID()
	if err != nil {
		t.Fatal(err)
	}
	at := Location{State: t.TempDir()}
	l, err := Listen(at.Sockets()[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	c, err := dial(t.Context(), at.Sockets()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer func() { (<-accepted).Close() }()
	d, err := windows.GetSecurityInfo(c.(*pipeConn).handle, windows.SE_KERNEL_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	owner, _, err := d.Owner()
	if err != nil || owner.String() != own {
		t.Errorf("the pipe belongs to %v (%v), want %s", owner, err, own)
	}
	list, _, err := d.DACL()
	if err != nil {
		t.Fatal(err)
	}
	let := map[string]bool{}
	for i := range uint32(list.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &ace); err != nil {
			t.Fatal(err)
		}
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE {
			t.Errorf("entry %d is of type %d, want only entries that allow", i, ace.Header.AceType)
		}
		let[(*windows.SID)(unsafe.Pointer(&ace.SidStart)).String()] = true
	}
	if want := map[string]bool{service.SIDSystem: true, service.SIDAdministrators: true, own: true}; !maps.Equal(let, want) {
		t.Errorf("let in are %v, want %v", let, want)
	}
}

// Commands trust only a pipe of Windows, administrators, the service or their own user.
func TestPipeOfAnotherUserIsNotTrusted(t *testing.T) {
	const alice, mallory, localService = "S-1-5-21-1-2-3-1001", "S-1-5-21-1-2-3-1002", "S-1-5-19"
	for owner, want := range map[string]bool{
		service.SIDSystem: true, service.SIDAdministrators: true, service.SID(): true, alice: true,
		mallory: false, localService: false, "": false,
	} {
		if got := mayServe(owner, alice); got != want {
			t.Errorf("alice trusts a pipe of %q: %v, want %v", owner, got, want)
		}
	}
}

// Nothing is sent to a pipe that another user created with forewarn's name. The error names the owner.
func TestPipeOfAnotherUserReceivesNothing(t *testing.T) {
	at := Location{State: t.TempDir()}
	path := at.Sockets()[0]
	d, err := windows.SecurityDescriptorFromString("O:LSD:(A;;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	l, err := listenPipe(path, d)
	if errors.Is(err, windows.ERROR_INVALID_OWNER) || errors.Is(err, windows.ERROR_PRIVILEGE_NOT_HELD) {
		t.Skip("this user may not make a pipe in another one's name:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan int, 1)
	go func() {
		defer close(heard)
		c, err := l.Accept()
		if err != nil {
			return
		}
		n, _ := c.Read(make([]byte, 1))
		heard <- n
	}()
	c := Client{Location: at}
	_, err = c.Status(t.Context())
	var nobody *UnavailableError
	if !errors.As(err, &nobody) || errors.Is(err, ErrNotRunning) ||
		!strings.Contains(err.Error(), path+": this pipe belongs to ") || !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("status = %v, want whose the pipe is", err)
	}
	select {
	case n := <-heard:
		if n != 0 {
			t.Errorf("it heard %d bytes", n)
		}
	case <-time.After(10 * time.Second): // the client came and went before Accept
	}
}

// A pipe's name cannot be used twice, so neither another user nor a second forewarn can answer instead of the first.
func TestPipeIsNotShared(t *testing.T) {
	at := Location{State: t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	l, err := Listen(at.Sockets()[0], log)
	if err != nil {
		t.Fatal(err)
	}
	want := at.Sockets()[0] + ": another program has a pipe of this name"
	if second, err := Listen(at.Sockets()[0], log); err == nil || err.Error() != want {
		t.Errorf("a second one gives %v, %v; want %q", second, err, want)
	}
	l.Close()
	again, err := Listen(at.Sockets()[0], log)
	if err != nil {
		t.Fatal("once the first is gone:", err)
	}
	again.Close()
}

// The default state directory gives the plain name. Each other one has its own, however its path is written.
func TestPipeIsNamedAfterTheState(t *testing.T) {
	name := func(state, control string) string {
		at := Location{State: state, DefaultState: `C:\ProgramData\forewarn`, Control: control}
		return at.Sockets()[0]
	}
	for _, state := range []string{`C:\ProgramData\forewarn`, `c:\programdata\Forewarn\`, `C:/ProgramData/./forewarn`} {
		if got := name(state, ""); got != `\\.\pipe\forewarn` {
			t.Errorf("state %s has %s", state, got)
		}
	}
	d := name(`D:\data`, "")
	if d != name(`d:/DATA/`, "") || !strings.HasPrefix(d, `\\.\pipe\forewarn-`) || d == name(`D:\data2`, "") {
		t.Errorf(`state D:\data has %s, d:/DATA/ %s, D:\data2 %s`, d, name(`d:/DATA/`, ""), name(`D:\data2`, ""))
	}
	relay := Location{State: `C:\ProgramData\forewarn`, DefaultState: `C:\ProgramData\forewarn`, Relay: true}
	if got := relay.Sockets()[0]; got != `\\.\pipe\forewarn-relay` {
		t.Errorf("a relay has %s", got)
	}
	if got := name(`D:\data`, `\\.\pipe\mine`); got != `\\.\pipe\mine` {
		t.Errorf("with the key control it is %s", got)
	}
}

// Each client gets its own instance, also if many connect at once and some leave before they are served. Closing the
// listener ends Accept.
func TestPipeServesManyClients(t *testing.T) {
	at := Location{State: t.TempDir()}
	l, err := Listen(at.Sockets()[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			go func() { // an echo, until the client has gone
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	var clients sync.WaitGroup
	for i := range 100 {
		clients.Go(func() {
			c, err := dial(t.Context(), at.Sockets()[0])
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if i%3 == 0 {
				return
			}
			sent, got := bytes.Repeat([]byte{byte(i)}, 3*pipeBuffer), make([]byte, 3*pipeBuffer)
			go c.Write(sent)
			if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("client %d read %d bytes, %v", i, n, err)
			}
		})
	}
	clients.Wait()
	c, err := dial(t.Context(), at.Sockets()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	var slow net.Error
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.As(err, &slow) || !slow.Timeout() {
		t.Errorf("a read with a deadline gives %d, %v; want a timeout", n, err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener ended with %v, want %v", err, net.ErrClosed)
	}
}

// Only a named pipe of this machine is accepted, for the server and for clients.
func TestControlIsALocalPipe(t *testing.T) {
	for _, path := range []string{`C:\control.sock`, `\\server\pipe\forewarn`, `\\.\pipe\`, `\\.\pipe\a\b`, `control.sock`} {
		at := Location{State: t.TempDir(), Control: path}
		if l, err := Listen(at.Sockets()[0], slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "expected a named pipe") {
			t.Errorf("listen on %s: %v, %v", path, l, err)
		}
		c := Client{Location: at}
		if _, err := c.Status(t.Context()); !errors.Is(err, ErrNotRunning) {
			t.Errorf("ask %s: %v", path, err)
		}
	}
}
