package settings

import "strings"

// placeKeys are the settings that say where a running forewarn is.
var placeKeys = []string{"state", "control", "listen"}

// Salvage reads settings that are wrong as far as they say where a running forewarn is: each line of one of placeKeys
// counts if it is right by itself, and otherwise the default does. wrong is what is wrong with them.
func (l Loader) Salvage(path string, wrong error) (*Settings, error) {
	path, data, err := l.read(path)
	if err != nil {
		return nil, wrong
	}
	l.Kinds = nil
	text := Builtin + "\n"
	seen := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		for _, key := range placeKeys {
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
	s, err := l.Parse("", []byte(text))
	if err != nil {
		return nil, wrong
	}
	s.Path, s.Hash, s.Wrong = path, "", wrong
	return s, nil
}
