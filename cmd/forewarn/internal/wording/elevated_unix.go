//go:build !windows

package wording

// TryElevated is the remedy for missing rights.
const TryElevated = "try sudo"
