package service

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unitDirectories returns the directories of systemd's units, first those that win; nil where systemd doesn't run.
func unitDirectories() []string {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	return []string{
		"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
		"/lib/systemd/system",
	}
}

// unitCommand returns the command that starts the unit in one of these directories whose forewarn has its settings at
// config. Without --config they are at byDefault. It returns "" if there is no such unit.
func unitCommand(directories []string, config, byDefault string) string {
	var seen []string
	for _, dir := range directories {
		files, _ := filepath.Glob(filepath.Join(dir, "forewarn*.service")) // the pattern is right
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".service")
			if slices.Contains(seen, name) {
				continue // the one before hides it
			}
			seen = append(seen, name)
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			if runsWith(string(text), config, byDefault) {
				return "sudo systemctl start " + name
			}
		}
	}
	return ""
}

// runsWith reports whether a unit runs forewarn with its settings at config.
func runsWith(unit, config, byDefault string) bool {
	for line := range strings.Lines(unit) {
		args := strings.Fields(strings.TrimPrefix(line, "ExecStart="))
		if !strings.HasPrefix(line, "ExecStart=") || len(args) < 2 || args[1] != "run" && args[1] != "relay" {
			continue
		}
		path := byDefault
		for i, a := range args {
			if a == "--config" && i+1 < len(args) {
				path = args[i+1]
			} else if rest, ok := strings.CutPrefix(a, "--config="); ok {
				path = rest
			}
		}
		if path == config {
			return true
		}
	}
	return false
}
