//go:build !windows

package wording

// TryElevated is what helps whoever may not.
const TryElevated = "try sudo"
