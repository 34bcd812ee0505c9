//go:build !windows

package main

// programsHere returns settings as they are: the paths of their programs are those of this system.
func programsHere(settings string) string { return settings }

// tellsSecrets is the command of an exec sink that prints its variables T and U, and fails.
const tellsSecrets = `[/bin/sh, -c, 'echo "$T $U"; exit 1']`
