package sinks

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/windows"
)

// What the system says and has.
const (
	wasEnded    = "exit status "
	someProgram = "C:/windows/system32/cmd.exe"
)

// noUDP says that an error is wine's, which lacks a control that Go sets on every socket for UDP (SIO_UDP_CONNRESET).
func noUDP(err error) bool { return errors.Is(err, windows.WSAEOPNOTSUPP) }

// underWine reports whether wine takes the place of Windows.
func underWine() bool {
	return windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}

// baseNames returns the variables of this machine that every command sees.
func baseNames() []string { return []string{"PATH", "USERNAME", "USERPROFILE"} }

// systemsOwn reports whether programs need a variable there, or wine adds it.
func systemsOwn(name string) bool {
	return slices.Contains(inherited, name) || strings.HasPrefix(name, "WINE") || name == "PROCESSOR_ARCHITECTURE"
}
