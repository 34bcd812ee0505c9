package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/sinks"
)

// marker is in every secret of the files in testdata/typos, and often enough that a typo inside a secret leaves some of
// them whole.
const marker = "hunter2"

// A settings file with a typo, wherever it is, shows no secret: not in what check prints, as text or as JSON, and not in
// the log, on the page, in status.json or in the metrics of a run that reads it again.
func TestNoTypoShowsASecret(t *testing.T) {
	rounds := 400 // .ci/run has more of them
	if s := os.Getenv("FOREWARN_TYPOS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	files := typoFiles(t)
	w := newTypist(t)
	for _, text := range files { // without a typo they are right
		if said := w.says(text); strings.Contains(said["check"], "forewarn: ") {
			t.Errorf("the settings are not right: %s", said["check"])
		}
	}
	for _, once := range [][2]string{ // showed a secret
		{"mode: binary, bearer", "mode: binary bearer"},
	} {
		for _, text := range files {
			w.mustNotShow(t, strings.Replace(text, once[0], once[1], 1))
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range rounds {
		w.mustNotShow(t, typo(files[i%len(files)], random))
	}
}

// Every secret key of every kind of sink stands in the files that typos are made in.
func TestTyposAreMadeInEverySecret(t *testing.T) {
	all := strings.Join(typoFiles(t), "\n")
	var walk func(kind string, typ reflect.Type)
	walk = func(kind string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for f := range typ.Fields() {
			key := f.Tag.Get("yaml")
			switch f.Type {
			case reflect.TypeFor[sinks.Secret](), reflect.TypeFor[map[string]sinks.Value](), reflect.TypeFor[[]sinks.Value]():
				if !strings.Contains(all, key+":") && !strings.Contains(all, key+`":`) {
					t.Errorf("no file has the key %s of %s", key, kind)
				}
			default:
				walk(kind, f.Type)
			}
		}
	}
	for name, kind := range sinks.Kinds {
		_, err := kind.Open(func(to any) error {
			walk(name, reflect.TypeOf(to))
			return context.Canceled
		}, sinks.Host{})
		if err == nil {
			t.Errorf("%s opens without settings", name)
		}
	}
}

// FuzzTypos makes typos of the fuzzer's choice.
func FuzzTypos(f *testing.F) {
	files := typoFiles(f)
	w := newTypist(f)
	for i := range files {
		f.Add(uint8(i), uint64(i), uint64(0))
	}
	f.Fuzz(func(t *testing.T, file uint8, a, b uint64) {
		w.mustNotShow(t, typo(files[int(file)%len(files)], rand.New(rand.NewPCG(a, b))))
	})
}

// typoFiles are the files of testdata/typos with secrets in them.
func typoFiles(t testing.TB) (texts []string) {
	t.Helper()
	names, err := filepath.Glob("testdata/typos/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("Glob = %v, %v, want files", names, err)
	}
	secret := strings.Repeat(marker, 3)
	key := strings.Repeat(marker, 4) + "hunt" // which is base64 of 24 bytes
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, strings.NewReplacer("SECRET", secret, "KEY\n", key+"\n", "whsec_KEY", "whsec_"+key).Replace(string(text)))
	}
	return texts
}

// typo is the text with one slip of a hand in it: a character, a line or an indentation that is missing, doubled, wrong
// or in the place of another.
func typo(text string, r *rand.Rand) string {
	lines := strings.SplitAfter(text, "\n")
	at, line := r.IntN(len(text)-1), r.IntN(len(lines)-2)
	const signs = ":,'\"{}[]|>&*#-!?%@\\ \t\nx0"
	sign := string(signs[r.IntN(len(signs))])
	switch r.IntN(10) {
	case 0, 1: // a character is missing
		return text[:at] + text[at+1:]
	case 2, 3: // one too many
		return text[:at] + sign + text[at:]
	case 4: // a wrong one
		return text[:at] + sign + text[at+1:]
	case 5: // two changed places
		return text[:at] + text[at+1:at+2] + text[at:at+1] + text[at+2:]
	case 6: // a line is missing
		lines = slices.Delete(slices.Clone(lines), line, line+1)
	case 7: // two lines changed places, or one was pasted twice
		lines = slices.Clone(lines)
		if lines[line], lines[line+1] = lines[line+1], lines[line]; r.IntN(2) == 0 {
			lines[line+1] = lines[line]
		}
	case 8: // a line slipped to the right or to the left
		lines = slices.Clone(lines)
		if n := 1 + r.IntN(4); r.IntN(2) == 0 {
			lines[line] = strings.Repeat(" ", n) + lines[line]
		} else {
			lines[line] = strings.Replace(lines[line], strings.Repeat(" ", n), "", 1)
		}
	case 9: // two lines became one
		lines = slices.Clone(lines)
		lines[line] = strings.TrimSuffix(lines[line], "\n") + " "
	}
	return strings.Join(lines, "")
}

// A typist hands settings to the program and hears what it says of them.
type typist struct {
	t    testing.TB
	path string
	said map[string]bool // what check has said, without places; what was said once is not looked at again
	p    *program
	b    *bridge.Bridge
	old  *settings
	log  *bytes.Buffer
	page http.Handler
}

func newTypist(t testing.TB) *typist {
	dir := t.TempDir()
	w := &typist{t: t, path: filepath.Join(dir, "forewarn.yaml"), said: map[string]bool{}, log: new(bytes.Buffer)}
	w.p = &program{config: w.path, logLevel: "debug", world: world{
		getenv: func(string) string { return "" }, defaults: linuxDefaults, out: new(bytes.Buffer), err: w.log,
	}}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	box, err := outbox.Open(filepath.Join(dir, "outbox"), outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { box.Close() })
	if w.old, err = w.p.loader(log).parse("", []byte("state: state\n"+builtin)); err != nil {
		t.Fatal(err)
	}
	w.b = bridge.New(w.p.bridgeOptions(w.old, box, log))
	w.page = page(w.b, newMetrics().handler(w.b.Status), "127.0.0.1:8169")
	return w
}

// mustNotShow fails the test when anything that is said of the settings holds a part of a secret.
func (w *typist) mustNotShow(t *testing.T, text string) {
	t.Helper()
	for where, said := range w.says(text) {
		if i := strings.Index(strings.ToLower(said), marker); i >= 0 {
			t.Errorf("%s shows a secret: …%s…\nthe settings:\n%s", where, said[max(0, i-200):min(len(said), i+100)], text)
		}
	}
}

// says is what the program says of the settings, by where it says it.
func (w *typist) says(text string) map[string]string {
	if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{"check": w.command("check")}
	known := strings.TrimLeft(strings.TrimPrefix(all["check"], "forewarn: "+w.path), ":0123456789 ")
	if w.said[known] {
		return all
	}
	w.said[known] = true
	if !strings.HasPrefix(all["check"], "forewarn: ") {
		all["check -o json"], all["render"] = w.command("check", "-o", "json"), w.command("render")
	}
	w.log.Reset()
	log := slog.New(slog.NewTextHandler(w.log, nil))
	if _, err := w.p.loader(log).load(w.path); err != nil { // right ones would be taken by a bridge that runs, and here none does
		w.p.reload(w.b, w.old, log)
	}
	all["the log"] = w.log.String()
	for _, path := range []string{"/", "/status.json", "/metrics"} {
		got := httptest.NewRecorder()
		w.page.ServeHTTP(got, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8169"+path, nil))
		all[path] = fmt.Sprint(got.Code, got.Body)
	}
	return all
}

// command is what a command prints.
func (w *typist) command(args ...string) string {
	var out bytes.Buffer
	run(context.Background(), world{
		args: append(args, "--config", w.path), out: &out, err: &out,
		getenv: func(string) string { return "" }, defaults: linuxDefaults,
	})
	return out.String()
}
