package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// obeysControls says whether f is a console that obeys control sequences, and asks it to: not every one does unasked.
func obeysControls(f *os.File) bool {
	console := windows.Handle(f.Fd())
	var mode uint32
	if err := windows.GetConsoleMode(console, &mode); err != nil {
		return false
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
