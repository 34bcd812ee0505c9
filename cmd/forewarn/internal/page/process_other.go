//go:build !linux && !windows

package page

import "syscall"

// readProcessUse reads the resource usage that every Unix reports.
func readProcessUse() (u processUse) {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil {
		u.cpu = float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	}
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		u.maxFiles = float64(limit.Cur)
	}
	return u
}
