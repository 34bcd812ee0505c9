package templates

import (
	"embed"
	"path"
	"strings"
)

//go:embed bodies/*.json
var bodies embed.FS

// Body is the ready-made body of that name, a template, and its content type; ok is false for a name that is none.
func Body(name string) (text, contentType string, ok bool) {
	file, err := bodies.ReadFile(path.Join("bodies", name+".json"))
	return string(file), "application/json", err == nil
}

// BodyNames are the names of the ready-made bodies, sorted.
func BodyNames() []string {
	files, err := bodies.ReadDir("bodies")
	if err != nil {
		panic(err) // they are embedded
	}
	var all []string
	for _, f := range files {
		all = append(all, strings.TrimSuffix(f.Name(), ".json"))
	}
	return all
}
