package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseFiles takes out of this process what it has mapped of files and only reads: the program itself, most of which
// the start alone needed, and the outbox. What is used again comes back from the page cache, without the disk; and what
// is not, the kernel can take, which spares a program's pages as long as they are mapped.
func releaseFiles() {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return // a sandbox without it: what is mapped stays so
	}
	for _, m := range unwritten(string(smaps)) {
		unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

// A mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// unwritten are the mappings of files that may only be read and have no page of the process's own, as a loader makes
// where it fills in addresses, and a debugger where it sets a breakpoint: those would be lost. smaps is what
// proc_pid_smaps(5) describes.
func unwritten(smaps string) (list []mapping) {
	var m mapping
	var file, added bool
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "Anonymous:":
			if added = file && f[1] == "0"; added {
				list = append(list, m)
			}
		case f[0] == "Swap:":
			if added && f[1] != "0" { // its own pages are on the disk
				list, added = list[:len(list)-1], false
			}
		case !strings.HasSuffix(f[0], ":"): // the next mapping: addresses, permissions, offset, device, inode, path
			_, err := fmt.Sscanf(f[0], "%x-%x", &m.start, &m.end)
			file = err == nil && len(f) > 5 && strings.HasPrefix(f[5], "/") && !strings.Contains(f[1], "w")
			added = false
		}
	}
	return list
}
