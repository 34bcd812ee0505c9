package wording

import "testing"

// A slip of the hand is understood, anything else gets all that is known, and nothing at all may be known.
func TestSuggestion(t *testing.T) {
	for _, tt := range []struct {
		word  string
		known []string
		want  string
	}{
		{"chanel", []string{"text", "channel"}, `did you mean "channel"?`},
		{"Bridge", []string{"bridge", "late"}, `did you mean "bridge"?`},
		{"colour", []string{"text", "channel"}, "expected one of text, channel"},
		{"colour", nil, "expected no name here"},
	} {
		if got := Suggestion(tt.word, tt.known); got != tt.want {
			t.Errorf("Suggestion(%q, %q) = %q, want %q", tt.word, tt.known, got, tt.want)
		}
	}
}
