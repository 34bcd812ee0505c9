package settings

import (
	"cmp"
	"path"
)

// Builtin is used when there is no settings file: the defaults, with one sink that writes to standard output.
const Builtin = `sinks: [{name: stdout, file: {path: "-"}}]`

// Defaults are the default paths.
type Defaults struct {
	Settings string // the settings file; it need not exist
	State    string // the directory of the outbox
}

// SystemDefaults returns the default paths for a user of an operating system.
func SystemDefaults(goos string, euid int, getenv func(string) string) Defaults {
	return Defaults{Settings: DefaultPath(goos, getenv), State: DefaultState(goos, euid, getenv)}
}

// DefaultPath returns the path of the settings file when none is named.
func DefaultPath(goos string, getenv func(string) string) string {
	if goos == "windows" {
		return programData(getenv) + `\forewarn\forewarn.yaml`
	}
	return "/etc/forewarn/forewarn.yaml"
}

// programData returns the directory in which Windows programs store data for all users.
func programData(getenv func(string) string) string {
	return cmp.Or(getenv("ProgramData"), `C:\ProgramData`)
}

// DefaultState returns the state directory: the system's for root, the user's own for other users.
func DefaultState(goos string, euid int, getenv func(string) string) string {
	dir, home := getenv("XDG_STATE_HOME"), getenv("HOME")
	switch {
	case goos == "windows":
		return programData(getenv) + `\forewarn`
	case euid != 0 && path.IsAbs(dir):
		return path.Join(dir, "forewarn")
	case euid != 0 && path.IsAbs(home):
		return path.Join(home, ".local", "state", "forewarn")
	}
	return "/var/lib/forewarn"
}
