//go:build !windows

package main

import (
	"os"

	"golang.org/x/term"
)

// obeysControls reports whether f is a terminal that obeys control sequences.
func obeysControls(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
