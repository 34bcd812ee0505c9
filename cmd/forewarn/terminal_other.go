//go:build !windows

package main

import (
	"os"

	"golang.org/x/term"
)

// supportsControls reports whether f is a terminal that obeys control sequences.
func supportsControls(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
