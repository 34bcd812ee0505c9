package outbox_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A model is the expected state of an outbox, in the simplest form.
type model struct {
	pending  map[ref]pendingModel
	dead     map[ref]string // reason, and whether it is unreported
	settled  map[ref]string // how
	groups   map[string]uint64
	marks    map[string]int
	values   map[string]string
	receipts map[string]string // by group/route
	routes   map[string]bool   // gone
	mutes    map[string]bool   // active
}

// unreported follows the reason of a dead letter that the owner has not reported.
const unreported = ", unreported"

type ref struct {
	route string
	seq   uint64
}

type pendingModel struct {
	group    string
	attempts int
	progress string
	instead  string
	fellBack bool
}

func newModel() *model {
	return &model{
		pending: map[ref]pendingModel{}, dead: map[ref]string{}, settled: map[ref]string{}, groups: map[string]uint64{},
		marks: map[string]int{}, values: map[string]string{}, receipts: map[string]string{}, routes: map[string]bool{},
		mutes: map[string]bool{},
	}
}

// String returns the whole state, in order.
func (m *model) String() string {
	var b strings.Builder
	byRef := func(x, y ref) int { return cmp.Or(cmp.Compare(x.seq, y.seq), cmp.Compare(x.route, y.route)) }
	for _, r := range slices.SortedFunc(maps.Keys(m.pending), byRef) {
		p := m.pending[r]
		fmt.Fprintf(&b, "pending %s/%d %s attempts=%d progress=%q instead=%q fellBack=%v\n",
			r.route, r.seq, p.group, p.attempts, p.progress, p.instead, p.fellBack)
	}
	for _, r := range slices.SortedFunc(maps.Keys(m.dead), byRef) {
		fmt.Fprintf(&b, "dead %s/%d %s\n", r.route, r.seq, m.dead[r])
	}
	for _, r := range slices.SortedFunc(maps.Keys(m.settled), byRef) {
		fmt.Fprintf(&b, "settled %s/%d %s\n", r.route, r.seq, m.settled[r])
	}
	for _, id := range slices.Sorted(maps.Keys(m.groups)) {
		fmt.Fprintf(&b, "group %s %d\n", id, m.groups[id])
	}
	for _, id := range slices.Sorted(maps.Keys(m.marks)) {
		fmt.Fprintf(&b, "mark %s %d\n", id, m.marks[id])
	}
	for _, name := range slices.Sorted(maps.Keys(m.values)) {
		fmt.Fprintf(&b, "value %s %s\n", name, m.values[name])
	}
	for _, key := range slices.Sorted(maps.Keys(m.receipts)) {
		fmt.Fprintf(&b, "receipt %s %s\n", key, m.receipts[key])
	}
	for _, name := range slices.Sorted(maps.Keys(m.routes)) {
		fmt.Fprintf(&b, "route %s gone=%v\n", name, m.routes[name])
	}
	for _, id := range slices.Sorted(maps.Keys(m.mutes)) {
		fmt.Fprintf(&b, "mute %s active=%v\n", id, m.mutes[id])
	}
	return b.String()
}

// know returns the state of an outbox as a model, with the marks of ids and the receipts of open groups.
func know(t *testing.T, o *outbox.Outbox, ids, groups []string) *model {
	t.Helper()
	m := newModel()
	for _, d := range o.List(outbox.Selection{}) {
		r := ref{d.Route, d.Seq}
		if d.State == outbox.StateDead {
			m.dead[r] = d.Reason
			if slices.ContainsFunc(unreportedOf(o, d.Route), func(u outbox.Delivery) bool { return u.Key == d.Key }) {
				m.dead[r] += unreported
			}
			continue
		}
		p := pendingModel{group: d.Group, attempts: d.Attempts, progress: string(d.Progress), fellBack: d.FellBack}
		if d.FallbackFor != nil {
			p.instead = d.FallbackFor.Sink
		}
		m.pending[r] = p
	}
	for id, g := range o.Groups() {
		m.groups[id] = g.Latest
	}
	for _, mute := range o.Mutes() {
		m.mutes[mute.ID] = mute.Active()
	}
	for _, id := range ids {
		if n := o.Mark(groupOf(id), id).Times; n > 0 {
			m.marks[id] = n
		}
	}
	for _, name := range []string{"x", "y"} {
		if v := o.Value(name); v != nil {
			m.values[name] = string(v)
		}
	}
	for name, s := range o.Stats() {
		m.routes[name] = !s.Gone.IsZero()
		q := o.Queue(name)
		for _, group := range groups {
			// A receipt is the group's, so any item will do, also one that isn't pending.
			i := &delivery.Item{Message: &delivery.Message{Group: group}}
			if d, _ := q.Read(i); d.Receipt != nil {
				m.receipts[group+"/"+name] = string(d.Receipt)
			}
		}
	}
	err := o.Walk(0, func(r outbox.Record) error {
		for _, d := range r.Deliveries {
			switch d.State {
			case outbox.StateAccepted, outbox.StateSuperseded, outbox.StateDropped:
				m.settled[ref{d.Route, r.Seq}] = d.State
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// agree checks that the figures and the other lists of an outbox agree with the list of its deliveries.
func agree(t *testing.T, o *outbox.Outbox) {
	t.Helper()
	var want outbox.Totals
	pendingBytes := 0
	stats := map[string][2]int{} // pending, dead
	var ofGroups, ofGroupsGot []string
	groups := map[string]bool{}
	for _, d := range o.List(outbox.Selection{}) {
		s := stats[d.Route]
		if d.State == outbox.StateDead {
			want.Dead++
			s[1]++
		} else {
			want.Pending++
			pendingBytes += d.Bytes
			s[0]++
			groups[d.Group] = true
			ofGroups = append(ofGroups, d.Key)
		}
		if out := o.Delivery(d.Route, d.Seq); d.State == outbox.StatePending && out.State != d.State {
			t.Errorf("the outcome of %s is %q, want %q", d.Key, out.State, d.State)
		}
		stats[d.Route] = s
	}
	for group := range groups {
		for _, d := range o.Pending(group) {
			ofGroupsGot = append(ofGroupsGot, d.Key)
		}
	}
	for route := range stats {
		want.Unreported += len(unreportedOf(o, route))
	}
	slices.Sort(ofGroups)
	slices.Sort(ofGroupsGot)
	if !slices.Equal(ofGroups, ofGroupsGot) {
		t.Errorf("pending of groups are %v, want %v", ofGroupsGot, ofGroups)
	}
	if got := o.Totals(); got != want || o.PendingBytes() != pendingBytes {
		t.Errorf("the totals are %+v and %d bytes, want %+v and %d", got, o.PendingBytes(), want, pendingBytes)
	}
	for name, s := range o.Stats() {
		if got := [2]int{s.Pending, s.Dead}; got != stats[name] {
			t.Errorf("the figures of %s are %v, want %v", name, got, stats[name])
		}
	}
}

// shown returns everything that an outbox shows of its deliveries, to compare it before and after a restart.
func shown(t *testing.T, o *outbox.Outbox) string {
	t.Helper()
	var b strings.Builder
	for _, d := range o.List(outbox.Selection{}) {
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", text)
	}
	groups := o.Groups()
	for _, id := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "%s %s %d\n", id, groups[id].State, groups[id].Latest)
	}
	for _, m := range o.Mutes() {
		mute := *m
		mute.Since, mute.Until, mute.Ended = m.Since.UTC(), m.Until.UTC(), m.Ended.UTC()
		fmt.Fprintf(&b, "%+v\n", mute)
	}
	return b.String()
}

// bodies returns the sequence numbers of all stored CloudEvents.
func bodies(o *outbox.Outbox) map[uint64]bool {
	seqs := map[uint64]bool{}
	_ = o.Walk(0, func(r outbox.Record) error { seqs[r.Seq] = true; return nil })
	return seqs
}

var modelRoutes = []string{"a", "b", "c"}

// modelled are the routes of the model: b is the fallback of a, and c begins nothing about a group that is over.
var modelled = []outbox.Route{{Name: "a", Fallback: "b"}, {Name: "b"}, {Name: "c", Late: delivery.LateDrop}}

func parse(key string) ref {
	name, digits, _ := strings.Cut(key, "/")
	var seq uint64
	fmt.Sscan(strings.TrimLeft(digits, "0"), &seq)
	return ref{name, seq}
}

// play follows the script to its end, and then looks at every crash that could have happened.
func play(t *testing.T, script []byte) {
	p := &player{t: t, script: script, disk: diskOf(nil), m: newModel(), last: map[uint64]outbox.Addition{}}
	p.start()
	p.setRoutes(modelled, time.Now())
	p.states = append(p.states, newModel().String(), p.m.String())
	for len(p.script) > 0 && !t.Failed() {
		p.step()
		p.hear()
	}
	p.disk.set(func() { p.disk.fail, p.disk.lose = nil, false })
	time.Sleep(10 * time.Second)
	synctest.Wait()
	if err := p.o.Durable(); err != nil {
		t.Errorf("Durable = %v", err)
	}
	var ids []string
	for _, a := range p.last {
		ids = append(ids, a.ID)
	}
	groups := []string{"G0", "G1", "G2"}
	same := func(claim string, o *outbox.Outbox, want string) {
		t.Helper()
		got := know(t, o, ids, groups)
		for name := range got.routes {
			if _, ok := p.m.routes[name]; !ok {
				delete(got.routes, name)
			}
		}
		if got := got.String(); got != want {
			t.Errorf("%s it knows\n%s\nwant\n%s", claim, got, want)
		}
	}
	same("At the end", p.o, p.m.String())
	agree(t, p.o)
	before := shown(t, p.o)
	if err := p.o.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	p.start()
	if after := shown(t, p.o); after != before {
		t.Errorf("after a restart it shows\n%s\nwant\n%s", after, before)
	}
	agree(t, p.o)
	p.o.Close()

	batches := p.disk.recorded()
	at := 0
	for n := 1; n <= len(batches) && !t.Failed(); n++ {
		o, err := outbox.Open(t.TempDir(), outbox.Options{Storage: diskOf(batches[:n])})
		if err != nil {
			t.Fatal(err)
		}
		got := know(t, o, ids, groups).String()
		o.Close()
		for at < len(p.states) && p.states[at] != got {
			at++
		}
		if at == len(p.states) {
			t.Errorf("after %d of %d batches it knows what it never was:\n%s", n, len(batches), got)
		}
	}
	if at < len(p.states) && p.states[at] != p.m.String() {
		t.Errorf("after the last batch it knows\n%s\nwant\n%s", p.states[at], p.m)
	}
}

// Whatever is done, memory knows what a simple model knows, and a crash leaves the state as it was after one of the
// things that were done: never between, and never before what was already on disk.
func FuzzACrashLeavesWholeBatches(f *testing.F) {
	for seed := range uint64(8) {
		script := make([]byte, 200)
		random := rand.New(rand.NewPCG(seed, 1))
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 400 {
			script = script[:400]
		}
		synctest.Test(t, func(t *testing.T) { play(t, script) })
	})
}
