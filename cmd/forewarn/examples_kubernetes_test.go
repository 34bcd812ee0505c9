package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/sinks"
)

// manifest reads the objects of a manifest, by their kinds. Of two of a kind it keeps the one named without a part, such as
// forewarn and not forewarn-drain.
func manifest(t *testing.T, name string) (at func(object string, path ...any) any, kinds []string) {
	t.Helper()
	objects := map[string]map[string]any{}
	nameOf := func(object map[string]any) string {
		return fmt.Sprint(object["metadata"].(map[string]any)["name"])
	}
	for document := range strings.SplitSeq(example(t, name), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if object == nil {
			continue // the comment at the top
		}
		kind := fmt.Sprint(object["kind"])
		kinds = append(kinds, kind)
		if other, ok := objects[kind]; !ok || len(nameOf(object)) < len(nameOf(other)) {
			objects[kind] = object
		}
	}
	at = func(object string, path ...any) any {
		var v any = objects[object]
		for _, p := range path {
			switch in := v.(type) {
			case map[string]any:
				v = in[fmt.Sprint(p)]
			case []any:
				i, ok := p.(int)
				if !ok || i >= len(in) {
					return nil
				}
				v = in[i]
			default:
				return nil
			}
		}
		return v
	}
	slices.Sort(kinds)
	return at, kinds
}

// wants compares values of an object, each by its path with dots, with JSON.
func wants(t *testing.T, at func(object string, path ...any) any, object string, values map[string]string) {
	t.Helper()
	for path, want := range values {
		var keys []any
		for key := range strings.SplitSeq(path, ".") {
			if n, err := strconv.Atoi(key); err == nil {
				keys = append(keys, n)
			} else {
				keys = append(keys, key)
			}
		}
		if got, err := json.Marshal(at(object, keys...)); err != nil || string(got) != want {
			t.Errorf("%s of the %s is %s, want %s", path, object, got, want)
		}
	}
}

// What every pod has: not root, no capabilities, a file system that it can't write to, a bound for garbage.
var leastRights = map[string]string{
	"spec.template.spec.hostPID":                                               "null",
	"spec.template.spec.hostIPC":                                               "null",
	"spec.template.spec.securityContext.runAsNonRoot":                          "true",
	"spec.template.spec.securityContext.seccompProfile.type":                   `"RuntimeDefault"`,
	"spec.template.spec.containers.0.securityContext.readOnlyRootFilesystem":   "true",
	"spec.template.spec.containers.0.securityContext.allowPrivilegeEscalation": "false",
	"spec.template.spec.containers.0.securityContext.privileged":               "false",
	"spec.template.spec.containers.0.securityContext.capabilities":             `{"drop":["ALL"]}`,
	"spec.template.spec.containers.0.env.0":                                    `{"name":"GOMEMLIMIT","value":"384MiB"}`,
}

// The DaemonSet has the host's network and no other right: not root, no capabilities, only its own directories writable,
// and no token unless it drains. Its mounts are where its settings expect them.
func TestDaemonSetHasLeastRights(t *testing.T) {
	for _, tt := range []struct {
		file, token   string
		kinds, mounts []string
	}{
		{"kubernetes/forewarn.yaml", "false", []string{"ConfigMap", "DaemonSet", "ServiceAccount"},
			[]string{"/etc/forewarn/settings", "/etc/forewarn/secrets", "/var/lib/forewarn"}},
		{"kubernetes/drain.yaml", "true", []string{"ClusterRole", "ClusterRoleBinding", "ConfigMap", "ConfigMap", "DaemonSet",
			"ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
			[]string{"/etc/forewarn/settings", "/etc/forewarn/runbook", "/var/lib/forewarn"}},
	} {
		at, kinds := manifest(t, tt.file)
		if !slices.Equal(kinds, tt.kinds) {
			t.Fatalf("%s has %v, want %v", tt.file, kinds, tt.kinds)
		}
		wants(t, at, "DaemonSet", leastRights)
		wants(t, at, "DaemonSet", map[string]string{
			"spec.template.spec.containers.0.resources.limits.memory": `"768Mi"`, // as the unit has it
		})
		wants(t, at, "DaemonSet", map[string]string{
			"spec.template.spec.hostNetwork":                  "true",
			"spec.template.spec.automountServiceAccountToken": tt.token,
		})
		wants(t, at, "ServiceAccount", map[string]string{"automountServiceAccountToken": "false"})
		if mounts := mountsOf(t, at); !slices.Equal(mounts, tt.mounts) {
			t.Errorf("%s mounts %v, want %v", tt.file, mounts, tt.mounts)
		}
		text := fmt.Sprint(at("ConfigMap", "data", "forewarn.yaml"))
		s := chartSettings(t, tt.file, text)
		if s.State != "/var/lib/forewarn" || s.Listen != "127.0.0.1:8169" {
			t.Errorf("state %s and listen %s, want what is mounted and what is probed", s.State, s.Listen)
		}
		for _, file := range regexp.MustCompile(`/etc/forewarn/\S+`).FindAllString(text, -1) {
			if !slices.Contains(tt.mounts, path.Dir(file)) {
				t.Errorf("the settings name %s, which is not mounted", file)
			}
		}
	}
}

// mountsOf returns where the DaemonSet mounts its volumes. None is a directory of the host.
func mountsOf(t *testing.T, at func(object string, path ...any) any) (mounts []string) {
	t.Helper()
	volumes := map[string]bool{}
	all, _ := at("DaemonSet", "spec", "template", "spec", "volumes").([]any)
	for _, v := range all {
		volume, _ := v.(map[string]any)
		volumes[fmt.Sprint(volume["name"])] = true
		if volume["hostPath"] != nil {
			t.Errorf("volume %v is a directory of the host", volume["name"])
		}
	}
	all, _ = at("DaemonSet", "spec", "template", "spec", "containers", 0, "volumeMounts").([]any)
	for _, v := range all {
		mount, _ := v.(map[string]any)
		if !volumes[fmt.Sprint(mount["name"])] {
			t.Errorf("%v is mounted and no volume", mount["name"])
		}
		if mount["subPath"] != nil {
			t.Errorf("%v is mounted by subPath, and would never be renewed", mount["name"])
		}
		mounts = append(mounts, fmt.Sprint(mount["mountPath"]))
	}
	return mounts
}

// The images run as the user that the pods have, and their program is where the pods expect it.
func TestImagesHaveTheUserOfThePods(t *testing.T) {
	at, _ := manifest(t, "kubernetes/forewarn.yaml")
	pod := []any{"spec", "template", "spec", "securityContext"}
	user := fmt.Sprintf("\nUSER %v:%v\n", at("DaemonSet", append(pod, "runAsUser")...),
		at("DaemonSet", append(slices.Clone(pod), "runAsGroup")...))
	for name, base := range map[string]string{"container/Containerfile": "\nFROM scratch\n", "helm/Containerfile": "/bin/kubectl\n"} {
		file := example(t, name)
		for _, want := range []string{base, user, "\nENTRYPOINT [\"/forewarn\"]\n"} {
			if !strings.Contains(file, want) {
				t.Errorf("%s has no line %q", name, strings.TrimSpace(want))
			}
		}
	}
}

// The relays have no rights: not root, only the directory of the control socket writable, no token, limits. There are
// two replicas, the probes use the address in their settings, and the policy keeps them from the node's identity.
func TestRelayDeploymentHasLeastRights(t *testing.T) {
	const file = "kubernetes/relay.yaml"
	at, kinds := manifest(t, file)
	if want := []string{"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget",
		"ServiceAccount"}; !slices.Equal(kinds, want) {
		t.Fatalf("the manifest has %v, want %v", kinds, want)
	}
	wants(t, at, "Deployment", leastRights)
	wants(t, at, "Deployment", map[string]string{
		"spec.replicas": "2",
		"spec.template.spec.containers.0.resources.limits.memory": `"512Mi"`, // as the unit has it
		"spec.template.spec.hostNetwork":                          "null",
		"spec.template.spec.automountServiceAccountToken":         "false",
		"spec.template.spec.containers.0.ports.0.containerPort":   "9169",
		"spec.template.spec.containers.0.livenessProbe.httpGet":   `{"path":"/healthz","port":"metrics"}`,
		"spec.template.spec.containers.0.readinessProbe.httpGet":  `{"path":"/readyz","port":"metrics"}`,
		"spec.template.spec.volumes.0.configMap.name":             `"forewarn-relay"`,
		"spec.template.spec.volumes.2.emptyDir.medium":            `"Memory"`,
	})
	wants(t, at, "NetworkPolicy", map[string]string{
		"spec.policyTypes":                  `["Ingress","Egress"]`,
		"spec.egress.0.to.0.ipBlock.except": `["169.254.169.254/32"]`,
		"spec.ingress.0.ports.0.port":       `"metrics"`,
		"spec.ingress.0.from.0":             `{"namespaceSelector":{}}`,
		"spec.podSelector.matchLabels":      `{"app.kubernetes.io/instance":"forewarn","app.kubernetes.io/name":"forewarn-relay"}`,
	})
	s := chartSettings(t, file, fmt.Sprint(at("ConfigMap", "data", "relay.yaml")))
	if s.Relay == nil || s.Metrics != "0.0.0.0:9169" || s.Control != "/run/forewarn/control.sock" {
		t.Errorf("the settings are a relay's (%v), with metrics %s and control %s", s.Relay != nil, s.Metrics, s.Control)
	}
}

// The runbook's role is what kubectl asks for and no more, it is bound to the account of the pods, and a policy keeps it to
// the node of its pod.
func TestDrainOfNodesHasLeastRights(t *testing.T) {
	at, _ := manifest(t, "kubernetes/drain.yaml")
	wants(t, at, "ClusterRole", map[string]string{"rules": `[{"apiGroups":[""],"resources":["nodes"],"verbs":["get","patch"]},` +
		`{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]},` +
		`{"apiGroups":[""],"resources":["pods/eviction"],"verbs":["create"]},` +
		`{"apiGroups":["apps"],"resources":["daemonsets"],"verbs":["get"]}]`})
	wants(t, at, "ClusterRoleBinding", map[string]string{
		"roleRef.name": `"forewarn-drain"`,
		"subjects":     `[{"kind":"ServiceAccount","name":"forewarn","namespace":"forewarn"}]`,
	})
	wants(t, at, "ValidatingAdmissionPolicyBinding", map[string]string{
		"spec": `{"policyName":"forewarn-drain","validationActions":["Deny"]}`,
	})
	wants(t, at, "ValidatingAdmissionPolicy", map[string]string{
		"spec.failurePolicy": `"Fail"`,
		"spec.matchConditions.0.expression": `"request.userInfo.username == ` +
			`\"system:serviceaccount:forewarn:forewarn\""`,
	})
}

// chartSettings loads settings of a manifest or of values, with the files and variables that they name.
func chartSettings(t *testing.T, name, text string) *settings.Settings {
	t.Helper()
	dir := t.TempDir()
	text = regexp.MustCompile(`/etc/forewarn/secrets/[a-z-]+`).ReplaceAllStringFunc(text, func(path string) string {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	})
	if runtime.GOOS == "windows" {
		text = strings.ReplaceAll(text, "- /bin/sh", "- C:/bin/sh")
	}
	host := sinks.Host{Getenv: func(string) string { return "set" }, Stdout: os.Stdout}
	s, err := settings.Loader{Kinds: sinks.Kinds(), Host: host, Defaults: linuxDefaults}.Parse(name, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(s.Routes) == 0 {
		t.Fatalf("%s has no sinks", name)
	}
	return s
}

// A chart is what Helm makes of a file of values: with the chart's own below them.
type chart map[string]any

// chartOf reads a file of values; none is the chart's own.
func chartOf(t *testing.T, name string) chart {
	t.Helper()
	return chartFrom(t, example(t, "helm/"+name))
}

func chartFrom(t *testing.T, text string) chart {
	t.Helper()
	values := chart{}
	for _, text := range []string{example(t, "helm/forewarn/values.yaml"), text} {
		var more chart
		if err := yaml.Unmarshal([]byte(text), &more); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		overlay(values, more)
	}
	return values
}

// overlay merges maps, and replaces what is none.
func overlay(values, more map[string]any) {
	for key, v := range more {
		above, isMap := v.(map[string]any)
		below, has := values[key].(map[string]any)
		if isMap && has {
			overlay(below, above)
			continue
		}
		values[key] = v
	}
}

// part returns the settings of nodes or relay as text, and whether the values ask for that part.
func (c chart) part(t *testing.T, name string) (text string, enabled bool) {
	t.Helper()
	part := c[name].(map[string]any)
	out, err := yaml.Marshal(part["settings"])
	if err != nil {
		t.Fatal(err)
	}
	return string(out), part["enabled"] == true
}

// Each file of values, and the chart without one, has settings that forewarn check accepts and the schemas too. Only the
// one that says so approves.
func TestValuesOfTheChartLoad(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "helm", "values", "*.yaml"))
	if err != nil || len(files) != 5 {
		t.Fatalf("the files of values are %v, %v", files, err)
	}
	charts := map[string]chart{"values.yaml": chartOf(t, "forewarn/values.yaml")}
	for _, file := range files {
		charts[filepath.Base(file)] = chartOf(t, "values/"+filepath.Base(file))
	}
	block := regexp.MustCompile("(?s)   ```yaml\n(.*?)\n   ```").FindStringSubmatch(example(t, "helm/README.md"))
	if block == nil {
		t.Fatal("the README has no values")
	}
	charts["README.md"] = chartFrom(t, block[1])

	schema, ofValues := settingsValidator(t), valuesSchema(t)
	for name, c := range charts {
		text, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := validYAML(t, ofValues, string(text)); err != nil {
			t.Errorf("%s is wrong by the chart's schema: %v", name, err)
		}
		rules := 0
		for _, part := range []string{"nodes", "relay"} {
			text, enabled := c.part(t, part)
			if !enabled {
				continue
			}
			s := chartSettings(t, name, text)
			rules += len(s.Rules)
			if (s.Relay != nil) != (part == "relay") {
				t.Errorf("the settings of %s in %s are for the other", part, name)
			}
			if err := validYAML(t, schema, text); err != nil {
				t.Errorf("the settings of %s in %s are wrong by the schema: %v", part, name, err)
			}
		}
		if want := name == "drain.yaml"; (rules > 0) != want {
			t.Errorf("%s has %d rules that approve", name, rules)
		}
	}
}

// valuesSchema is what Helm judges values by.
func valuesSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "examples", "helm", "forewarn", "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// The plain manifests have the settings of the values that they are rendered from, and the runbook of the chart. Helm itself
// renders and compares them in .ci/full.
func TestPlainManifestsHaveWhatTheChartHas(t *testing.T) {
	for file, from := range map[string]struct{ values, part, key string }{
		"kubernetes/forewarn.yaml": {"values/nodes.yaml", "nodes", "forewarn.yaml"},
		"kubernetes/relay.yaml":    {"values/relay.yaml", "relay", "relay.yaml"},
		"kubernetes/drain.yaml":    {"values/drain.yaml", "nodes", "forewarn.yaml"},
	} {
		at, _ := manifest(t, file)
		want, _ := chartOf(t, from.values).part(t, from.part)
		got, err := yaml.YAMLToJSON([]byte(fmt.Sprint(at("ConfigMap", "data", from.key))))
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := yaml.YAMLToJSON([]byte(want))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(sortedJSON(t, got), sortedJSON(t, wanted)) {
			t.Errorf("%s has the settings %s, examples/helm/%s has %s", file, got, from.values, wanted)
		}
	}
	script := regexp.MustCompile(`(?m)^(.+)$`).ReplaceAllString(strings.TrimSpace(example(t, "helm/forewarn/files/drain-node.sh")), "    $1")
	text := regexp.MustCompile(`(?m)^ +$`).ReplaceAllString(example(t, "kubernetes/drain.yaml"), "")
	if !strings.Contains(text, "  drain-node.sh: |\n"+script+"\n---\n") {
		t.Error("kubernetes/drain.yaml has another drain-node.sh than the chart")
	}
}

func sortedJSON(t *testing.T, text []byte) []byte {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The templates use no value that the chart does not have, and each value is used.
func TestTemplatesUseTheValuesOfTheChart(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "helm", "forewarn", "templates", "*"))
	if err != nil || len(files) != 6 {
		t.Fatalf("the templates are %v, %v", files, err)
	}
	var text strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(content)
	}
	values := chartOf(t, "forewarn/values.yaml")
	known := map[string]bool{}
	for _, part := range slices.Sorted(maps.Keys(values)) {
		known["."+part] = true
		keys, _ := values[part].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			known["."+part+"."+key] = true
			if !strings.Contains(text.String(), "."+key) {
				t.Errorf("no template uses %s.%s", part, key)
			}
		}
	}
	for _, m := range regexp.MustCompile(`\.Values((\.\w+)+)`).FindAllStringSubmatch(text.String(), -1) {
		if !known[m[1]] {
			t.Errorf("the chart has no value %s", m[1])
		}
	}
}
