package sinks

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// monday is a Monday at noon.
var monday = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.ReplaceAll(string(want), "\r\n", "\n"); text != got {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, text)
	}
}

// writeFile writes a file into a directory of the test, and gives its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A recorder is a destination over HTTP that keeps the requests it gets.
type recorder struct {
	mu       sync.Mutex
	requests []recorded
}

type recorded struct {
	*http.Request
	body string
}

func (r *recorder) keep(req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := req.Clone(context.Background()) // the server is not done with its own
	mine.Body = io.NopCloser(bytes.NewReader(body))
	r.requests = append(r.requests, recorded{mine, string(body)})
}

func (r *recorder) all() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.keep(req) }

// serve starts a server that ends with the test.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}
