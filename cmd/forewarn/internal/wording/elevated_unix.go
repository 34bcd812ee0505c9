//go:build !windows

package wording

const (
	// TryElevated is the remedy for missing rights.
	TryElevated = "try sudo"
	// Sudo stands before a command that needs rights.
	Sudo = "sudo "
)
