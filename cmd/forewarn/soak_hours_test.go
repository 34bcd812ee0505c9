package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
)

// configure writes the settings of an hour: the same as before, without a sink, with it under another name, and with it
// back; and each time round with other values.
func (s *soak) configure(hour int) {
	s.t.Helper()
	extra := []string{"extra", "", "renamed", "extra"}[hour%4]
	round := hour / 4
	var b strings.Builder
	fmt.Fprintf(&b, "imds: {interval: %v}\nstate: %q\ntimezone: %s\nsinks:\n", soakPolls, filepath.Join(s.dir, "state"),
		[]string{"UTC", "Europe/Berlin", "America/New_York"}[round%3])
	fmt.Fprintf(&b, "  - {name: hook, only: {vms: all}, webhook: {url: http://hook/%d, proxy: none}}\n", round)
	fmt.Fprintf(&b,
		"  - {name: chat, only: {vms: all}, bridge: all, remind: [10m], slack: {token: %s, channel: C024BE91L, api_url: http://chat/api/, insecure: true, proxy: none}}\n", chatToken)
	fmt.Fprintf(&b,
		"  - {name: post, only: {vms: all}, late: send, remind: [10m], email: {host: post, port: 25, helo: vm-0, tls: {mode: none}, "+
			"from: azure@example.com, to: [ops@example.com]}}\n")
	fmt.Fprintf(&b, "  - {name: stream, only: {vms: all}, nats: {url: nats://stream:4222}}\n")
	fmt.Fprintf(&b, "  - {name: audit, only: {vms: all}, bridge: all, heartbeat: 15m, file: {path: %q}}\n",
		filepath.Join(s.dir, "audit.jsonl"))
	fmt.Fprintf(&b, "  - {name: recent, only: {vms: all}, file: {path: %q, max_size: 64KiB, keep: 3}}\n",
		filepath.Join(s.dir, "recent.jsonl"))
	if runtime.GOOS != "windows" {
		b.WriteString("  - {name: command, only: {vms: all, types: [Redeploy], changes: [scheduled]}, exec: {command: [/bin/sh, -c, cat >/dev/null]}}\n")
	}
	if extra != "" {
		fmt.Fprintf(&b, "  - {name: %s, only: {vms: all}, webhook: {url: http://extra/, proxy: none}}\n", extra)
	}
	if hour%24 == 7 {
		b.WriteString("approve:\n  - {only: {types: [Reboot], sources: [User]}, after: [hook]}\n")
	}
	s.write(b.String())
}

// soakDir is a directory in memory where there is one, because two days make thousands of commits to the disk.
func soakDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "forewarn")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *soak) write(settings string) {
	s.t.Helper()
	if err := os.WriteFile(s.p.config, []byte(settings), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// reload does what SIGHUP does, and wants these settings taken or refused.
func (s *soak) reload(taken bool) {
	s.t.Helper()
	s.p.reloaderOf(s.bridge, s.started, s.p.log()).reload(s.t.Context(), "the soak")
	if err := s.bridge.Status().Settings.LastError; (err == "") != taken {
		s.t.Errorf("the settings are taken: %t, want %t: %s", err == "", taken, err)
	}
}

// hour is one hour in the life of the machine. Each fourth ends with nothing pending and everything quiet for minutes.
func (s *soak) hour(h int) {
	s.t.Helper()
	began := time.Now()
	steps := map[time.Duration][]func(){}
	at := func(minute float64, do func()) {
		after := time.Duration(minute * float64(time.Minute))
		steps[after] = append(steps[after], do)
	}
	at(0, func() { s.configure(h); s.reload(true) })
	at(50, func() { // a mistake changes nothing
		s.write("sinks: [{nmae: wrong}]\n")
		s.reload(false)
		s.configure(h)
		s.reload(true)
	})
	at(1, s.read)

	for i := range 2 {
		typ := []string{"Redeploy", "Preempt", "Reboot", "Freeze", "Novelty", "Terminate"}[(h*2+i)%6]
		late, id := float64(i)*0.7, s.event()
		e := imdstest.Event{ID: id, Type: typ, NotBefore: time.Now().Add(40 * time.Minute),
			Description: "Host server is undergoing maintenance."}
		if typ == "Reboot" {
			e.Source = "User"
		}
		at(3+late, func() { s.azure.Schedule(e); s.happens(id, "scheduled") })
		if i%2 == 1 {
			at(6+late, func() { s.move(id) })
		}
		if h%3 > 0 || i == 0 { // else it is called off
			at(10+late, func() { s.azure.Start(id); s.happens(id, "started") })
		}
		at(18+late, func() { s.azure.End(id); s.happens(id, "vanished") })
	}
	if h%8 == 5 { // a wave, of which people get one message
		for i := range 8 {
			id := s.event()
			at(16+float64(i)/60, func() { s.azure.Schedule(imdstest.Event{ID: id, Type: "Freeze"}); s.happens(id, "scheduled") })
			at(24+float64(i)/60, func() { s.azure.Start(id); s.happens(id, "started") })
			at(36, func() { s.azure.End(id); s.happens(id, "vanished") })
		}
	}
	long := eventID(fmt.Sprint("long ", h/4)) // goes on for four hours, and is moved again and again
	switch h % 4 {
	case 0:
		at(2, func() {
			s.azure.Schedule(imdstest.Event{ID: long, Type: "Redeploy", NotBefore: time.Now().Add(6 * time.Hour),
				Resources: []string{"vm-1"}})
			s.happens(long, "scheduled")
		})
	case 3:
		at(10, func() { s.azure.Start(long); s.happens(long, "started") })
		at(35, func() { s.azure.End(long); s.happens(long, "vanished") })
	default:
		at(2, func() { s.move(long) })
	}

	// One destination is out for hours of every four, and each hour another one, for minutes.
	out := s.places[(h/4+2)%len(s.places)]
	switch h % 4 {
	case 0:
		at(7, func() { s.trouble(out, h/4) })
	case 2:
		at(30, func() { s.trouble(out, -1) })
	}
	if place := s.places[h%len(s.places)]; place != out {
		at(6, func() { s.trouble(place, h) })
		at([]float64{10, 25, 45}[h%3], func() { s.trouble(place, -1) })
	}

	at(12, func() {
		s.azure.SetFault(imdstest.Fault{Status: []int{429, 500, 503}[h%3], RetryAfter: "5", For: 2 * time.Minute})
	})
	at(15, func() { s.azure.ResetIncarnation() })
	at(26, func() { s.azure.SetFault(imdstest.Fault{Truncate: 40, For: time.Minute}) })
	at(40, func() {
		if h%8 == 3 { // long enough to be told
			s.azure.SetFault(imdstest.Fault{Status: 500, For: 12 * time.Minute})
		} else {
			s.azure.SetFault(imdstest.Fault{Hang: true, For: 3 * time.Minute})
		}
	})
	for _, after := range slices.Sorted(maps.Keys(steps)) {
		time.Sleep(time.Until(began.Add(after)))
		synctest.Wait()
		for _, do := range steps[after] {
			do()
		}
	}
	time.Sleep(time.Until(began.Add(time.Hour)))
	synctest.Wait()
	if h%4 != 3 {
		return
	}
	st := s.bridge.Status()
	pending := st.Outbox.Pending - orphaned(st)
	if pending+st.Outbox.DeadLetters+len(st.Events) > 0 || !st.Ready {
		s.t.Errorf("after hour %d: ready %t %v, %d deliveries are pending, %d are dead letters, %d events are open; want none",
			h+1, st.Ready, st.Reasons, pending, st.Outbox.DeadLetters, len(st.Events))
	}
}

// orphaned is how many deliveries wait for sinks that are not in the settings now: the ends of events that they were told
// of, in case they return.
func orphaned(st bridge.Status) (n int) {
	for _, k := range st.Sinks {
		if k.State == bridge.SinkOrphaned {
			n += k.Pending
		}
	}
	return n
}

// event is the id of another event.
func (s *soak) event() string { s.events++; return eventID(fmt.Sprint("soak ", s.events)) }

// happens notes a change that every sink has to hear of.
func (s *soak) happens(id, change string) { s.want.note(id + "-" + change) }

func (s *soak) move(id string) {
	s.azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(5 * time.Minute) })
	s.happens(id, "updated")
}

// trouble lets a place fail in the nth way, or no more when n is negative.
func (s *soak) trouble(place string, n int) {
	ways := []string{"refuse", "hang", "error", "lost", "limit", "cut"}
	address := place + ":80"
	switch place {
	case "post":
		address, ways = "post:25", []string{"refuse", "lost"}
	case "stream":
		address, ways = "stream:4222", []string{"refuse", "lost"}
	}
	way := ""
	if n >= 0 {
		way = ways[n%len(ways)]
	}
	s.net.lines[address].set(way)
}

// read is a scrape of the metrics, a look at page and status, and a browser that follows the page for a while.
func (s *soak) read() {
	s.t.Helper()
	for path, says := range map[string]string{"/metrics": "forewarn_polls_total", "/status.json": `"ready"`,
		"/": "</html>", "/healthz": "ok"} {
		if body := s.get(path); !bytes.Contains(body, []byte(says)) {
			s.t.Errorf("%s does not say %q: %.300q", path, says, body)
		}
	}
	go func() {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2500*time.Millisecond)
		defer cancel()
		client := s.client()
		defer client.CloseIdleConnections()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+soakPage+"/events", nil)
		resp, err := client.Do(req)
		if err != nil {
			s.t.Errorf("the page is not followed: %v", err)
			return
		}
		defer resp.Body.Close()
		if n, _ := io.Copy(io.Discard, resp.Body); n == 0 {
			s.t.Error("whoever follows the page gets nothing")
		}
	}()
}

func (s *soak) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.net.dial}}
}

func (s *soak) get(path string) []byte {
	s.t.Helper()
	client := s.client()
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + soakPage + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return body
}
