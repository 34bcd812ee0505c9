package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// By itself it holds 256 MiB of what is pending, and 64 MiB of dead letters, counted once a delivery.
func TestItHoldsAsManyBytesAsIsWritten(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		var routes []string
		for i := range 64 {
			routes = append(routes, fmt.Sprintf("route-%02d", i))
		}
		big := addition(o, "A", "scheduled", routes...)
		big.Body = bytes.Replace(big.Body, []byte("{}"), []byte(`"`+strings.Repeat("x", 4<<20-len(big.Body))+`"`), 1)
		big.Body = append(big.Body, bytes.Repeat([]byte(" "), 4<<20-len(big.Body))...)
		if err := o.Apply(outbox.Batch{Now: time.Now(), Add: []outbox.Addition{big}}); err != nil {
			t.Fatal(err)
		}
		for more, wantDead := range []int{0, 1, 16, 16} {
			if more > 0 {
				n := []int{0, 1, 15, 1}[more]
				another := addition(o, fmt.Sprint("B", more), "scheduled", routes[:n]...)
				another.Body = big.Body
				if err := o.Apply(outbox.Batch{Now: time.Now(), Add: []outbox.Addition{another}}); err != nil {
					t.Fatal(err)
				}
			}
			if got := o.Totals(); got.Pending != 64 || got.Bytes != 256<<20 || got.Dead != wantDead {
				t.Errorf("%+v, want 64 pending and %d dead", got, wantDead)
			}
		}
	})
}

// While the disk fails, the oldest of the dead letters that no disk has give way to newer ones. Those on disk stay, and
// those that were there once don't count.
func TestDeadLettersOnDiskGiveWayToNone(t *testing.T) {
	options := outbox.Options{Bounds: outbox.Bounds{InMemory: 3}}
	inBubble(t, options, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q := o.Queue("a")
		giveUp := func(groups ...string) {
			t.Helper()
			for _, g := range groups {
				_, _ = add(o, g, "scheduled", "a")
				q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
			}
			time.Sleep(time.Second)
		}
		giveUp("A", "B", "C", "D", "E", "F", "G")
		var keys []string
		for _, dead := range o.List(outbox.Selection{State: outbox.StateDead})[2:] {
			keys = append(keys, dead.Key)
		}
		if _, err := o.Drop(keys, "somebody"); err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.fail = errFull })
		giveUp("H", "I", "J", "K", "L")
		want(t, "dead", deadLetters(o, "a"), "A-scheduled", "B-scheduled", "J-scheduled", "K-scheduled", "L-scheduled")
	})
}

// A replay to a route that is gone from the settings is refused, and an error says whether a delivery is unknown or only
// not dead.
func TestAReplayNeedsARouteAndADeadLetter(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		q := o.Queue("a")
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}, outbox.Route{Name: "b"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		dead := o.List(outbox.Selection{State: outbox.StateDead})[0].Key
		if _, err := o.Replay([]string{dead}, "b"); err == nil || !strings.Contains(err.Error(), "no sink b") {
			t.Errorf("Replay to a route that is gone = %v", err)
		}
		alive := mustAdd(t, o, "B", "scheduled", "a")
		for key, unknown := range map[string]bool{fmt.Sprintf("a/%016d", alive.Seq): false, "a/0000000000000001": true} {
			if _, err := o.Replay([]string{key}, ""); err == nil || errors.Is(err, outbox.ErrUnknownKey) != unknown {
				t.Errorf("Replay(%s) = %v", key, err)
			}
		}
	})
}

// The file is for its owner alone. A small one is left as it is, however little of it is in use, and what can't be kept
// under its name keeps nothing else from the disk.
func TestTheFileIsItsOwnersAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	values := map[string][]byte{"": []byte("nameless"), "big": make([]byte, 8<<20), "kept": []byte("x")}
	for _, v := range []map[string][]byte{values, {"big": nil}} {
		if err := o.Apply(outbox.Batch{Now: time.Now(), Values: v}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(o.Path())
	if err != nil {
		t.Fatal(err)
	}
	if mode := before.Mode().Perm(); mode != 0o600 && filepath.Separator == '/' {
		t.Errorf("the file's mode is %o", mode)
	}
	if err := <-o.Compact(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(o.Path()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was rewritten, or is gone: %v", err)
	}
	o.Close()
	o = open(t, dir, outbox.Options{})
	if got := string(o.Value("kept")); got != "x" {
		t.Errorf("the value beside the one without a name is %q", got)
	}
}

// A disk that begins to hang while the outbox is tidied delays nobody for longer than one that hangs at a write.
func TestADiskThatHangsWhileItIsTidiedDelaysOnce(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q := o.Queue("a")
		mustAdd(t, o, "", "once", "a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending})
		time.Sleep(outbox.KeepHistory + time.Hour)
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		tidied := o.Maintain(time.Now()) // what is so old is to be dropped
		time.Sleep(time.Second)
		began := time.Now()
		if _, err := add(o, "A", "scheduled", "a"); err == nil {
			t.Error("it is said to be on disk")
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a change waited %v", took)
		}
		if _, err := add(o, "B", "scheduled", "a"); err == nil || time.Since(began) > 6*time.Second {
			t.Errorf("the next waited too, until %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
		d.set(func() { d.hang = nil })
		close(hang)
		if err := <-tidied; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v when the disk is back", err)
		}
		if n := o.Totals().InMemory; n != 0 {
			t.Errorf("%d are in memory only", n)
		}
	})
}
