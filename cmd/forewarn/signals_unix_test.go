//go:build !windows

package main

import "syscall"

// A stopped process is what a frozen machine looks like from inside.
const (
	sigStop     = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
)
