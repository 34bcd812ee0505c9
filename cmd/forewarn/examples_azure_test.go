package main

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What Azure calls the roles that the examples give, by the id that Bicep and a policy need.
var azureRoles = map[string]string{
	"2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
	"4633458b-17de-408a-b874-0445c86b69e6": "Key Vault Secrets User",
	"d5a91429-5739-47e2-a06b-3470a27159e7": "EventGrid Data Sender",
	"9980e02c-c2be-4d73-94e8-173b1dc7cf3c": "Virtual Machine Contributor",
}

// What a file of Bicep uses is declared in it, what it takes is used, and each role has its own id.
func TestBicepUsesWhatItDeclares(t *testing.T) {
	for _, name := range []string{"azure/vm.bicep", "azure/policy.bicep"} {
		text := example(t, name)
		known := map[string]bool{}
		for _, word := range strings.Fields(`allowed description maxLength minLength minValue secure
			param var resource output targetScope existing if for in true false string int object
			empty guid json loadTextContent map replace resourceGroup subscription subscriptionResourceId take union`) {
			known[word] = true
		}
		var taken []string
		for _, m := range regexp.MustCompile(`(?m)^(param|var|resource) (\w+)`).FindAllStringSubmatch(text, -1) {
			known[m[2]] = true
			if m[1] != "resource" {
				taken = append(taken, m[2])
			}
		}
		for _, m := range regexp.MustCompile(`\bfor \(?(\w+)(?:, (\w+)\))? in |\b(\w+) =>`).FindAllStringSubmatch(text, -1) {
			known[m[1]], known[m[2]], known[m[3]] = true, true, true
		}
		used := map[string]int{}
		for _, word := range bicepWords(t, name, text) {
			used[word]++
			if !known[word] && word != "clientId" { // the output
				t.Errorf("%s uses %s, which it does not declare", name, word)
			}
		}
		for _, word := range taken {
			if used[word] < 2 {
				t.Errorf("%s declares %s and does not use it", name, word)
			}
		}
		given := regexp.MustCompile(`(?s)name: guid\([^\n]*'([^']+)'\).*?'([0-9a-f-]{36})'`).FindAllStringSubmatch(text, -1)
		if want := strings.Count(text, "/roleAssignments@"); len(given) != want || want == 0 {
			t.Errorf("%s gives %d roles with a name and an id, want %d", name, len(given), want)
		}
		for _, m := range given {
			if azureRoles[m[2]] != m[1] {
				t.Errorf("%s gives the role %s as %s, which is %q", name, m[2], m[1], azureRoles[m[2]])
			}
		}
	}
}

// bicepWords returns the words of Bicep that are names: none in comments or texts, no keys, no properties.
func bicepWords(t *testing.T, name, text string) []string {
	t.Helper()
	text = regexp.MustCompile(`(?m)^ *//.*$`).ReplaceAllString(text, "")
	var open []string
	var code strings.Builder
	quoted := false
	for i := 0; i < len(text); i++ {
		c := text[i : i+1]
		switch {
		case quoted && strings.HasPrefix(text[i:], "${"):
			open, quoted = append(open, "}'"), false
			i++
		case quoted:
			quoted = c != "'"
		case c == "'":
			quoted = true
		case strings.Contains("{[(", c):
			open = append(open, map[string]string{"{": "}", "[": "]", "(": ")"}[c])
		case strings.Contains("}])", c):
			if len(open) == 0 || open[len(open)-1][:1] != c {
				t.Fatalf("%s: a %s closes nothing: %s", name, c, text[max(0, i-80):i+1])
			}
			quoted = open[len(open)-1] == "}'"
			open = open[:len(open)-1]
		default:
			code.WriteString(c)
			continue
		}
		code.WriteString(" ")
	}
	if len(open) > 0 || quoted {
		t.Fatalf("%s ends with %q still to come", name, open)
	}
	names := regexp.MustCompile(`( in \w+):`).ReplaceAllString(code.String(), "$1 ")
	names = regexp.MustCompile(`\.\w+|\b\w+:(\s|$)`).ReplaceAllString(names, " ")
	return regexp.MustCompile(`\b[A-Za-z]\w*`).FindAllString(names, -1)
}

// Each variable and local value of a module of Terraform is used, and each that is used is there.
func TestTerraformUsesWhatItDeclares(t *testing.T) {
	for _, name := range []string{"azure/terraform/vm/main.tf", "azure/terraform/policy/main.tf"} {
		text := example(t, name)
		declared := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^variable "(\w+)"`).FindAllStringSubmatch(text, -1) {
			declared["var."+m[1]] = true
		}
		for _, m := range regexp.MustCompile(`(?m)^resource "(\w+)" "(\w+)"`).FindAllStringSubmatch(text, -1) {
			declared[m[1]+"."+m[2]] = true
		}
		_, locals, _ := strings.Cut(text, "\nlocals {\n")
		locals, _, _ = strings.Cut(locals, "\n}\n")
		for _, m := range regexp.MustCompile(`(?m)^  (\w+) +=`).FindAllStringSubmatch(locals, -1) {
			declared["local."+m[1]] = true
		}
		used := map[string]bool{}
		for _, reference := range regexp.MustCompile(`\b(var|local|azurerm_\w+)\.\w+`).FindAllString(text, -1) {
			used[reference] = true
			if !declared[reference] {
				t.Errorf("%s uses %s, which it does not declare", name, reference)
			}
		}
		for reference := range declared {
			if !used[reference] && !strings.HasPrefix(reference, "azurerm_") {
				t.Errorf("%s declares %s and does not use it", name, reference)
			}
		}
		if again := strings.Count(text, "{") - strings.Count(text, "}"); again != 0 {
			t.Errorf("%s leaves %d braces open", name, again)
		}
	}
}

// The call of the module in README names its variables, and all that have no default.
func TestReadmeCallsTheModuleOfTerraform(t *testing.T) {
	_, call, _ := strings.Cut(example(t, "azure/README.md"), "module \"web\" {\n")
	call, _, _ = strings.Cut(call, "```")
	given := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ {5}(\w+) += `).FindAllStringSubmatch(call, -1) {
		given[m[1]] = m[1] != "source"
	}
	variables := regexp.MustCompile(`(?ms)^variable "(\w+)" \{\n(.*?)^\}`).
		FindAllStringSubmatch(example(t, "azure/terraform/vm/main.tf"), -1)
	for _, m := range variables {
		if !given[m[1]] && !strings.Contains(m[2], "  default ") {
			t.Errorf("README does not set %s", m[1])
		}
		delete(given, m[1])
	}
	for name, is := range given {
		if is {
			t.Errorf("README sets %s, which is no variable", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^ {7}"([\w ]+)" += `).FindAllStringSubmatch(call, -1) {
		if !slices.Contains(slices.Collect(maps.Values(azureRoles)), m[1]) {
			t.Errorf("README gives the role %s, which nobody knows", m[1])
		}
	}
}

// The template in the policy gets each of its parameters, and uses it; the policy asks for each of its own, and gives the
// role that its deployment takes.
func TestThePolicyPassesWhatItAsksFor(t *testing.T) {
	type parameters map[string]struct{ Type, Value, DefaultValue string }
	var policy struct {
		Mode       string
		Parameters parameters
		PolicyRule struct {
			Then struct {
				Details struct {
					Type              string
					RoleDefinitionIds []string
					Deployment        struct {
						Properties struct {
							Parameters parameters
							Template   struct {
								Parameters           parameters
								Variables, Resources json.RawMessage
							}
						}
					}
				}
			}
		}
	}
	text := example(t, "azure/policy.json")
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		t.Fatal(err)
	}
	details := policy.PolicyRule.Then.Details
	template := details.Deployment.Properties.Template
	if got, want := slices.Sorted(maps.Keys(details.Deployment.Properties.Parameters)),
		slices.Sorted(maps.Keys(template.Parameters)); !slices.Equal(got, want) {
		t.Errorf("the deployment passes %v, its template takes %v", got, want)
	}
	asked := regexp.MustCompile(`parameters\('(\w+)'\)`)
	inside := string(template.Variables) + string(template.Resources)
	usedBy := func(text string) []string {
		var names []string
		for _, m := range asked.FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	if got, want := usedBy(inside), slices.Sorted(maps.Keys(template.Parameters)); !slices.Equal(got, want) {
		t.Errorf("the template uses %v and takes %v", got, want)
	}
	if got, want := usedBy(strings.Replace(strings.Replace(text, string(template.Variables), "", 1),
		string(template.Resources), "", 1)), slices.Sorted(maps.Keys(policy.Parameters)); !slices.Equal(got, want) {
		t.Errorf("the rule uses %v and asks for %v", got, want)
	}
	if len(details.RoleDefinitionIds) != 1 || azureRoles[path.Base(details.RoleDefinitionIds[0])] != "Virtual Machine Contributor" {
		t.Errorf("it deploys with the roles %v", details.RoleDefinitionIds)
	}
	for _, expression := range regexp.MustCompile(`"\[.*?\]"[,}\n]`).FindAllString(text, -1) {
		bare := regexp.MustCompile(`'([^']|'')*'`).ReplaceAllString(expression, "")
		if strings.Count(bare, "(") != strings.Count(bare, ")") {
			t.Errorf("the expression %s closes not what it opens", expression)
		}
		for _, function := range regexp.MustCompile(`(\w+)\(`).FindAllStringSubmatch(bare, -1) {
			if !slices.Contains([]string{"concat", "field", "parameters", "toLower", "variables"}, function[1]) {
				t.Errorf("the expression %s calls %s", expression, function[1])
			}
		}
	}
}

// The extension downloads the same files and runs the same commands however it is deployed, and its scripts are there.
func TestEachWayToDeployRunsTheSameScripts(t *testing.T) {
	for name, commands := range map[string][]string{
		"azure/vm.bicep": {"'sh install.sh ${sha256}'",
			"'powershell -ExecutionPolicy Bypass -File install.ps1 -Sha256 ${sha256}'"},
		"azure/terraform/vm/main.tf": {`"sh install.sh ${var.sha256}"`,
			`"powershell -ExecutionPolicy Bypass -File install.ps1 -Sha256 ${var.sha256}"`},
		"azure/policy.json": {"'sh install.sh ', parameters('sha256Linux')",
			"'powershell -ExecutionPolicy Bypass -File install.ps1 -Sha256 ', parameters('sha256Windows')"},
	} {
		text := example(t, name)
		for _, part := range append(commands, "install.sh", "install.ps1", "forewarn.deb", "forewarn.exe", "forewarn.yaml",
			"Microsoft.Azure.Extensions", "CustomScript", "2.1", "Microsoft.Compute", "CustomScriptExtension", "1.10") {
			if !strings.Contains(text, part) {
				t.Errorf("%s does not say %s", name, part)
			}
		}
	}
	script := example(t, "azure/install.sh")
	for _, file := range []string{"$here/forewarn.deb", "$here/forewarn.rpm", "$here/forewarn.yaml"} {
		if !strings.Contains(script, file) {
			t.Errorf("install.sh does not look for %s", file)
		}
	}
	if !strings.Contains(example(t, "windows/install.ps1"), "\nparam([string]$Sha256)\n") {
		t.Error("install.ps1 takes no -Sha256")
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	file := filepath.Join("..", "..", "examples", "azure", "install.sh")
	if out, err := exec.Command(sh, "-n", file).CombinedOutput(); err != nil {
		t.Errorf("sh -n install.sh: %v\n%s", err, out)
	}
}
