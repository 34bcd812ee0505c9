package wording

const (
	// TryElevated is the remedy for missing rights.
	TryElevated = "try it in a prompt opened with Run as administrator"
	// Sudo stands before a command that needs rights.
	Sudo = ""
)
