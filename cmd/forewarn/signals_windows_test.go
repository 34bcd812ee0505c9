package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/windows"
)

// controlPath is a place for the control socket, which is a named pipe, of its own for each directory.
func controlPath(dir string) string {
	return `\\.\pipe\` + strings.NewReplacer(":", "", `\`, "-").Replace(dir)
}

// holdFile opens a file and lets nobody else do so, or nobody rename or delete it.
func holdFile(path string, alone bool) (io.Closer, error) {
	share := uint32(windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE)
	if alone {
		share = 0
	}
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	h, err := windows.CreateFile(name, windows.GENERIC_READ, share, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(h), path), nil
}

// signalProcess does to a process what comes nearest to the signal: Ctrl-C for those that end it, and Windows' own way to
// stop a process and let it go on.
func signalProcess(p *os.Process, name string) error {
	switch name {
	case "TERM", "INT":
		out, err := exec.Command("ctrl-c", strconv.Itoa(p.Pid)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("Ctrl-C: %w: %s", err, out)
		}
		return nil
	case "BREAK":
		return consoleEvent(p, windows.CTRL_BREAK_EVENT)
	case "CLOSE":
		return consoleEvent(p, windows.CTRL_CLOSE_EVENT)
	case "KILL":
		return p.Kill()
	case "STOP":
		return eachThread(p, "NtSuspendProcess")
	case "CONT":
		return eachThread(p, "NtResumeProcess")
	}
	return errors.New("Windows has no signal " + name)
}

// consoleEvent does what a console does in its processes: it starts a thread there that calls their handlers with the
// event. No program can press these keys under wine, where Ctrl-Break ends a thread of each process instead.
func consoleEvent(p *os.Process, event uintptr) error {
	const access = windows.PROCESS_CREATE_THREAD | windows.PROCESS_QUERY_INFORMATION | windows.PROCESS_VM_OPERATION |
		windows.PROCESS_VM_READ | windows.PROCESS_VM_WRITE
	h, err := windows.OpenProcess(access, false, uint32(p.Pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	handlers := windows.NewLazySystemDLL("kernelbase.dll").NewProc("CtrlRoutine") // at this address in every process
	if err := handlers.Find(); err != nil {
		return err
	}
	start := windows.NewLazySystemDLL("kernel32.dll").NewProc("CreateRemoteThread")
	thread, _, err := start.Call(uintptr(h), 0, 0, handlers.Addr(), event, 0, 0)
	if thread == 0 {
		return err
	}
	return windows.CloseHandle(windows.Handle(thread))
}

func eachThread(p *os.Process, call string) error {
	h, err := windows.OpenProcess(windows.PROCESS_SUSPEND_RESUME, false, uint32(p.Pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	if status, _, _ := windows.NewLazySystemDLL("ntdll.dll").NewProc(call).Call(uintptr(h)); status != 0 {
		return fmt.Errorf("%s: %w", call, windows.NTStatus(status))
	}
	return nil
}

// withConsole gives the command a console of its own, where Ctrl-C reaches nobody else.
func withConsole(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_CONSOLE, HideWindow: true}
}

// ctrlC is a program that presses Ctrl-C on the console of the process named by its argument. It has to leave its own.
func ctrlC() {
	kernel := windows.NewLazySystemDLL("kernel32.dll")
	pid, err := strconv.Atoi(os.Args[1])
	kernel.NewProc("FreeConsole").Call()
	if err == nil {
		if done, _, e := kernel.NewProc("AttachConsole").Call(uintptr(pid)); done == 0 {
			err = e
		}
	}
	kernel.NewProc("SetConsoleCtrlHandler").Call(0, 1) // it presses the keys, and stays
	if err == nil {
		err = windows.GenerateConsoleCtrlEvent(windows.CTRL_C_EVENT, 0)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
