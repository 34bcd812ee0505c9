package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A witness stands before the endpoint, and looks at each approval whether the outbox's file has it on record.
type witness struct {
	*httptest.Server
	box string // the outbox's file

	mu         sync.Mutex
	posts      int
	unrecorded []string // what the file had instead
}

func newWitness(t *testing.T, azure, box string) *witness {
	t.Helper()
	target, err := url.Parse(azure)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{box: box}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.look(t.TempDir())
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// look reads a copy of the file, as the program would after a kill -9 at this moment.
func (w *witness) look(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.posts++
	why := "cannot be read"
	for range 5 { // a copy that is made while the file is written may not be whole
		content, err := os.ReadFile(w.box)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "outbox.db"), content, 0o600)
		}
		var box *outbox.Outbox
		if err == nil {
			box, err = outbox.OpenReadOnly(dir)
		}
		if err != nil {
			why = err.Error()
			time.Sleep(50 * time.Millisecond)
			continue
		}
		var state struct {
			Approval struct{ Attempts int }
		}
		group := box.Groups()[killedEvent]
		_ = box.Close()
		if json.Unmarshal(group.State, &state) == nil && state.Approval.Attempts > 0 {
			return
		}
		why = string(group.State)
		time.Sleep(50 * time.Millisecond)
	}
	w.unrecorded = append(w.unrecorded, why)
}

// mountSmall mounts a file system of a megabyte.
func mountSmall(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); errors.Is(err, syscall.EPERM) {
		t.Skip("only root may mount a small disk; CI runs this as root")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fillDisk takes what is left of a disk but for some bytes.
func fillDisk(t *testing.T, dir string, left int64) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(bytes.Repeat([]byte("x"), 4<<10))
	}
	if info, _ := f.Stat(); errors.Is(err, syscall.ENOSPC) && info.Size() > left {
		err = f.Truncate(info.Size() - left)
	}
	if err != nil {
		t.Error(err)
	}
}

// A disk that fills up, and a kill -9 while it is full, lead to no approval of which the file has no record: not by the
// run that finds the disk full, and not by the one that starts on the full disk.
func TestAnApprovalOnAFullDiskIsOnRecordBeforeItIsSent(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	var all sync.WaitGroup
	posts := make(chan int, 1000)
	rounds := fromEnv(t, "FOREWARN_KILL_ROUNDS", 8)
	turns := make(chan struct{}, 6) // that run at a time
	for round := range rounds {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			t.Run(fmt.Sprint("round ", round), func(t *testing.T) { posts <- approveOnFullDisk(t, uint64(round)) })
		})
	}
	all.Wait()
	close(posts)
	sent := 0
	for n := range posts {
		sent += n
	}
	t.Logf("in %d rounds %d approvals were sent", rounds, sent) // the others waited, or were never decided
}

func approveOnFullDisk(t *testing.T, seed uint64) (posts int) {
	r := rand.New(rand.NewPCG(seed, 0))
	within := func(most time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(most)))) } // of a real program's time
	k := newKilling(t)
	mountSmall(t, k.path("state"))
	w := newWitness(t, k.azure.URL, filepath.Join(k.path("state"), "outbox.db"))
	k.endpoint = w.URL
	k.settings("approve:\n  - {only: {types: [Reboot], sources: [User]}, after: [drain], wait: 500ms}\n")
	if err := k.hook.answer("503"); err != nil {
		t.Fatal(err)
	}
	k.start()
	k.until("the first answer", func() bool { return documents(k.azure.Requests()) > 1 })
	left := int64(r.IntN(3)*r.IntN(20)) << 12
	fills := r.IntN(4)
	others := func() { // so that the file needs all its pages, and more
		for n := range r.IntN(3) * 30 {
			k.azure.Schedule(imdstest.Event{ID: eventID(fmt.Sprint("other ", n, time.Now())), Type: "Freeze",
				Resources: []string{"vm-1"}, NotBefore: time.Now().Add(time.Hour)})
		}
	}
	if fills == 0 {
		fillDisk(t, k.path("state"), left)
	}
	k.azure.Schedule(imdstest.Event{ID: killedEvent, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
		NotBefore: time.Now().Add(time.Hour)})
	if fills == 1 {
		within(300 * time.Millisecond)
		fillDisk(t, k.path("state"), left)
	}
	if r.IntN(2) == 0 {
		k.until("an attempt at the drain", func() bool { return len(k.hook.seen()) > 0 })
	}
	if fills == 2 {
		fillDisk(t, k.path("state"), left)
	}
	others()
	k.up()
	within(3 * time.Second)
	if fills == 3 {
		fillDisk(t, k.path("state"), left)
	}
	for range 1 + r.IntN(3) {
		k.kill()
		if r.IntN(2) == 0 {
			fillDisk(t, k.path("state"), int64(r.IntN(3))<<12)
		}
		others()
		k.start()
		within(5 * time.Second)
	}
	k.kill()
	full := 0
	for n := range k.restarts {
		full += strings.Count(k.text(k.path(fmt.Sprint("log", n+1))), "the outbox cannot be written")
	}
	t.Logf("the outbox could not be written %d times; %d approvals were sent", full, w.posts)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, was := range w.unrecorded {
		t.Errorf("an approval was sent of which the file had no record, but: %s", was)
	}
	return w.posts
}
