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
	for _, step := range []struct {
		claim  string
		do     func() error
		passes time.Duration
		want   bool
	}{
		{"the first look", func() error { return nil }, 0, false},
		{"it comes, too soon", func() error { return os.WriteFile(file, []byte("a"), 0o600) }, 2*time.Second - 1, false},
		{"it came", func() error { return nil }, 1, true},
		{"nothing changes", func() error { return nil }, time.Minute, false},
		{"it changes, too soon", func() error { return os.WriteFile(file, []byte("ab"), 0o600) }, time.Second, false},
		{"it changed", func() error { return nil }, time.Second, true},
		{"it goes", func() error { return os.Remove(file) }, 2 * time.Second, true},
		{"it is gone", func() error { return nil }, 2 * time.Second, false},
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
