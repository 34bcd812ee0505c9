package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// roleFile decodes a file of the Ansible role.
func roleFile[T any](t *testing.T, name string) T {
	t.Helper()
	var v T
	if err := yaml.Unmarshal([]byte(example(t, "ansible/"+name)), &v); err != nil {
		t.Fatalf("examples/ansible/%s: %v", name, err)
	}
	return v
}

// Every variable of the role has a default of the type that its description states, so that one who sets none learns
// what is missing and not that Ansible failed.
func TestEachVariableOfTheRoleHasADefaultAndADescription(t *testing.T) {
	defaults := roleFile[map[string]any](t, "defaults/main.yml")
	specs := roleFile[struct {
		ArgumentSpecs struct {
			Main struct {
				Options map[string]struct {
					Type, Description string
					Choices           []string
					NoLog             bool `yaml:"no_log"`
				}
			}
		} `yaml:"argument_specs"`
	}](t, "meta/argument_specs.yml").ArgumentSpecs.Main.Options
	if got, want := slices.Sorted(maps.Keys(specs)), slices.Sorted(maps.Keys(defaults)); !slices.Equal(got, want) {
		t.Errorf("described are %v, defaults have %v", got, want)
	}
	for name, spec := range specs {
		kind := map[string]any{"str": "", "path": "", "dict": map[string]any{}, "bool": false, "int": uint64(0)}[spec.Type]
		if spec.Description == "" || kind == nil || typeName(defaults[name]) != typeName(kind) {
			t.Errorf("%s is a %s with the default %v: %q", name, spec.Type, defaults[name], spec.Description)
		}
		if len(spec.Choices) > 0 && !slices.Contains(spec.Choices, defaults[name].(string)) {
			t.Errorf("%s is %v by default, expected one of %v", name, defaults[name], spec.Choices)
		}
	}
	if !specs["forewarn_secrets"].NoLog {
		t.Error("Ansible would log forewarn_secrets")
	}
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "bool"
	case uint64, int64, int:
		return "int"
	case map[string]any:
		return "map"
	}
	return "?"
}

// Every name of the role's own that its tasks use is a default, worked out in vars, or made by a task.
func TestTheRoleUsesNoNameThatNothingSets(t *testing.T) {
	known := map[string]bool{}
	for name := range roleFile[map[string]any](t, "defaults/main.yml") {
		known[name] = true
	}
	for name := range roleFile[map[string]any](t, "vars/main.yml") {
		known[name] = true
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "ansible", "*", "*"))
	if err != nil || len(files) < 9 {
		t.Fatalf("the role has the files %v, %v", files, err)
	}
	var text strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".yml") {
			var v any
			if err := yaml.Unmarshal(content, &v); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		text.Write(content)
	}
	for _, m := range regexp.MustCompile(`(?m)register: (\w+)|set_fact:\n +(\w+):`).FindAllStringSubmatch(text.String(), -1) {
		known[m[1]+m[2]] = true
	}
	for _, name := range regexp.MustCompile(`\bforewarn_\w+`).FindAllString(text.String(), -1) {
		if !known[name] {
			t.Errorf("nothing sets %s", name)
		}
	}
}

// The playbook's settings load, and its secrets are those that they name.
func TestThePlaybookLoads(t *testing.T) {
	type play struct {
		Hosts  string
		Serial []any
		Vars   struct {
			Secrets  map[string]string `yaml:"forewarn_secrets"`
			Settings map[string]any    `yaml:"forewarn_settings"`
		}
	}
	plays := roleFile[[]play](t, "playbook.yml")
	if len(plays) != 1 || len(plays[0].Serial) != 2 {
		t.Fatalf("the plays are %v, want one that begins with one VM", plays)
	}
	text, err := yaml.Marshal(plays[0].Vars.Settings)
	if err != nil {
		t.Fatal(err)
	}
	for name := range plays[0].Vars.Secrets {
		if !strings.Contains(string(text), "/etc/forewarn/"+name) {
			t.Errorf("no setting names the secret %s:\n%s", name, text)
		}
	}
	settings := strings.ReplaceAll(string(text), "url_file: /etc/forewarn/ops-url", "url: https://hooks.example.com/azure")
	if s := loads(t, "playbook.yml", settings); len(s.Rules) > 0 {
		t.Error("the playbook approves without having been asked")
	}
	_, commented, _ := strings.Cut(example(t, "ansible/playbook.yml"), "# approve:\n")
	rule := regexp.MustCompile(`(?m)^ +# `).ReplaceAllString(commented, "")
	if s := loads(t, "playbook.yml", settings+"approve:\n"+rule); len(s.Rules) != 1 {
		t.Errorf("with the rule in the comment it approves by %d rules", len(s.Rules))
	}
}

// Ansible reads the playbook and the role.
func TestAnsiblePlaybookIsValid(t *testing.T) {
	ansible, err := exec.LookPath("ansible-playbook")
	if err != nil {
		t.Skip("ansible-playbook is not installed, and judges the playbook")
	}
	c := exec.Command(ansible, "--syntax-check", "--inventory", "localhost,", filepath.Join(root, "examples/ansible/playbook.yml"))
	c.Env = append(os.Environ(), "ANSIBLE_HOME="+t.TempDir())
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
