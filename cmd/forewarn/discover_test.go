package main

import (
	"slices"
	"testing"
)

// An address that Azure's own program left in the environment is tried at both ports. An invalid one is ignored.
func TestAddressInTheEnvironmentIsTried(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  []string
	}{
		{"168.63.129.16", []string{"http://168.63.129.16", "http://168.63.129.16:8080"}},
		{"", nil},
		{"fe80::1", nil},
		{"http://168.63.129.16", nil},
		{"example.com", nil},
	} {
		p := &program{environment: environment{getenv: func(name string) string { return map[string]string{"SCHEDULEDEVENTSIP": tt.value}[name] }}}
		if got := p.search().Stored; !slices.Equal(got, tt.want) {
			t.Errorf("with %q it tries %q, want %q", tt.value, got, tt.want)
		}
	}
}
