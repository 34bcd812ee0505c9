package delivery

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Secret files are checked at most every two seconds. Only a change counts: of the content, or that a file appears or
// disappears.
func TestSecretsAreCheckedEveryTwoSeconds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	s := secrets{files: []string{file}}
	nothing := func() error { return nil }
	write := func(text string) func() error {
		return func() error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	for _, step := range []struct {
		claim  string
		do     func() error
		passes time.Duration
		want   bool
	}{
		{"the first look", nothing, 0, false},
		{"it comes, too soon", write("a"), 2*time.Second - 1, false},
		{"it came", nothing, 1, true},
		{"nothing changes", nothing, time.Minute, false},
		{"it changes, too soon", write("ab"), time.Second, false},
		{"it changed", nothing, time.Second, true},
		{"it goes", func() error { return os.Remove(file) }, 2 * time.Second, true},
		{"it is gone", nothing, 2 * time.Second, false},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(step.passes)
		if got := s.changed(now); got != step.want {
			t.Errorf("%s: changed is %v, want %v", step.claim, got, step.want)
		}
	}
}
