package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// If no forewarn runs, the error names the command for the unit with the same settings, and no other.
func TestStartCommandNamesTheUnitWithTheSameSettings(t *testing.T) {
	own, packaged := t.TempDir(), t.TempDir()
	for file, start := range map[string]string{
		filepath.Join(packaged, "forewarn.service"):       "/usr/bin/forewarn run",
		filepath.Join(packaged, "forewarn-relay.service"): "/usr/bin/forewarn relay --config /etc/forewarn/relay.yaml",
		filepath.Join(packaged, "forewarn-old.service"):   "/usr/bin/forewarn run --config /etc/old.yaml",
		filepath.Join(own, "forewarn-old.service"):        "/usr/bin/forewarn run --config=/etc/new.yaml",
		filepath.Join(own, "other.service"):               "/usr/bin/forewarn run --config /etc/other.yaml",
	} {
		text := strings.Join([]string{"[Service]", "ExecStart=" + start, "ExecReload=/usr/bin/forewarn check", ""}, "\n")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for config, want := range map[string]string{
		"/etc/forewarn/forewarn.yaml": "sudo systemctl start forewarn",
		"/etc/forewarn/relay.yaml":    "sudo systemctl start forewarn-relay",
		"/etc/new.yaml":               "sudo systemctl start forewarn-old",
		"/etc/old.yaml":               "",
		"/etc/other.yaml":             "",
		"/home/me/try.yaml":           "",
	} {
		got := unitCommand([]string{own, packaged}, config, "/etc/forewarn/forewarn.yaml")
		if got != want {
			t.Errorf("%s: got %q, want %q", config, got, want)
		}
	}
}
