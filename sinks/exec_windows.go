package sinks

import (
	"errors"
	"os"
	"os/user"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// startErrors are the errors of Windows, besides those that every system has, that last until somebody acts: not a
// directory, not a program, a name that is invalid or too long.
var startErrors = []error{
	windows.ERROR_DIRECTORY, windows.ERROR_BAD_EXE_FORMAT, windows.ERROR_INVALID_NAME, windows.ERROR_FILENAME_EXCED_RANGE,
}

// An account is the user that a program runs as.
type account struct{ name, home string }

// findAccount looks up the user that the bridge runs as. It refuses a name.
func findAccount(name string) (account, error) {
	if name != "" {
		return account{}, errors.New("is not possible on Windows; leave it out")
	}
	u, err := user.Current()
	if err != nil { // an account without a name
		return account{}, nil
	}
	return account{name: u.Username, home: u.HomeDir}, nil
}

// mayRun returns an error unless there is something at path. It checks no rights.
func (account) mayRun(path string) error {
	_, err := os.Stat(path)
	return err
}

// inherited are the variables that programs on Windows need to run at all.
var inherited = []string{
	"ComSpec", "NUMBER_OF_PROCESSORS", "OS", "PATHEXT", "ProgramData", "ProgramFiles", "SystemDrive", "SystemRoot",
	"TEMP", "TMP", "windir",
}

// baseVariables returns the variables that every program gets.
func baseVariables(a account, getenv func(string) string) []variable {
	root := getenv("SystemRoot")
	all := []variable{{"PATH", root + `\System32;` + root + `;` + root + `\System32\WindowsPowerShell\v1.0`}}
	for _, name := range inherited {
		if value := getenv(name); value != "" {
			all = append(all, variable{name, value})
		}
	}
	if a.name != "" {
		all = append(all, variable{"USERPROFILE", a.home}, variable{"USERNAME", a.name})
	}
	return all
}

func processAttributes(account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

// A processGroup is a program and everything that it starts. They are in a job object, which Windows ends with the
// bridge.
type processGroup struct {
	process *os.Process

	mu  sync.Mutex
	job windows.Handle // 0 if it could not be made, or is closed
}

func newProcessGroup(p *os.Process) *processGroup {
	g := &processGroup{process: p}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return g
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	if err == nil {
		err = assign(job, p.Pid)
	}
	if err != nil {
		windows.CloseHandle(job)
		return g
	}
	g.job = job
	return g
}

// assign adds a process to a job.
func assign(job windows.Handle, pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(process)
	return windows.AssignProcessToJobObject(job, process)
}

// terminate does nothing: Windows has no signal that asks a program to end.
func (g *processGroup) terminate() {}

func (g *processGroup) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job == 0 || windows.TerminateJobObject(g.job, 1) != nil {
		g.process.Kill()
	}
}

// waitThenKill does nothing: close kills the rest.
func (g *processGroup) waitThenKill() {}

// close ends the job, which kills everything that the program has left running.
func (g *processGroup) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job != 0 {
		windows.CloseHandle(g.job)
		g.job = 0
	}
}
