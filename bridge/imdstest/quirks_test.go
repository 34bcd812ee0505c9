package imdstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every captured document can be served to the byte, through the control API, with its own number as its ETag; asking
// with that answers 304. One that was printed without its number has no ETag.
func TestEveryCaptureCanBeServed(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "f*.json"))
	if err != nil || len(files) != 18 {
		t.Fatalf("%d captures, %v, want 18", len(files), err)
	}
	etags := map[string]string{
		"f01-reboot-user-flatcar-3": "4", "f03-aks-vmss-1": "208", "f04-freeze-started-spot": "2",
		"f08-preempt-2020-07-01": "1", "f10-two-reboots-six-fields": "192", "f12-reboot-user-event": "",
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{})
		if resp := control(s, "PUT", "/document", string(data)); resp.StatusCode != 204 {
			t.Fatalf("%s: %d %s", file, resp.StatusCode, text(resp))
		}
		for _, version := range versions {
			if got := document(s, version); got != string(data) {
				t.Errorf("%s in %s:\ngot  %s\nwant %s", file, version, got, data)
			}
		}
		etag := ask(s, "GET", eventsURL, "").Header.Get("ETag")
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if want, known := etags[name]; known && etag != want {
			t.Errorf("%s: ETag %q, want %q", name, etag, want)
		}
		want := 304
		if strings.HasPrefix(name, "f12") {
			want = 200
		}
		if resp := ask(s, "GET", eventsURL, "", "If-None-Match", etag); resp.StatusCode != want {
			t.Errorf("%s: %d for its own ETag %q, want %d", name, resp.StatusCode, etag, want)
		}
	}
}
