package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of what is mapped only that is released which the file still has as it was mapped: not what may be written, not what
// was written while it could be, in memory or swapped out, and nothing but files.
func TestOnlyWhatTheFileHasIsReleased(t *testing.T) {
	var smaps strings.Builder
	part := func(addresses, permissions, path string, anonymous, swap int) {
		fmt.Fprintf(&smaps, "%s %s 00000000 fe:00 10543635     %s\n", addresses, permissions, path)
		fmt.Fprintf(&smaps, "Size:  64 kB\nRss:  64 kB\nAnonymous:  %d kB\nSwap:   %d kB\nVmFlags: rd ex mr\n", anonymous, swap)
	}
	part("00400000-00500000", "r-xp", "/usr/bin/forewarn", 0, 0)
	part("00500000-00600000", "r--p", "/usr/bin/forewarn (deleted)", 0, 0)
	part("00600000-00700000", "rw-p", "/usr/bin/forewarn", 0, 0)
	part("00700000-00800000", "r--p", "/usr/bin/forewarn", 4, 0) // relocated
	part("00800000-00900000", "r-xp", "/usr/bin/forewarn", 0, 4) // so too, and swapped out
	part("c000000000-c000400000", "rw-p", "", 0, 0)
	part("c000400000-c000800000", "---p", "", 0, 0)
	part("7ffd00000000-7ffd00001000", "r-xp", "[vdso]", 0, 0)
	part("7f0000000000-7f0000001000", "r--s", "/var/lib/forewarn/outbox.db", 0, 0)
	smaps.WriteString("\nsomething else\n7f0000002000-7f0000003000 r--s 0 fe:00 1 /no/figures/follow\n")
	want := []mapping{{0x400000, 0x500000}, {0x500000, 0x600000}, {0x7f0000000000, 0x7f0000001000}}
	if got := unwritten(smaps.String()); !slices.Equal(got, want) {
		t.Errorf("released is %x, want %x", got, want)
	}
}

// What is released reads as before, and what a process wrote into a mapping that it can no longer write stays.
func TestReleasedFilesReadAsBefore(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	page := os.Getpagesize()
	if err := os.WriteFile(name, bytes.Repeat([]byte("x"), 4*page), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped := func(protection int) []byte {
		m, err := unix.Mmap(int(f.Fd()), 0, 4*page, protection, unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(m) })
		return m
	}
	clean, written := mapped(unix.PROT_READ), mapped(unix.PROT_READ|unix.PROT_WRITE)
	written[page] = 'y'
	if err := unix.Mprotect(written, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	resident := func(m []byte) (n int) {
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Skip(err)
		}
		_, of, found := strings.Cut(string(smaps), fmt.Sprintf("%x-", uintptr(unsafe.Pointer(&m[0]))))
		if !found {
			t.Fatal("the mapping is not there")
		}
		_, of, _ = strings.Cut(of, "Rss:")
		fmt.Sscan(of, &n)
		return n
	}
	for _, m := range [][]byte{clean, written} {
		if bytes.Count(m, []byte("x")) < 4*page-1 || resident(m) == 0 {
			t.Fatal("the file was not mapped")
		}
	}
	releaseFiles()
	if n := resident(clean); n != 0 {
		t.Errorf("%d kB of the file are mapped still, want none", n)
	}
	if n := bytes.Count(clean, []byte("x")); n != 4*page {
		t.Errorf("%d bytes read as before, want %d", n, 4*page)
	}
	if written[page] != 'y' {
		t.Error("what was written is gone")
	}
}
