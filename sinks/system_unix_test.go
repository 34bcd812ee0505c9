//go:build unix

package sinks

// What the system says and has.
const (
	wasEnded    = "signal: "
	someProgram = "/bin/true"
)

// noUDP is about Windows.
func noUDP(error) bool { return false }

// underWine is about Windows.
func underWine() bool { return false }

// baseNames are the variables of this machine that every command sees.
func baseNames() []string { return []string{"HOME", "LANG", "LOGNAME", "PATH", "USER"} }

// systemsOwn is about Windows.
func systemsOwn(string) bool { return false }
