package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// The statement is in-toto's (https://in-toto.io/Statement/v1), what it says is SLSA's provenance
// (https://slsa.dev/spec/v1.0/provenance).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// A resource is a file that was built, or what it was built from.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// writeProvenance says of the files in a list of sha256sum that .ci/release built them from the commit. Whoever signs it
// is the builder.
func writeProvenance(w io.Writer, version, commit, goVersion, sums string) error {
	list, err := os.ReadFile(sums)
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for line := range strings.Lines(string(list)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok {
			return fmt.Errorf("%s: %q is no line of sha256sum", sums, line)
		}
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	build := &s.Predicate.BuildDefinition
	build.BuildType = "urn:forewarn:ci/release"
	build.ExternalParameters = map[string]string{"version": version}
	build.ResolvedDependencies = []resource{
		{Name: "forewarn", URI: "git+urn:forewarn@refs/tags/" + version, Digest: map[string]string{"gitCommit": commit}},
		{Name: "go", URI: "pkg:golang/std@" + strings.TrimPrefix(goVersion, "go")},
	}
	s.Predicate.RunDetails.Builder.ID = "urn:forewarn:maintainer"
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}
