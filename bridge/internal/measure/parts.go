package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

const mebi = 1 << 20

// size is the binary's, and what each module has of it: the sizes of its symbols.
func (b *bench) size() error {
	sizes := map[string]float64{}
	for _, path := range []string{b.forewarn, b.bare} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		sizes[path] = float64(info.Size()) / 1e6
	}
	b.note("size", "binary", sizes[b.forewarn], "MB", sizes[b.bare])

	full := filepath.Join(b.dir, "with-symbols")
	if err := build("./cmd/forewarn", full, "-ldflags="); err != nil {
		return err
	}
	modules := map[string]string{} // by package
	text, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}",
		"./cmd/forewarn").Output()
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		pkg, module, _ := strings.Cut(strings.TrimSpace(line), " ")
		modules[pkg] = module
	}
	program, err := elf.Open(full)
	if err != nil {
		return err
	}
	defer program.Close()
	symbols, err := program.Symbols()
	if err != nil {
		return err
	}
	of := map[string]float64{}
	for _, s := range symbols {
		if int(s.Section) >= len(program.Sections) || program.Sections[s.Section].Type == elf.SHT_NOBITS {
			continue // not in the file
		}
		dir, base := filepath.Split(strings.TrimPrefix(s.Name, "type:"))
		name, _, _ := strings.Cut(base, ".")
		module, known := modules[strings.ReplaceAll(dir+name, "%2e", ".")]
		switch {
		case !known:
			module = "tables and types"
		case module == "":
			module = "standard library"
		}
		of[module] += float64(s.Size) / 1e6
	}
	for _, m := range slices.SortedFunc(maps.Keys(of), func(x, y string) int { return cmp.Compare(of[y], of[x]) }) {
		if of[m] >= 0.1 {
			b.note("size", "symbols of "+m, of[m], "MB", 0)
		}
	}
	return nil
}

// kinds are sinks as somebody sets them up, with nobody who would take anything.
var kinds = map[string]string{
	"webhook": `webhook: {url: "http://127.0.0.1:9/"}`,
	"nats":    `nats: {url: "nats://127.0.0.1:9"}`,
	"slack":   `slack: {webhook_url: "http://127.0.0.1:9/"}`,
	"email":   `email: {host: 127.0.0.1, port: 9, from: a@example.com, to: [b@example.com]}`,
	"syslog":  `syslog: {url: "udp://127.0.0.1:9"}`,
	"file":    `file: {path: /dev/null}`,
	"exec":    `exec: {command: [/bin/true]}`,
}

// atRest is what programs need that poll once a second and have nothing to tell: all at once, with a minute to settle.
func (b *bench) atRest() error {
	c, err := newCloud()
	if err != nil {
		return err
	}
	defer c.server.Close()
	h, err := newHook()
	if err != nil {
		return err
	}
	defer h.server.Close()
	type row struct {
		what string
		p    *program
		cpu  time.Duration
	}
	var rows []*row
	defer func() {
		for _, r := range rows {
			r.p.stop()
		}
	}()
	begin := func(what, path string, args ...string) error {
		p, err := start(path, args...)
		rows = append(rows, &row{what: what, p: p})
		return err
	}
	if err := begin("", b.bare, c.url, h.url, "1s"); err != nil {
		return err
	}
	var every []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		sink := kinds[kind]
		every = append(every, sink)
		path, err := b.settings("idle-"+kind, c.url, "1s", sink)
		if err != nil {
			return err
		}
		if err := begin("with "+kind, b.forewarn, "run", "--config", path); err != nil {
			return err
		}
	}
	path, err := b.settings("idle-all", c.url, "1s", every...)
	if err != nil {
		return err
	}
	if err := begin("with a sink of every kind", b.forewarn, "run", "--config", path); err != nil {
		return err
	}
	look := func(rows []*row) error {
		time.Sleep(min(b.idle, 10*time.Second))
		for _, r := range rows {
			r.cpu, err = r.p.cpu()
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", r.what, err, r.p.log.Bytes())
			}
		}
		time.Sleep(b.idle)
		return nil
	}
	if err := look(rows); err != nil {
		return err
	}
	var bare [3]float64
	tell := func(r *row) error {
		cpu, err := r.p.cpu()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", r.what, err, r.p.log.Bytes())
		}
		resident, anonymous, err := r.p.memory()
		if err != nil {
			return err
		}
		perMinute := (cpu - r.cpu).Seconds() * 1000 * float64(time.Minute) / float64(b.idle)
		if r.what == "" {
			bare = [3]float64{resident, anonymous, perMinute}
			return nil
		}
		b.note("idle", "RSS "+r.what, resident, "MiB", bare[0])
		b.note("idle", "anonymous memory "+r.what, anonymous, "MiB", bare[1])
		b.note("idle", "CPU "+r.what, perMinute, "ms a minute", bare[2])
		return nil
	}
	slices.SortFunc(rows, func(x, y *row) int { return strings.Compare(x.what, y.what) }) // the bare one is the first
	for _, r := range rows {
		if err := tell(r); err != nil {
			return err
		}
	}
	for _, r := range rows {
		r.p.stop()
	}
	rows = nil
	path, err = b.settings("idle-wave", c.url, "1s", "webhook: {url: "+h.url+"}")
	if err != nil {
		return err
	}
	if err := begin("after a wave of 1,000 events", b.forewarn, "run", "--config", path); err != nil {
		return err
	}
	c.wave(1000)
	if _, err := h.wait(1000); err != nil {
		return err
	}
	if err := look(rows); err != nil {
		return err
	}
	return tell(rows[0])
}

// starts is the time from the start of a program to its first poll, the median of eleven.
func (b *bench) starts() error {
	c, err := newCloud()
	if err != nil {
		return err
	}
	defer c.server.Close()
	median := func(path string, args ...string) (float64, error) {
		var took []float64
		for range 11 {
			before, _ := c.state()
			began := time.Now()
			p, err := start(path, args...)
			if err != nil {
				return 0, err
			}
			for {
				polls, _ := c.state()
				if polls > before {
					break
				}
				if time.Since(began) > patience {
					p.stop()
					return 0, fmt.Errorf("%w\n%s", errSlow, p.log.Bytes())
				}
				time.Sleep(50 * time.Microsecond)
			}
			took = append(took, time.Since(began).Seconds()*1000)
			p.stop()
		}
		slices.Sort(took)
		return took[len(took)/2], nil
	}
	path, err := b.settings("start", c.url, "1s", kinds["webhook"])
	if err != nil {
		return err
	}
	ours, err := median(b.forewarn, "run", "--config", path)
	if err != nil {
		return err
	}
	bare, err := median(b.bare, c.url, "http://127.0.0.1:9/", "1s")
	if err != nil {
		return err
	}
	b.note("start", "start to first poll", ours, "ms", bare)
	return nil
}

// delays is the time from a changed document's answer to the webhook's request. A second row has the state in memory,
// so that the difference is the disk.
func (b *bench) delays() error {
	measure := func(begin func(c *cloud, h *hook) (*program, error)) (p50, p99 float64, err error) {
		c, err := newCloud()
		if err != nil {
			return 0, 0, err
		}
		defer c.server.Close()
		h, err := newHook()
		if err != nil {
			return 0, 0, err
		}
		defer h.server.Close()
		p, err := begin(c, h)
		if err != nil {
			return 0, 0, err
		}
		defer p.stop()
		if err := c.firstPoll(p); err != nil {
			return 0, 0, err
		}
		time.Sleep(500 * time.Millisecond) // what is told at the start
		var took []float64
		for range b.changes {
			n, _ := h.count()
			c.wave(1)
			at, err := h.wait(n + 1)
			if err != nil {
				return 0, 0, fmt.Errorf("%w\n%s", err, p.log.Bytes())
			}
			if _, answered := c.state(); at.After(answered) { // else the next poll came between
				took = append(took, at.Sub(answered).Seconds()*1000)
			}
			time.Sleep(50 * time.Millisecond) // the end of the event before
		}
		slices.Sort(took)
		at := func(q float64) float64 { return took[int(q*float64(len(took)-1))] }
		return at(0.5), at(0.99), nil
	}
	ours := func(name string) func(c *cloud, h *hook) (*program, error) {
		return func(c *cloud, h *hook) (*program, error) {
			path, err := b.settings(name, c.url, "100ms",
				"bridge: none, only: {vms: all, changes: [scheduled]}, webhook: {url: "+h.url+"}")
			if err != nil {
				return nil, err
			}
			return start(b.forewarn, "run", "--config", path)
		}
	}
	bare50, bare99, err := measure(func(c *cloud, h *hook) (*program, error) {
		return start(b.bare, c.url, h.url, "100ms")
	})
	if err != nil {
		return err
	}
	for _, where := range []string{"disk", "memory"} {
		if where == "memory" {
			dir := b.dir
			b.dir, err = os.MkdirTemp("/dev/shm", "measure")
			if err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(b.dir); b.dir = dir }()
		}
		p50, p99, err := measure(ours("delay"))
		if err != nil {
			return err
		}
		b.note("delay", "document to webhook, p50, state on "+where, p50, "ms", bare50)
		b.note("delay", "document to webhook, p99, state on "+where, p99, "ms", bare99)
	}
	return nil
}

const (
	mostPending = 50_000 // that -deliveries takes: half of what an outbox keeps
	perDocument = 10_000 // events that forewarn reads from a document
)

// throughput is how fast deliveries are made that were kept while their destination was away, and settled on disk. Bare
// is a loop with the sink's own library that sends as many messages of the same size, and keeps nothing.
func (b *bench) throughput() error {
	for _, n := range b.deliveries {
		for _, to := range []struct {
			kind string
			run  func(n int) (ours, bare time.Duration, err error)
		}{{"webhook", b.toWebhook}, {"nats", b.toNATS}, {"file", b.toFile}} {
			ours, bare, err := to.run(n)
			if err != nil {
				return fmt.Errorf("%s: %w", to.kind, err)
			}
			b.note("deliveries", fmt.Sprintf("%s, %d pending", to.kind, n), float64(n)/ours.Seconds(), "a second",
				float64(n)/bare.Seconds())
		}
	}
	return nil
}

// drained has n deliveries pending for a destination that takes none, lets a reload send them to the sink, and says how
// long that took until done is true. Several documents announce them, if one may not hold as many.
func (b *bench) drained(name string, n int, sink string, done func() bool) (time.Duration, error) {
	c, err := newCloud()
	if err != nil {
		return 0, err
	}
	defer c.server.Close()
	settings := func(sink string) (path string, err error) {
		return b.settings(fmt.Sprint(name, "-", n), c.url, "1s",
			"bridge: none, only: {vms: all, changes: [scheduled]}, "+sink)
	}
	path, err := settings(kinds["webhook"])
	if err != nil {
		return 0, err
	}
	p, err := start(b.forewarn, "run", "--config", path)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if err := c.firstPoll(p); err != nil {
		return 0, err
	}
	for announced := 0; announced < n; {
		announced += len(c.wave(min(n-announced, perDocument)))
		for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			pending, err := b.pending(path)
			if err != nil {
				return 0, err
			}
			if pending == announced {
				break
			}
			if time.Since(began) > patience {
				return 0, fmt.Errorf("%d of %d are pending: %w\n%.2000s", pending, announced, errSlow, p.log.Bytes())
			}
		}
	}
	if _, err := settings(sink); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return 0, err
	}
	for !done() {
		if time.Since(began) > patience+time.Duration(n)*2*time.Millisecond {
			return 0, fmt.Errorf("%w\n%.2000s", errSlow, p.log.Bytes())
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began), nil
}

// peak is the memory that a wave of 10,000 events for five destinations takes at most, none of which accepts anything:
// until 20 s after the answer with them.
func (b *bench) peak() error {
	c, err := newCloud()
	if err != nil {
		return err
	}
	defer c.server.Close()
	path, err := b.settings("peak", c.url, "1s", slices.Repeat([]string{"only: {vms: all}, " + kinds["webhook"]}, 5)...)
	if err != nil {
		return err
	}
	p, err := start(b.forewarn, "run", "--config", path)
	if err != nil {
		return err
	}
	defer p.stop()
	if err := c.firstPoll(p); err != nil {
		return err
	}
	c.wave(10_000)
	var most, mostAnonymous float64
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(2 * time.Millisecond) {
		resident, anonymous, err := p.memory()
		if err != nil {
			return fmt.Errorf("%w\n%.2000s", err, p.log.Bytes())
		}
		most, mostAnonymous = max(most, resident), max(mostAnonymous, anonymous)
	}
	info, err := os.Stat(filepath.Join(b.dir, "peak-state", "outbox.db"))
	if err != nil {
		return err
	}
	b.note("peak", "RSS with 50,000 pending", most, "MiB", 0)
	b.note("peak", "anonymous memory with 50,000 pending", mostAnonymous, "MiB", 0)
	b.note("peak", "file with 50,000 pending", float64(info.Size())/mebi, "MiB", 0)
	return nil
}

func (b *bench) toWebhook(n int) (ours, bare time.Duration, err error) {
	h, err := newHook()
	if err != nil {
		return 0, 0, err
	}
	defer h.server.Close()
	ours, err = b.drained("webhook", n, "webhook: {url: "+h.url+"}", func() bool {
		have, _ := h.count()
		return have >= n
	})
	if err != nil {
		return 0, 0, err
	}
	bodies := h.bodies[:n]
	began := time.Now()
	for _, body := range bodies {
		answer, err := http.Post(h.url, "application/cloudevents+json", bytes.NewReader(body))
		if err != nil {
			return 0, 0, err
		}
		_ = answer.Body.Close()
	}
	return ours, time.Since(began), nil
}

func (b *bench) toNATS(n int) (ours, bare time.Duration, err error) {
	dir, err := os.MkdirTemp(b.dir, "nats")
	if err != nil {
		return 0, 0, err
	}
	s, err := broker(dir)
	if err != nil {
		return 0, 0, err
	}
	defer s.Shutdown()
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		return 0, 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, 0, err
	}
	ctx := context.Background()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "FOREWARN", Subjects: []string{"forewarn.>"},
		AllowDirect: true})
	if err != nil {
		return 0, 0, err
	}
	ours, err = b.drained("nats", n, "nats: {url: \""+s.ClientURL()+"\"}", func() bool {
		info, err := stream.Info(ctx)
		return err == nil && info.State.Msgs >= uint64(n)
	})
	if err != nil {
		return 0, 0, err
	}
	first, err := stream.GetMsg(ctx, 1)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	for i := range n {
		_, err := js.Publish(ctx, fmt.Sprint("forewarn.bare.", i), first.Data, jetstream.WithMsgID(strconv.Itoa(i)))
		if err != nil {
			return 0, 0, err
		}
	}
	return ours, time.Since(began), nil
}

func (b *bench) toFile(n int) (ours, bare time.Duration, err error) {
	path := filepath.Join(b.dir, fmt.Sprint("audit-", n, ".jsonl"))
	audit, err := os.Create(path)
	if err != nil {
		return 0, 0, err
	}
	defer audit.Close()
	var text []byte
	lines, buffer := 0, make([]byte, mebi)
	ours, err = b.drained("file", n, "file: {path: "+path+"}", func() bool {
		more, _ := audit.Read(buffer)
		text = append(text, buffer[:more]...)
		lines += bytes.Count(buffer[:more], []byte("\n"))
		return lines >= n
	})
	if err != nil {
		return 0, 0, err
	}
	f, err := os.Create(path + ".bare")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	began := time.Now()
	for batch := range slices.Chunk(bytes.SplitAfter(text, []byte("\n"))[:n], 100) {
		if _, err := f.Write(bytes.Join(batch, nil)); err != nil {
			return 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
	}
	return ours, time.Since(began), nil
}

// growth is the outbox's file over a simulated year with ten events a month, each of three changes for three sinks.
func (b *bench) growth() error {
	dir := filepath.Join(b.dir, "year")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	o, err := outbox.Open(dir, outbox.Options{})
	if err != nil {
		return err
	}
	defer o.Close()
	routes := []outbox.Route{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	set := o.Update(now, func(tx *outbox.Tx) { tx.Apply(outbox.Batch{Routes: routes}) })
	if err := set(); err != nil {
		return err
	}
	var queues []delivery.Queue
	for _, r := range routes {
		queues = append(queues, o.Queue(r.Name))
	}
	body := fmt.Appendf(nil, `{"specversion":"1.0","id":"x","source":"x","type":"x","data":{"x":%q}}`,
		strings.Repeat("x", 1800))
	for event := range 120 {
		group := fmt.Sprintf("%08d-0000-4000-8000-000000000000", event)
		for _, change := range []string{"scheduled", "started", "vanished"} {
			a := outbox.Addition{Message: delivery.Message{ID: group + "-" + change, Group: group,
				Change: change, Type: "dev.forewarn.scheduledevent." + change}, Body: body}
			for _, r := range routes {
				a.To = append(a.To, r.Name)
			}
			wait := o.Update(now, func(tx *outbox.Tx) {
				a.Seq = tx.Reserve()
				state := &outbox.Group{State: fmt.Appendf(nil, "%q", body[:600]), Latest: a.Seq, CloudEvent: body}
				if change == "vanished" {
					state = nil
				}
				tx.Apply(outbox.Batch{Add: []outbox.Addition{a},
					Groups: map[string]*outbox.Group{group: state},
					Marks:  map[string]outbox.Mark{a.ID: {Times: 1, Group: group, At: now}}})
			})
			if err := wait(); err != nil {
				return err
			}
			for _, q := range queues {
				q.Report(delivery.Report{Now: now, Accepted: q.Changes().Pending,
					Answer: delivery.Answer{Status: "204 No Content"}})
			}
			now = now.Add(time.Hour)
		}
		now = now.Add(73*time.Hour - 3*time.Hour)
		if err := <-o.Maintain(now); err != nil {
			return err
		}
		if event == 29 {
			b.note("growth", "outbox after three months", float64(o.Totals().FileBytes)/mebi, "MiB", 0)
		}
	}
	b.note("growth", "outbox after a year", float64(o.Totals().FileBytes)/mebi, "MiB", 0)
	return nil
}
