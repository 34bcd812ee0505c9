package settings

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"forewarn/sinks"
)

// Every key that names a file is relative to the settings file, whatever kind of sink has it.
func TestEveryKeyOfAPathIsRelativeToTheFile(t *testing.T) {
	structs := map[string]reflect.Type{
		"settings": reflect.TypeFor[Settings](), "value": reflect.TypeFor[sinks.Value](),
	}
	for name, kind := range sinks.Kinds() {
		_, _ = kind.Open(func(to any) error {
			structs[name] = reflect.TypeOf(to).Elem()
			return errors.ErrUnsupported
		}, sinks.Host{})
	}
	paths := 0
	var walk func(at string, of reflect.Type)
	walk = func(at string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer:
			walk(at, of.Elem())
		case reflect.Struct:
			for f := range of.Fields() {
				key, named := f.Tag.Lookup("yaml")
				if !named {
					continue
				}
				walk(at+"."+key, f.Type)
				want := reflect.TypeFor[sinks.Path]()
				switch last := key[strings.LastIndex(key, "_")+1:]; {
				case last == "command":
					want = reflect.TypeFor[sinks.Program]()
				case last != "file" && key != "path" && key != "dir" && key != "state" && key != "control":
					continue
				case f.Type.Kind() == reflect.Struct:
					continue
				}
				paths++
				if f.Type != want {
					t.Errorf("%s.%s is a %v, want a %v", at, key, f.Type, want)
				}
			}
		}
	}
	for name, of := range structs {
		walk(name, of)
	}
	if paths < 25 {
		t.Errorf("%d keys that name files were found, want at least 25", paths)
	}
}

// A relative path means the same file wherever the program stands, also in a broken file.
func TestARelativePathIsRelativeToTheSettingsFile(t *testing.T) {
	dir := t.TempDir()
	etc := filepath.Join(dir, "etc")
	for name, text := range map[string]string{
		"etc/forewarn.yaml": "state: ../lib\ncontrol: run/control.sock\nsinks:\n" +
			"- name: hook\n  webhook: {url: 'https://hooks.test/', bearer_file: sec/token, body_text_file: body.txt," +
			" content_type: text/plain, headers: {X-Key: {file: sec/token}}, tls: {ca_file: sec/missing.pem}}\n",
		"etc/sec/token": "token", "etc/body.txt": "{{.id}}",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	l := Loader{Kinds: sinks.Kinds(), Host: sinks.Host{Getenv: os.Getenv}, Defaults: Defaults{State: "/var/lib/forewarn"}}
	const file = "etc/forewarn.yaml"
	_, err := l.Load(file)
	missing := filepath.Join(etc, "sec", "missing.pem")
	if got := err.Error(); strings.Count(got, "\n") > 0 || !strings.Contains(got, missing) {
		t.Errorf("the settings give %q, want nothing but %s missing", got, missing)
	}
	s, err := l.Salvage(file, err)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(s.State), filepath.Join(dir, "lib"); got != want {
		t.Errorf("state is %s, want %s", got, want)
	}
	if got, want := string(s.Control), filepath.Join(etc, "run", "control.sock"); got != want {
		t.Errorf("control is %s, want %s", got, want)
	}
}
