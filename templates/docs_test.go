package templates_test

import (
	"slices"
	"strings"
	"testing"

	"forewarn/templates"
)

// Every function is documented once, with an example that produces the documented result.
func TestEveryFunctionIsExplainedByAnExample(t *testing.T) {
	var explained []string
	for _, d := range templates.FuncDocs {
		explained = append(explained, d.Name)
		parsed, err := templates.Parse(d.Name, d.Example)
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
			continue
		}
		var got strings.Builder
		if err := parsed.Execute(&got, map[string]any{}); err != nil || got.String() != d.Result {
			t.Errorf("%s makes %q, %v; want %q", d.Example, got.String(), err, d.Result)
		}
		if !strings.Contains(d.Example, d.Name) || d.Doc == "" {
			t.Errorf("%s is explained by %q: %q", d.Name, d.Doc, d.Example)
		}
	}
	slices.Sort(explained)
	if want := templates.FuncNames(); !slices.Equal(explained, want) {
		t.Errorf("explained are %q\nthere are     %q", explained, want)
	}
}
