package main

import (
	"bufio"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"forewarn/bridge/systemtest"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/sinks"
)

// codeBlocks are the code blocks of a section of a document.
func codeBlocks(t *testing.T, name, section string) []string {
	t.Helper()
	text := sectionOf(manualText(t, name), section)
	if text == "" {
		t.Fatalf("%s has no section %q", name, section)
	}
	var blocks []string
	for _, m := range fenced.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[2])
	}
	return blocks
}

// The effect of any client of scheduled events on restarts is on README's first screen, before the first command that
// causes it. The packages say it first too, with what to do about it. The .deb and the .rpm run the same script, which
// prints it unless the service is enabled.
func TestEffectOnRestartsIsDocumentedFirst(t *testing.T) {
	text := manualText(t, "README.md")
	before, _, _ := strings.Cut(text, "\n## ")
	first := sectionOf(text, "Restarts will wait")
	if !strings.HasPrefix(text[len(before)+1:], first) || strings.Count(before, "\n") > 40 {
		t.Error("README's first section, on its first screen, is not what happens to restarts")
	}
	if strings.Contains(first, "```") || regexp.MustCompile(`forewarn run|systemctl|forewarn events`).MatchString(before) {
		t.Error("README has a command that asks Azure before it says what that does to restarts")
	}
	for who, said := range map[string]string{
		"README": first, "the .deb": installMessage(t, false, "configure", ""), "the .rpm": installMessage(t, false, "1"),
		"the .deb that was removed before": installMessage(t, false, "configure", "0.1.0"),
	} {
		said = strings.Join(strings.Fields(strings.NewReplacer("*", "", "#", "").Replace(said)), " ")
		rest, begins := strings.CutPrefix(said, "Restarts will wait")
		if !begins {
			t.Errorf("%s begins with %.40q, want what happens to restarts", who, said)
		}
		for _, want := range []string{
			"a restart or redeploy that somebody asks for (portal, CLI, API) begins about 15 minutes later", "every VM of",
			"unless it is approved before", "sudo forewarn approve", "rule", "Any client of", "It ends about a day after the last",
		} {
			if !strings.Contains(rest, want) {
				t.Errorf("%s says %q, without %q", who, said, want)
			}
		}
	}
	if !strings.Contains(first, "(examples/README.md#approval)") {
		t.Error("README's first section has no link to Approval")
	}
	for _, upgrade := range [][]string{{"configure", "0.1.0"}, {"2"}} {
		if said := installMessage(t, true, upgrade...); said != "" {
			t.Errorf("postinstall %v says %q at an upgrade", upgrade, said)
		}
	}
}

// installMessage is what the script after the installation of a package says, where the service is enabled or not. What
// it does besides is left out.
func installMessage(t *testing.T, enabled bool, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("sh is not installed, and the packages' scripts need it")
	}
	bin := t.TempDir()
	for _, tool := range []string{"getent", "chgrp", "chmod", "install", "systemctl"} {
		script := "#!/bin/sh\n"
		if !enabled {
			script += "[ \"$1\" != is-enabled ]\n"
		}
		if err := os.WriteFile(filepath.Join(bin, tool), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("sh", append([]string{filepath.Join("..", "..", ".ci", "packaging", "postinstall")}, args...)...)
	c.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("postinstall %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// README's Start is five commands, and check has no note about its settings. A separate machine runs the commands; see
// .ci/machine.
func TestReadmeStart(t *testing.T) {
	blocks := codeBlocks(t, "README.md", "Start")
	if len(blocks) != 1 {
		t.Fatalf("Start has %d code blocks, want 1", len(blocks))
	}
	before, rest, _ := strings.Cut(blocks[0], " <<'END'\n")
	text, after, ok := strings.Cut(rest, "\nEND\n")
	if !ok {
		t.Fatalf("Start writes no settings:\n%s", blocks[0])
	}
	commands := strings.Split(strings.TrimSpace(before+"\n"+after), "\n")
	made := regexp.MustCompile("`TARGETS=linux/(\\w+) bash .ci/package v(\\S+)` puts it into `(\\w+)`").
		FindStringSubmatch(manualText(t, "README.md"))
	if made == nil || commands[0] != fmt.Sprintf("sudo dpkg -i %s/forewarn_%s_%s.deb", made[3], made[2], made[1]) {
		t.Errorf("Start makes %q and installs it with %q, want the one file that was made", made, commands[0])
	}
	if len(commands) != 5 {
		t.Errorf("Start has %d commands, want 5: %q", len(commands), commands)
	}
	checked, err := check(loadSample(t, "README, Start", text, ""), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if len(checked.Notes) != 1 || !strings.Contains(checked.Notes[0], "still the placeholder of an example") {
		t.Errorf("check says of Start's settings: %q, want only that the topic is to be filled in", checked.Notes)
	}
}

// The documented commands for trying it work one after the other, with free ports instead of the documented ones.
func TestDocumentedTrialCommandsWork(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	for _, tt := range []struct {
		document, section string
		last              string // how the last line is run, if it would not end
		want              []string
	}{
		{"cmd/forewarn/README.md", "Try it", "", []string{
			"try.yaml: ok", `"DocumentIncarnation":`, "vm_0  ready", `"EventType":"Preempt"`,
			"Reboot of vm_0, by Azure: completed", "record  delivered ", "record  accepted", "-test-20",
		}},
		{"README.md", "Start from a clone", "timeout 5 %s || [ $? = 124 ]; kill %%1", []string{
			"try.yaml: ok", "console  accepted", "dev.forewarn.scheduledevent.scheduled",
		}},
	} {
		t.Run(tt.section, func(t *testing.T) {
			t.Parallel()
			blocks := codeBlocks(t, tt.document, tt.section)
			if len(blocks) != 1 {
				t.Fatalf("%s has %d code blocks, want 1", tt.section, len(blocks))
			}
			script := strings.TrimSpace(blocks[0])
			if tt.last != "" {
				i := strings.LastIndexByte(script, '\n') + 1
				script = script[:i] + fmt.Sprintf(tt.last, script[i:])
			}
			out := runLines(t, script)
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("the output has no %q", want)
				}
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// runLines runs lines that build forewarn and try it with an emulated Azure.
func runLines(t *testing.T, script string) (output string) {
	t.Helper()
	for _, tool := range []string{"bash", "curl", "timeout"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed, and these lines need it", tool)
		}
	}
	build, emulate := "try=$(mktemp -d) && go build -o \"$try\" ./cmd/forewarn && cd \"$try\"\n", "./forewarn emulate "
	script, ok := strings.CutPrefix(script, build)
	if !ok || !strings.Contains(script, emulate) {
		t.Fatalf("the lines do not begin with %q, or have no %q", build, emulate)
	}
	clone, dir := t.TempDir(), t.TempDir()
	bin, err := exec.LookPath("forewarn") // this test binary under that name: built already
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(bin, filepath.Join(dir, "forewarn")); err != nil {
		t.Fatal(err)
	}
	script = "cd '" + dir + "'\n" + script
	endpoint, control := freePort(t), freePort(t)
	script = strings.Replace(script, emulate, emulate+"--listen 127.0.0.1:"+endpoint+" --control 127.0.0.1:"+control+" ", 1)
	script = strings.NewReplacer("127.0.0.1:8254", "127.0.0.1:"+endpoint, "127.0.0.1:8255", "127.0.0.1:"+control,
		"state: try-state\nsinks:", "state: try-state\nlisten: 127.0.0.1:0\nsinks:", // other stories say that nobody listens there
	).Replace(script)
	c := exec.Command("bash", "-e", "-m", "-c", script)
	c.Dir, c.Env = clone, append(os.Environ(), "HOME="+dir)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(clone); err != nil || len(left) > 0 {
		t.Errorf("the lines leave %v in the clone, %v", left, err)
	}
	return string(out)
}

// README shows the output of demo, except for the times.
func TestREADMEShowsWhatDemoPrints(t *testing.T) {
	t.Parallel()
	timeless := func(line string) string {
		return regexp.MustCompile(`[0-9]+`).ReplaceAllString(strings.TrimSpace(line), "0")
	}
	before, _, _ := strings.Cut(manualText(t, "README.md"), "\n## ")
	_, shown, ok := strings.Cut(before, "$ forewarn demo\n")
	shown, _, end := strings.Cut(shown, "```")
	if !ok || !end {
		t.Fatal("README shows nothing of demo")
	}
	missing := map[string]bool{}
	for line := range strings.Lines(shown) {
		if line = timeless(line); line != "" {
			missing[line] = true
		}
	}
	c := forewarn(t, "demo", "--speed", "10")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer time.AfterFunc(patience, func() { c.Process.Kill() }).Stop()
	defer c.Process.Kill()
	printed := bufio.NewScanner(out)
	for len(missing) > 0 && printed.Scan() {
		delete(missing, timeless(printed.Text()))
	}
	for line := range missing {
		t.Errorf("demo does not print %q", line)
	}
}

// ports counts those that freePort gave away.
var ports atomic.Uint32

// freePort is a port to listen on later, so none of those that systems give to connections: it would be taken by then.
// It gives no port twice, and none of those that the tests of sinks take, which run beside these.
func freePort(t interface{ Fatal(...any) }) string {
	for range 100 {
		port := fmt.Sprint(20000 + (os.Getpid()*50+int(ports.Add(1)))%5000)
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// natsCreds are the credentials of a NATS user that nobody knows.
func natsCreds(t *testing.T) string {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + string(seed) + "\n------END USER NKEY SEED------\n"
}

// Each sample of settings in the documents and in examples loads and matches the schema. The secret files that it
// names are created first.
func TestSettingsSamplesLoad(t *testing.T) {
	samples := map[string]string{}
	for _, name := range manuals {
		for i, block := range fenced.FindAllStringSubmatch(manualText(t, name), -1) {
			if block[1] == "yaml" {
				samples[fmt.Sprintf("%s, block %d", name, i)] = block[2]
			}
		}
	}
	if len(samples) < 12 {
		t.Errorf("the documents have %d samples of settings", len(samples))
	}
	schema := settingsValidator(t)
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	runbooks, err := filepath.Glob(filepath.Join("..", "..", "examples", "runbooks", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := filepath.Glob(filepath.Join("..", "..", "examples", "fleet", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	windows, err := filepath.Glob(filepath.Join("..", "..", "examples", "windows", "*.yaml"))
	if err != nil || len(windows) == 0 {
		t.Fatal("no sample for Windows: ", err)
	}
	for _, f := range slices.Concat(files, runbooks, fleet, windows) {
		if filepath.Base(f) == "slack-app-manifest.yaml" {
			continue // Slack's, not ours; it is tested beside the sink
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		samples[f] = string(text)
	}
	if len(samples) < 3 {
		t.Fatalf("only %d samples were found", len(samples))
	}
	for name, text := range samples {
		needsNone := filepath.Base(name) == "admin.yaml" // it only makes the stream
		if s := loadSample(t, name, text, "https://example.com"); len(s.Routes) == 0 && !needsNone {
			t.Errorf("%s has no sinks", name)
		}
		if err := validYAML(t, schema, text); err != nil {
			t.Errorf("%s is wrong by the schema: %v", name, err)
		}
	}
}

// loadSample loads settings that name files of secrets, which are made first. The addresses among those are at a
// server.
func loadSample(t *testing.T, name, text, server string) *settings.Settings {
	t.Helper()
	dir := t.TempDir()
	text = regexp.MustCompile(`/etc/forewarn/[a-z-]+(\.pem)?`).ReplaceAllStringFunc(text, func(path string) string {
		file := filepath.Join(dir, filepath.Base(path))
		content := "secret\n"
		if strings.HasSuffix(path, "-url") {
			content = server + "/secret\n"
		}
		if strings.HasSuffix(path, "hook-secret") {
			content = "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n"
		}
		if strings.HasSuffix(path, "-creds") {
			content = natsCreds(t)
		}
		if strings.HasSuffix(path, ".pem") {
			https := httptest.NewTLSServer(nil)
			content = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: https.Certificate().Raw}))
			https.Close()
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	})
	host := sinks.Host{Getenv: func(string) string { return "secret" }, Stdout: os.Stdout, Log: slog.New(slog.DiscardHandler)}
	s, err := settings.Loader{Kinds: sinks.Kinds(), Host: host, Defaults: linuxDefaults}.Parse(name, []byte(programsHere(text)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
