package main

import "syscall"

// Windows has no such signals; sending these fails.
const (
	sigStop     = syscall.Signal(-1)
	sigContinue = syscall.Signal(-2)
)
