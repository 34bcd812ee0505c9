package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// parseFiles writes the files and parses forewarn.yaml, which is one of them.
func parseFiles(t *testing.T, files map[string]string) (*Settings, string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	main := filepath.Join(dir, "forewarn.yaml")
	s, err := testLoader().Parse(main, []byte(files["forewarn.yaml"]))
	return s, dir, err
}

// A team's file beside the base adds its sinks and rules, whose paths are relative to that file.
func TestIncludedFilesAddSinksAndRules(t *testing.T) {
	files := map[string]string{
		"forewarn.yaml": `
include: conf.d/*.yaml
sinks:
  - {name: audit, file: {path: audit.jsonl}}
`,
		"conf.d/10-web.yaml": `
sinks: [{name: web, file: {path: web.jsonl}, fallback: {sink: audit}}]
approve: {only: {types: Reboot}, after: [audit, web]}
`,
		"conf.d/20-db.yaml": `sinks: [{name: db, file: {path: db.jsonl}}]`,
	}
	s, dir, err := parseFiles(t, files)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Names, " "); got != "audit web db" || len(s.Routes) != 3 || len(s.Rules) != 1 {
		t.Errorf("the sinks are %q with %d routes and %d rules, want audit, web and db with one rule", got, len(s.Routes), len(s.Rules))
	}
	if len(s.Files) != 3 || s.Files[1].Path != filepath.Join(dir, "conf.d", "10-web.yaml") {
		t.Errorf("the files are %v, want all three", s.Files)
	}
	before := s.Hash
	files["conf.d/20-db.yaml"] = `sinks: [{name: other, file: {path: db.jsonl}}]`
	if s, _, err := parseFiles(t, files); err != nil || s.Hash == before {
		t.Errorf("another included sink leaves the hash %s, %v", s.Hash, err)
	}
	delete(files, "conf.d/10-web.yaml")
	delete(files, "conf.d/20-db.yaml")
	if s, _, err := parseFiles(t, files); err != nil || len(s.Routes) != 1 {
		t.Errorf("a pattern that no file has yet gives %v, want the sink of the base", err)
	}
}

// Each mistake is named with the file that it is in, all of them in one run.
func TestMistakesInIncludedFilesNameTheFile(t *testing.T) {
	_, dir, err := parseFiles(t, map[string]string{
		"forewarn.yaml": `
include: [conf.d/*.yaml, gone.yaml]
sinks:
  - {name: audit, file: {path: audit.jsonl}}
`,
		"conf.d/1.yaml": "listen: \"\"\nsinks:\n  - {name: audit, file: {path: x.jsonl}}\n",
		"conf.d/2.yaml": "sinks: [",
		"conf.d/3.yaml": "sinks:\n  - {name: web, fiel: {path: x.jsonl}}\napprove: {only: {types: Rebot}}\n",
	})
	if err == nil {
		t.Fatal("the files are taken, want errors")
	}
	at := func(file, rest string) string { return filepath.Join(dir, filepath.FromSlash(file)) + rest }
	for _, want := range []string{
		at("forewarn.yaml", ":2:26: include: no such file"),
		at("conf.d/1.yaml", `:1:1: unknown key "listen"; expected one of sinks, approve`),
		at("conf.d/1.yaml", ":3:12: name: taken by the sink in line 4 of "+at("forewarn.yaml", "")),
		at("conf.d/2.yaml", ":1:"),
		at("conf.d/3.yaml", ":2:17: "),
		at("conf.d/3.yaml", `:3:25: only.types: "Rebot" is not valid`),
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the errors lack %q:\n%v", want, err)
		}
	}
}
