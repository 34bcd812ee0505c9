package settings

import (
	"slices"
	"strings"
)

// locationKeys are the settings that say where to find the running forewarn.
var locationKeys = []string{"state", "control", "listen"}

// vmKeys returns the settings that no relay has. In a file with one of them, nats at the beginning of a line behind sinks
// is taken for the kind of a sink that is indented wrongly.
func vmKeys() []string { return append(keysWith("relay"), "approve") }

// Salvage reads a broken settings file far enough to find the running forewarn. It uses each line with one of
// locationKeys that is valid by itself, and defaults for everything else. cause is the error of the file; Salvage
// returns it when the file cannot be read, and otherwise puts it into Settings.Broken.
func (l Loader) Salvage(path string, cause error) (*Settings, error) {
	path, data, err := l.read(path)
	if err != nil {
		return nil, cause
	}
	l.Kinds = nil
	text := Builtin + "\n"
	seen := make(map[string]bool)
	sinks, relay, slipped, vm := false, false, false, false
	for line := range strings.Lines(string(data)) {
		switch {
		case strings.HasPrefix(line, "sinks:"):
			sinks = true
		case strings.HasPrefix(line, "nats:"):
			relay, slipped = true, sinks
		}
		vm = vm || slices.ContainsFunc(vmKeys(), func(key string) bool { return strings.HasPrefix(line, key+":") })
		for _, key := range locationKeys {
			if !strings.HasPrefix(line, key+":") || seen[key] {
				continue
			}
			line = strings.TrimRight(line, "\r\n") + "\n"
			if _, err := l.Parse("", []byte(Builtin+"\n"+line)); err == nil {
				text += line
				seen[key] = true
			}
		}
	}
	s, err := l.Parse(path, []byte(text))
	if err != nil {
		return nil, cause
	}
	s.Path, s.Hash, s.Broken = path, "", cause
	if relay && !(slipped && vm) { // or the forewarn of the VM would be asked
		s.Relay = &RelaySettings{}
	}
	return s, nil
}
