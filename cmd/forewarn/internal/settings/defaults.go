package settings

import (
	"cmp"
	"path/filepath"
)

// Builtin is what counts where there is no settings file: every default, and the CloudEvents on standard output.
const Builtin = `sinks: [{name: stdout, file: {path: "-"}}]`

// Defaults are where things are when nothing says otherwise.
type Defaults struct {
	Settings string // the settings file; it need not be there
	State    string // the directory of the outbox
}

// SystemDefaults are those of an operating system for a user of it.
func SystemDefaults(goos string, euid int, getenv func(string) string) Defaults {
	return Defaults{Settings: DefaultPath(goos, getenv), State: DefaultState(goos, euid, getenv)}
}

// DefaultPath is where the settings file is looked for when none is named.
func DefaultPath(goos string, getenv func(string) string) string {
	if goos == "windows" {
		return programData(getenv) + `\forewarn\forewarn.yaml`
	}
	return "/etc/forewarn/forewarn.yaml"
}

// programData is where Windows keeps what programs store for all users.
func programData(getenv func(string) string) string {
	return cmp.Or(getenv("ProgramData"), `C:\ProgramData`)
}

// DefaultState is the directory of the outbox: the system's for root, the user's own for anybody else who has one.
func DefaultState(goos string, euid int, getenv func(string) string) string {
	dir, home := getenv("XDG_STATE_HOME"), getenv("HOME")
	switch {
	case goos == "windows":
		return programData(getenv) + `\forewarn`
	case euid != 0 && filepath.IsAbs(dir):
		return filepath.Join(dir, "forewarn")
	case euid != 0 && filepath.IsAbs(home):
		return filepath.Join(home, ".local", "state", "forewarn")
	}
	return "/var/lib/forewarn"
}
