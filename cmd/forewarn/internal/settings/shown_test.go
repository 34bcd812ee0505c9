package settings

import "testing"

// A value is shown only if its key is known and not secret. A value that was not decoded is not shown.
func TestUncheckedValueIsNotShown(t *testing.T) {
	doc := &document{text: "key: value\n"}
	for _, tt := range []struct{ open, secret, want bool }{{false, false, false}, {true, true, false},
		{true, false, true}} {
		n := &node{pos: pos{line: 1, column: 6}, kind: aText, text: "value", open: tt.open, secret: tt.secret}
		if got := doc.showable(n); got != tt.want {
			t.Errorf("open %v, secret %v: shown is %v, want %v", tt.open, tt.secret, got, tt.want)
		}
	}
}
