package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/sinks"
)

var update = flag.Bool("update", false, "write the golden files and the tables of the documents anew")

// linuxDefaults are the places of root on Linux.
var linuxDefaults = settings.SystemDefaults("linux", 0, func(string) string { return "" })

// example reads a file of examples.
func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// loads loads settings as they stand in an example, with the files of secrets that they name in a directory of the
// test.
func loads(t *testing.T, name, text string) *settings.Settings {
	t.Helper()
	dir := t.TempDir()
	text = regexp.MustCompile(`/etc/forewarn/[a-z/-]+`).ReplaceAllStringFunc(text, func(path string) string {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	})
	l := settings.Loader{Kinds: sinks.Kinds(),
		Host: sinks.Host{Getenv: func(string) string { return "" }, Stdout: os.Stdout}, Defaults: linuxDefaults}
	s, err := l.Parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Routes) == 0 {
		t.Fatalf("%s has no sinks", name)
	}
	return s
}

// The unit states its score, alone and with the drop-in for exec sinks, as systemd 252 computes it. Other versions
// compute it differently and must still find it good.
func TestUnitSaysItsSecurityScore(t *testing.T) {
	needsSystemd(t)
	version, err := exec.Command("systemd-analyze", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	judge := strings.HasPrefix(string(version), "systemd 252 ")
	unit := example(t, "systemd/forewarn.service")
	for _, tt := range []struct{ file, dropIn string }{
		{"systemd/forewarn.service", ""},
		{"systemd/forewarn.service.d/exec.conf", example(t, "systemd/forewarn.service.d/exec.conf")},
		{"systemd/forewarn.service.d/drain.conf", example(t, "systemd/forewarn.service.d/drain.conf")},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "forewarn.service")
		write(t, file, unit)
		if tt.dropIn != "" {
			write(t, filepath.Join(dir, "forewarn.service.d", filepath.Base(tt.file)), tt.dropIn)
		}
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", file).CombinedOutput()
		if err != nil {
			t.Skipf("systemd-analyze here cannot judge a unit that is not installed: %v\n%s", err, out)
		}
		score := regexp.MustCompile(`Overall exposure level for forewarn.service: (\S+ \S+)`)
		stated := regexp.MustCompile(`(?m)^# systemd-analyze security: (.*)$`)
		got, want := score.FindStringSubmatch(string(out)), stated.FindStringSubmatch(example(t, tt.file))
		if !judge && got != nil && strings.HasSuffix(got[1], " OK") {
			t.Logf("%s: %s here", tt.file, got[1])
			continue
		}
		if got == nil || want == nil || got[1] != want[1] {
			t.Errorf("%s: systemd-analyze says %q, the file %q\n%s", tt.file, got, want, out)
		}
	}
}

// systemd accepts every line of the units.
func TestUnitsAreValid(t *testing.T) {
	needsSystemd(t)
	dir := t.TempDir()
	programs := strings.NewReplacer("/usr/bin/forewarn", "/bin/true", "/usr/local/sbin/drain", "/bin/true",
		"/usr/local/sbin/return-to-service", "/bin/true")
	for from, to := range map[string]string{
		"systemd/forewarn.service":                 "forewarn.service",
		"systemd/forewarn.service.d/exec.conf":     "forewarn.service.d/exec.conf",
		"systemd/forewarn.service.d/drain.conf":    "forewarn.service.d/drain.conf",
		"systemd/runbook/forewarn-drain@.service":  "forewarn-drain@.service",
		"systemd/runbook/forewarn-return@.service": "forewarn-return@.service",
		"fleet/forewarn-relay.service":             "forewarn-relay.service",
	} {
		write(t, filepath.Join(dir, filepath.FromSlash(to)), programs.Replace(example(t, from)))
	}
	for _, unit := range []string{"forewarn.service", "forewarn-drain@.service", "forewarn-return@.service",
		"forewarn-relay.service"} {
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", filepath.Join(dir, unit)).CombinedOutput()
		if err != nil || strings.Contains(string(out), dir) || strings.Contains(string(out), "forewarn") {
			t.Errorf("systemd-analyze verify %s: %v\n%s", unit, err, out)
		}
	}
}

// The unit must have these settings whatever its score: no rights, no start limit, a watchdog longer than a freeze,
// and the order that starts it before anything that waits for the network.
func TestUnitHasItsRequiredSettings(t *testing.T) {
	unit := "\n" + example(t, "systemd/forewarn.service")
	for _, line := range []string{
		"User=forewarn", "StateDirectory=forewarn", "CapabilityBoundingSet=", "AmbientCapabilities=", "NoNewPrivileges=yes",
		"ProtectSystem=strict", "SystemCallFilter=@system-service", "Restart=always", "StartLimitIntervalSec=0",
		"WatchdogSec=4min", "Before=network-online.target", "KillMode=mixed", "MemoryMax=768M",
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("forewarn.service has no line %s", line)
		}
	}
	if !strings.Contains(example(t, "systemd/forewarn.sysusers"), "\nu forewarn ") {
		t.Error("forewarn.sysusers makes no user forewarn")
	}
}

// The runbook's settings, units and rule name the same units.
func TestRunbookFilesUseTheSameUnits(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the runbook is one of systemd")
	}
	text := example(t, "systemd/runbook/forewarn.yaml")
	loads(t, "runbook/forewarn.yaml", text)
	for _, want := range []string{"vanished) unit=forewarn-return ;;", "*) unit=forewarn-drain ;;",
		`start "$unit@$CE_SUBJECT.service"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the settings do not say %s", want)
		}
	}
	rule := example(t, "systemd/runbook/50-forewarn-drain.rules")
	pattern := regexp.MustCompile(`/(\^forewarn-\(drain\|return\)@.*\$)/\.test`).FindStringSubmatch(rule)
	if pattern == nil {
		t.Fatal("the rule has no pattern of the unit")
	}
	for unit, want := range map[string]bool{
		"forewarn-drain@602D9444-D2CD-49C7-8624-8643E7171297.service":   true,
		"forewarn-return@602D9444-D2CD-49C7-8624-8643E7171297.service":  true,
		"forewarn-drain@x.service":                                      false,
		"forewarn-drain@602D9444-D2CD-49C7-8624-8643E7171297.service.d": false,
		"ssh.service": false,
		"x-forewarn-drain@602D9444-D2CD-49C7-8624-8643E7171297.service":            false,
		"forewarn-drain@602D9444-D2CD-49C7-8624-8643E7171297.service\nssh.service": false,
	} {
		if got := regexp.MustCompile(pattern[1]).MatchString(unit); got != want {
			t.Errorf("the rule lets forewarn start %q: %v, want %v", unit, got, want)
		}
	}
}

// The cloud-init snippet is valid, writes settings that load, and contains no secret.
func TestCloudInitSnippetLoads(t *testing.T) {
	text := example(t, "cloud-init/forewarn.yaml")
	if !strings.HasPrefix(text, "#cloud-config\n") {
		t.Error("the first line is not #cloud-config, so cloud-init takes it for something else")
	}
	var snippet struct {
		WriteFiles []struct{ Path, Permissions, Content string } `yaml:"write_files"`
		Runcmd     [][]string
	}
	if err := yaml.UnmarshalWithOptions([]byte(text), &snippet, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if len(snippet.WriteFiles) != 1 || snippet.WriteFiles[0].Path != "/etc/forewarn/forewarn.yaml" {
		t.Fatalf("it writes %v, want the settings", snippet.WriteFiles)
	}
	settings := snippet.WriteFiles[0].Content
	loads(t, "cloud-init/forewarn.yaml", settings)
	if regexp.MustCompile(`(?m)(bearer|token|password|secret|_file)\w*:`).MatchString(settings) {
		t.Errorf("custom data holds or names a secret:\n%s", settings)
	}
	last := snippet.Runcmd[len(snippet.Runcmd)-1]
	if got := strings.Join(last, " "); got != "systemctl enable --now forewarn" {
		t.Errorf("it ends with %q, want the service enabled and started", got)
	}
}

func needsSystemd(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed, and judges the units")
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
