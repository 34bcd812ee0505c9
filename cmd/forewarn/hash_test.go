package main

import (
	"os"
	"strings"
	"testing"
)

// Anybody may see the hash of the settings, so it depends on no secret, which could otherwise be guessed from it. It
// depends on everything else that matters.
func TestHashOfSettingsIgnoresSecrets(t *testing.T) {
	files := typoFiles(t)
	w := newTypist(t)
	hash := func(text string) string {
		t.Helper()
		if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := w.p.settings(w.p.log())
		if err != nil {
			t.Fatal(err)
		}
		return s.Hash
	}
	for _, text := range files {
		if was, now := hash(text), hash(strings.ReplaceAll(text, marker, "dolphin")); now != was || len(was) != 12 {
			t.Errorf("with other secrets the hash is %s, want %s still, of:\n%s", now, was, text)
		}
	}
	const text = "state: s\nsinks:\n- {name: a, only: {types: [Reboot, Freeze]}, late: drop, webhook: {url: 'https://a.example/', mode: binary, headers: {X: y}}}\n"
	was := hash(text)
	for _, change := range [][2]string{
		{"name: a", "name: b"}, {"state: s", "state: t"}, {"Reboot, Freeze", "Freeze, Reboot"}, {"drop", "send"},
		{", mode: binary", ""}, {"binary", "structured"},
		{"X: y", "Z: y"},
	} {
		if now := hash(strings.Replace(text, change[0], change[1], 1)); now == was {
			t.Errorf("with %s instead of %s the hash is the same, want another", change[1], change[0])
		}
	}
	for _, same := range []string{
		"# Who is told.\n" + strings.Replace(text, "binary", `"binary"`, 1),
		"state: s\nsinks:\n- late: drop\n  webhook: {headers: {X: y}, mode: binary, url: 'https://a.example/'}\n  only: {types: [Reboot, Freeze]}\n  name: a\n",
	} {
		if now := hash(same); now != was {
			t.Errorf("the hash is %s, want %s still, of the same settings in other words:\n%s", now, was, same)
		}
	}
}
