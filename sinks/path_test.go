package sinks

import (
	"os"
	"path/filepath"
	"testing"
)

// A relative path is below the directory, and what is no relative path stays.
func TestPathsAreRelativeToADirectory(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"": "", "-": "-", dir: dir,
		"audit.jsonl": filepath.Join(dir, "audit.jsonl"), "./a/../b": filepath.Join(dir, "b"),
		"audit/": filepath.Join(dir, "audit") + string(filepath.Separator),
	} {
		p := Path(text)
		if p.RelativeTo(dir); string(p) != want {
			t.Errorf("%q is %q, want %q", text, p, want)
		}
	}
}

// A bare name is looked up in PATH; only a program with a directory is relative. Arguments stay as they are.
func TestAProgramIsRelativeOnlyWithADirectory(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"": "", "systemctl": "systemctl", filepath.Join(dir, "drain.sh"): filepath.Join(dir, "drain.sh"),
		"./drain.sh": filepath.Join(dir, "drain.sh"), "bin/drain.sh": filepath.Join(dir, "bin", "drain.sh"),
	} {
		p := Program{text, "./now"}
		if p.RelativeTo(dir); p[0] != want || p[1] != "./now" {
			t.Errorf("%q is %q, want %q and its argument", text, p, want)
		}
	}
}

// A path may hold spaces, unless what stands before one is the program.
func TestAProgramWithSpacesMayBeOne(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"my tool", "tool - copy.exe"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]bool{
		filepath.Join(dir, "my tool"): false, filepath.Join(dir, "my tool now"): true,
		filepath.Join(dir, "tool - copy.exe"): false, filepath.Join(dir, "tool - copy.exe /now"): true,
		filepath.Join(dir, "elsewhere", "my tool"): false, filepath.Join(dir, "elsewhere", "tool --now"): true,
	} {
		if err := (Program{text}).check("command"); (err != nil) != want {
			t.Errorf("%q gives %v, want an error: %v", text, err, want)
		}
	}
}
