// Manifests checks Kubernetes manifests against the types of the API itself: an unknown field, a key given twice or a
// value of another type is an error. It cannot know what a cluster says beyond that (defaults, admission). Of PodMonitor,
// which is not of Kubernetes itself, it knows the few fields that are used here.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

// kinds has a new object of each kind that is known.
var kinds = map[string]func() any{
	"v1 Namespace":                                    func() any { return new(core.Namespace) },
	"v1 ServiceAccount":                               func() any { return new(core.ServiceAccount) },
	"v1 ConfigMap":                                    func() any { return new(core.ConfigMap) },
	"v1 Secret":                                       func() any { return new(core.Secret) },
	"apps/v1 DaemonSet":                               func() any { return new(apps.DaemonSet) },
	"apps/v1 Deployment":                              func() any { return new(apps.Deployment) },
	"networking.k8s.io/v1 NetworkPolicy":              func() any { return new(networking.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":                   func() any { return new(policy.PodDisruptionBudget) },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return new(rbac.ClusterRole) },
	"monitoring.coreos.com/v1 PodMonitor":             func() any { return new(podMonitor) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return new(rbac.ClusterRoleBinding) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy": func() any {
		return new(admission.ValidatingAdmissionPolicy)
	},
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": func() any {
		return new(admission.ValidatingAdmissionPolicyBinding)
	},
}

// podMonitor is what the Prometheus operator reads, as far as it is used here.
type podMonitor struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector            meta.LabelSelector `json:"selector"`
		PodMetricsEndpoints []struct {
			Port        string `json:"port"`
			Interval    string `json:"interval"`
			Relabelings []struct {
				Action      string `json:"action"`
				Replacement string `json:"replacement"`
				TargetLabel string `json:"targetLabel"`
			} `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: manifests FILE...")
		os.Exit(2)
	}
	for _, file := range os.Args[1:] {
		n, err := check(file)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			os.Exit(1)
		}
		fmt.Printf("%s: %d objects fit the types of the API\n", file, n)
	}
}

// check decodes every document of a file.
func check(file string) (n int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer documents.Close()
	buffer := make([]byte, len(text)+1)
	for {
		size, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return n, err
		}
		document := buffer[:size]
		var kind struct{ APIVersion, Kind string }
		if err := strict.Unmarshal(document, &kind); err != nil {
			return n, err
		}
		if kind.Kind == "" {
			continue // nothing but comments
		}
		made, ok := kinds[kind.APIVersion+" "+kind.Kind]
		if !ok {
			return n, fmt.Errorf("%s %s is not among the kinds that are known here; add it", kind.APIVersion, kind.Kind)
		}
		if err := strict.UnmarshalStrict(document, made()); err != nil {
			return n, fmt.Errorf("%s: %w", kind.Kind, err)
		}
		n++
	}
	if n == 0 {
		return 0, errors.New("no objects")
	}
	return n, nil
}
