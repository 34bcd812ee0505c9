// Manifests checks Kubernetes manifests against the types of the API itself: an unknown field, a key given twice or a
// value of another type is an error. It cannot know what a cluster says beyond that (defaults, admission).
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

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
		object, ok := map[string]any{
			"v1 Namespace": new(core.Namespace), "v1 ServiceAccount": new(core.ServiceAccount),
			"v1 ConfigMap": new(core.ConfigMap), "v1 Secret": new(core.Secret),
			"apps/v1 DaemonSet": new(apps.DaemonSet), "apps/v1 Deployment": new(apps.Deployment),
		}[kind.APIVersion+" "+kind.Kind]
		if !ok {
			return n, fmt.Errorf("%s %s is not among the kinds that are known here; add it", kind.APIVersion, kind.Kind)
		}
		if err := strict.UnmarshalStrict(document, object); err != nil {
			return n, fmt.Errorf("%s: %w", kind.Kind, err)
		}
		n++
	}
	if n == 0 {
		return 0, errors.New("no objects")
	}
	return n, nil
}
