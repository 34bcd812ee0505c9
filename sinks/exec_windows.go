package sinks

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strings"
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

// startApart is how a command starts something that is to outlive it.
const startApart = "as a service or a scheduled task"

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
	handle  windows.Handle // of the process; 0 if it could not be opened

	mu  sync.Mutex
	job windows.Handle // 0 if it could not be made, or is closed
}

func newProcessGroup(p *os.Process, _ uint64) *processGroup {
	g := &processGroup{process: p}
	const rights = windows.PROCESS_SET_QUOTA | windows.PROCESS_TERMINATE | windows.SYNCHRONIZE
	var err error
	g.handle, err = windows.OpenProcess(rights, false, uint32(p.Pid))
	if err != nil {
		g.handle = 0
		return g
	}
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
		err = windows.AssignProcessToJobObject(job, g.handle)
	}
	if err != nil {
		windows.CloseHandle(job)
		return g
	}
	g.job = job
	return g
}

// terminate reports whether the program is still running. Windows has no signal that asks it to end: it has the grace to
// end by itself.
func (g *processGroup) terminate() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.handle == 0 {
		return true
	}
	event, err := windows.WaitForSingleObject(g.handle, 0)
	return err != nil || event != windows.WAIT_OBJECT_0
}

func (g *processGroup) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job == 0 || windows.TerminateJobObject(g.job, 1) != nil {
		g.process.Kill()
	}
}

// awaitEnd waits until the program has ended. It reports whether it has waited.
func (g *processGroup) awaitEnd() bool {
	if g.handle == 0 {
		return false
	}
	_, err := windows.WaitForSingleObject(g.handle, windows.INFINITE)
	return err == nil
}

// consoleHost is what Windows itself starts beside a program that has a console, and ends a moment after it.
const consoleHost = "conhost.exe"

// rest returns what the program, which has ended, has left running: the processes of its job.
func (g *processGroup) rest() []leftover {
	var list struct { // JOBOBJECT_BASIC_PROCESS_ID_LIST
		assigned, listed uint32
		ids              [256]uintptr
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job == 0 { // for Windows, that is the bridge's own job
		return nil
	}
	err := windows.QueryInformationJobObject(g.job, windows.JobObjectBasicProcessIdList,
		uintptr(unsafe.Pointer(&list)), uint32(unsafe.Sizeof(list)), nil)
	if err != nil && !errors.Is(err, windows.ERROR_MORE_DATA) {
		return nil
	}
	var all []leftover
	for _, id := range list.ids[:min(int(list.listed), len(list.ids))] {
		name := programOf(uint32(id))
		if int(id) != g.process.Pid && !strings.EqualFold(name, consoleHost) {
			all = append(all, leftover{pid: int(id), name: name})
		}
	}
	return all
}

// programOf returns the name of the program that a process runs, ? if it can't be found out.
func programOf(pid uint32) string {
	process, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, pid)
	if err != nil {
		return "?"
	}
	defer windows.CloseHandle(process)
	path := make([]uint16, windows.MAX_LONG_PATH)
	size := uint32(len(path))
	if err := windows.QueryFullProcessImageName(process, 0, &path[0], &size); err != nil {
		return "?"
	}
	return filepath.Base(windows.UTF16ToString(path[:size]))
}

// killRest kills processes that rest has returned, with all that are in the job by now.
func (g *processGroup) killRest([]leftover) { g.kill() }

// close ends the job, which kills everything that the program has left running.
func (g *processGroup) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.job != 0 {
		windows.CloseHandle(g.job)
		g.job = 0
	}
	if g.handle != 0 {
		windows.CloseHandle(g.handle)
		g.handle = 0
	}
}
