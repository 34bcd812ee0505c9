package sinks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// hostOf returns an address of this machine that is the test's own, so that nobody takes the port of a server that is
// gone or away: all others listen at 127.0.0.1.
func hostOf(t *testing.T) string {
	t.Helper()
	sum := sha256.Sum256(fmt.Append(nil, os.Getpid(), t.Name()))
	host := fmt.Sprintf("127.%d.%d.%d", 1+sum[0]%200, sum[1], 1+sum[2]%200)
	l, err := net.Listen("tcp", host+":0")
	if err != nil { // on a system with one such address only
		return "127.0.0.1"
	}
	l.Close()
	return host
}

// ports counts those that freePort gave away.
var ports atomic.Uint32

// freePort returns a port to listen on later, so none of those that systems give to connections: it would be taken by
// then. It gives no port twice.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(25000 + (os.Getpid()*50+int(ports.Add(1)))%5000)
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

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
