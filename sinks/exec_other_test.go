//go:build !linux

package sinks

const sweeps = false // whether what a command leaves running is ended

func performOnLinux(string, []string) int { return 2 }
