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

// startErrors are those that stay until somebody acts, beside what every system has: no directory, no program, a name
// that cannot be one, or one that is too long.
var startErrors = []error{
	windows.ERROR_DIRECTORY, windows.ERROR_BAD_EXE_FORMAT, windows.ERROR_INVALID_NAME, windows.ERROR_FILENAME_EXCED_RANGE,
}

// An account is whom a program runs as.
type account struct{ name, home string }

// findAccount looks up the user that the bridge runs as; there is no other choice.
func findAccount(name string) (account, error) {
	if name != "" {
		return account{}, errors.New("is not possible on Windows; leave it out")
	}
	u, err := user.Current()
	if err != nil { // it need not have a name
		return account{}, nil
	}
	return account{name: u.Username, home: u.HomeDir}, nil
}

func (account) mayRun(path string) error {
	_, err := os.Stat(path)
	return err
}

// inherited are the variables without which programs do not run on Windows.
var inherited = []string{
	"ComSpec", "NUMBER_OF_PROCESSORS", "OS", "PATHEXT", "ProgramData", "ProgramFiles", "SystemDrive", "SystemRoot",
	"TEMP", "TMP", "windir",
}

// baseVariables are those that every program sees.
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

// A processGroup is a program and all that it starts, held together by a job, which also ends with the bridge.
type processGroup struct {
	process *os.Process

	mu  sync.Mutex
	job windows.Handle // 0 when there is none, or none any more
}

func newProcessGroup(p *os.Process) *processGroup {
	f := &processGroup{process: p}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return f
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
		return f
	}
	f.job = job
	return f
}

func assign(job windows.Handle, pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(process)
	return windows.AssignProcessToJobObject(job, process)
}

// terminate does nothing: no signal asks a program on Windows to end.
func (f *processGroup) terminate() {}

func (f *processGroup) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.job == 0 || windows.TerminateJobObject(f.job, 1) != nil {
		f.process.Kill()
	}
}

func (f *processGroup) waitThenKill() {}

// close ends the job, and with it what the program has left running.
func (f *processGroup) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.job != 0 {
		windows.CloseHandle(f.job)
		f.job = 0
	}
}
