//go:build unix

package sinks

// What the system says and has.
const (
	wasEnded    = "signal: "
	someProgram = "/bin/true"
)

// noUDP returns about Windows.
func noUDP(error) bool { return false }

// underWine returns about Windows.
func underWine() bool { return false }

// baseNames returns the variables of this machine that every command sees.
func baseNames() []string { return []string{"HOME", "LANG", "LOGNAME", "PATH", "USER"} }

// systemsOwn returns about Windows.
func systemsOwn(string) bool { return false }
