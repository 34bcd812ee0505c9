package control

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// pipeBuffer is the size of a pipe's buffer in each direction, in bytes.
const pipeBuffer = 64 << 10

// A pipeListener makes one instance of a named pipe for each client. At least one exists until the listener is closed,
// so that no other program can take the name.
//
// go-winio, the usual package for pipes, is not used: forewarn has golang.org/x/sys/windows anyway, and os.File reads
// and writes overlapped handles with deadlines since Go 1.25, which is most of what go-winio adds. Under wine 10 its
// version 0.6.4 leaves one of twenty requests that come together without an answer.
type pipeListener struct {
	path    string
	closing sync.Once
	closed  windows.Handle // an event; Close sets it

	mu      sync.Mutex         // held by Accept while it waits; guards the fields below
	next    windows.Handle     // the instance for the next client; 0 once the listener is closed
	waiting windows.Overlapped // the wait for that client
}

// listenPipe makes a pipe with the security descriptor. It is an error if a pipe of that name exists.
func listenPipe(path string, d *windows.SECURITY_DESCRIPTOR) (*pipeListener, error) {
	first, err := newInstance(path, windows.FILE_CREATE, d)
	if err != nil {
		return nil, err
	}
	l := &pipeListener{path: path, next: first}
	l.closed, err = windows.CreateEvent(nil, 1, 0, nil)
	if err == nil {
		l.waiting.HEvent, err = windows.CreateEvent(nil, 1, 0, nil)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// newInstance makes an instance of a pipe. With FILE_CREATE it must be the first; with FILE_OPEN the pipe must exist,
// and keeps its security descriptor.
func newInstance(path string, disposition uint32, d *windows.SECURITY_DESCRIPTOR) (instance windows.Handle, err error) {
	name, err := windows.NewNTUnicodeString(`\??\pipe\` + strings.TrimPrefix(path, pipes))
	if err != nil {
		return 0, err
	}
	attributes := &windows.OBJECT_ATTRIBUTES{
		ObjectName: name, Attributes: windows.OBJ_CASE_INSENSITIVE, SecurityDescriptor: d,
	}
	attributes.Length = uint32(unsafe.Sizeof(*attributes))
	patience := int64(-50 * time.Millisecond / 100) // for WaitNamedPipe: relative, in units of 100 ns
	const access = windows.GENERIC_READ | windows.GENERIC_WRITE | windows.SYNCHRONIZE
	err = windows.NtCreateNamedPipeFile(&instance, access, attributes,
		&windows.IO_STATUS_BLOCK{}, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE, disposition, 0,
		windows.FILE_PIPE_BYTE_STREAM_TYPE|windows.FILE_PIPE_REJECT_REMOTE_CLIENTS, windows.FILE_PIPE_BYTE_STREAM_MODE,
		windows.FILE_PIPE_QUEUE_OPERATION, windows.PIPE_UNLIMITED_INSTANCES, pipeBuffer, pipeBuffer, &patience)
	var status windows.NTStatus
	if errors.As(err, &status) {
		err = status.Errno()
	}
	return instance, err
}

// Accept waits for a client.
func (l *pipeListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.next == 0 {
			return nil, net.ErrClosed
		}
		connected, err := l.await()
		if err != nil {
			return nil, err
		}
		next, err := newInstance(l.path, windows.FILE_OPEN, nil)
		if err != nil {
			return nil, &net.OpError{Op: "accept", Net: "pipe", Addr: l.Addr(), Err: err}
		}
		client := l.next
		l.next = next
		if connected {
			return newPipeConn(client, l.path), nil
		}
		windows.CloseHandle(client)
	}
}

// await waits until a client opens the next instance. connected is false if the client is gone again.
func (l *pipeListener) await() (connected bool, err error) {
	switch err := windows.ConnectNamedPipe(l.next, &l.waiting); err {
	case nil, windows.ERROR_PIPE_CONNECTED:
		return true, nil
	case windows.ERROR_NO_DATA:
		return false, nil
	case windows.ERROR_IO_PENDING:
	default:
		return false, &net.OpError{Op: "accept", Net: "pipe", Addr: l.Addr(), Err: err}
	}
	which, err := windows.WaitForMultipleObjects([]windows.Handle{l.closed, l.waiting.HEvent}, false, windows.INFINITE)
	if which == windows.WAIT_OBJECT_0 || err != nil {
		_ = windows.CancelIoEx(l.next, &l.waiting)
		err = errors.Join(net.ErrClosed, err)
	}
	var none uint32
	ended := windows.GetOverlappedResult(l.next, &l.waiting, &none, true) // Windows writes to waiting until this returns
	return ended == nil, err
}

// Close ends Accept. Open connections stay open.
func (l *pipeListener) Close() (err error) {
	l.closing.Do(func() {
		_ = windows.SetEvent(l.closed)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, h := range []windows.Handle{l.next, l.closed, l.waiting.HEvent} {
			if h != 0 { // listenPipe may have failed before it was made
				err = errors.Join(err, windows.CloseHandle(h))
			}
		}
		l.next = 0
	})
	return err
}

func (l *pipeListener) Addr() net.Addr { return pipeAddress(l.path) }

// dialPipe opens a pipe, and waits for a free instance until ctx is done. The server may identify the client, but not
// impersonate it.
func dialPipe(ctx context.Context, path string) (*pipeConn, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	for {
		h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, nil, windows.OPEN_EXISTING,
			windows.FILE_FLAG_OVERLAPPED|windows.SECURITY_SQOS_PRESENT|windows.SECURITY_IDENTIFICATION, 0)
		switch {
		case err == nil:
			return newPipeConn(h, path), nil
		case !errors.Is(err, windows.ERROR_PIPE_BUSY):
			return nil, &net.OpError{Op: "dial", Net: "pipe", Addr: pipeAddress(path), Err: err}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A pipeConn is one end of an instance.
type pipeConn struct {
	*os.File
	handle windows.Handle
}

func newPipeConn(h windows.Handle, path string) *pipeConn {
	return &pipeConn{os.NewFile(uintptr(h), path), h}
}

// Read reads from the pipe. A passed deadline is a net.Error, as http.Server expects.
func (c *pipeConn) Read(b []byte) (n int, err error) {
	n, err = c.File.Read(b)
	return n, bare(err)
}

// Write writes all of b to the pipe.
func (c *pipeConn) Write(b []byte) (n int, err error) {
	n, err = c.File.Write(b)
	return n, bare(err)
}

// bare returns an error without the name of the file.
func bare(err error) error {
	var inFile *fs.PathError
	if errors.As(err, &inFile) {
		return inFile.Err
	}
	return err
}

func (c *pipeConn) LocalAddr() net.Addr  { return pipeAddress(c.Name()) }
func (c *pipeConn) RemoteAddr() net.Addr { return pipeAddress(c.Name()) }

// A pipeAddress is the path of a named pipe.
type pipeAddress string

func (pipeAddress) Network() string  { return "pipe" }
func (a pipeAddress) String() string { return string(a) }
