package page

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	getProcessMemoryInfo  = windows.NewLazySystemDLL("psapi.dll").NewProc("GetProcessMemoryInfo")
	getProcessHandleCount = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetProcessHandleCount")
)

// memoryCounters is PROCESS_MEMORY_COUNTERS_EX.
type memoryCounters struct {
	size, pageFaults                                 uint32
	peakWorkingSet, workingSet                       uintptr
	peakPagedPool, pagedPool, peakNonPaged, nonPaged uintptr
	pagefileUsage, peakPagefileUsage, privateUsage   uintptr
}

// readProcessUse reads the resource usage that Windows reports.
func readProcessUse() (u processUse) {
	self := windows.CurrentProcess()
	var created, ended, kernel, user windows.Filetime
	if windows.GetProcessTimes(self, &created, &ended, &kernel, &user) == nil {
		u.cpu = ticks(kernel) + ticks(user)
	}
	var m memoryCounters
	m.size = uint32(unsafe.Sizeof(m))
	if ok, _, _ := getProcessMemoryInfo.Call(uintptr(self), uintptr(unsafe.Pointer(&m)), uintptr(m.size)); ok == 1 {
		u.virtual, u.resident = float64(m.privateUsage), float64(m.workingSet)
	}
	var handles uint32
	if ok, _, _ := getProcessHandleCount.Call(uintptr(self), uintptr(unsafe.Pointer(&handles))); ok == 1 {
		u.files, u.maxFiles = float64(handles), 16<<20 // the limit of every Windows process
	}
	return u
}

// ticks converts a duration in units of 100 ns to seconds.
func ticks(t windows.Filetime) float64 {
	return float64(uint64(t.HighDateTime)<<32+uint64(t.LowDateTime)) / 1e7
}
