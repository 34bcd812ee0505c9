package outbox_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

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

func (r ref) key() string { return fmt.Sprintf("%s/%016d", r.route, r.seq) }

func byRef(a, b ref) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.route, b.route)) }

type pendingModel struct {
	group    string
	attempts int
	progress string
	instead  string // the route whose fallback has it
	fellBack bool
}

// pendingOf returns a pending delivery in the form of the model.
func pendingOf(d outbox.Delivery) pendingModel {
	p := pendingModel{group: d.Group, attempts: d.Attempts, progress: string(d.Progress), fellBack: d.FellBack}
	if d.FallbackFor != nil {
		p.instead = d.FallbackFor.Sink
	}
	return p
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
	return fmt.Sprintf("pending %+v\ndead %v\nsettled %v\ngroups %v\nmarks %v\nvalues %v\nreceipts %v\ngone %v\nmuted %v",
		m.pending, m.dead, m.settled, m.groups, m.marks, m.values, m.receipts, m.routes, m.mutes)
}

// know returns the state of an outbox as a model, with the marks of these additions.
func know(o *box, added map[uint64]outbox.Addition) *model {
	o.t.Helper()
	m := newModel()
	for _, d := range o.List(outbox.Selection{}) {
		r := ref{d.Route, d.Seq}
		if d.State == outbox.StatePending {
			m.pending[r] = pendingOf(d)
			continue
		}
		m.dead[r] = d.Reason
		if slices.ContainsFunc(o.unreported(d.Route), func(u outbox.Delivery) bool { return u.Key == d.Key }) {
			m.dead[r] += unreported
		}
	}
	for id, g := range o.Groups() {
		m.groups[id] = g.Latest
	}
	for _, mute := range o.Mutes() {
		m.mutes[mute.ID] = mute.Active()
	}
	for _, a := range added {
		if n := o.Mark(a.Group, a.ID).Times; n > 0 {
			m.marks[a.ID] = n
		}
	}
	if v := o.Value("x"); v != nil {
		m.values["x"] = string(v)
	}
	for name, s := range o.Stats() {
		m.routes[name] = !s.Gone.IsZero()
		q := o.Queue(name)
		for _, group := range modelGroups {
			// A receipt is the group's, so any item will do, also one that isn't pending.
			d, _ := q.Read(&delivery.Item{Message: &delivery.Message{Group: group}})
			if d.Receipt != nil {
				m.receipts[group+"/"+name] = string(d.Receipt)
			}
		}
	}
	for _, r := range o.history() {
		for _, d := range r.Deliveries {
			if d.State != outbox.StatePending && d.State != outbox.StateDead {
				m.settled[ref{d.Route, r.Seq}] = d.State
			}
		}
	}
	return m
}

// agree checks that the figures and the other lists of an outbox agree with the list of its deliveries.
func agree(o *box) {
	o.t.Helper()
	var totals outbox.Totals
	var pending, ofGroups []string
	stats, groups, pendingBytes := map[string]outbox.Stats{}, map[string]bool{}, 0
	for _, d := range o.List(outbox.Selection{}) {
		s := stats[d.Route]
		if d.State == outbox.StateDead {
			totals.Dead++
			s.Dead++
		} else {
			totals.Pending++
			s.Pending++
			pendingBytes += d.Bytes
			pending = append(pending, d.Key)
			groups[d.Group] = true
			equal(o.t, "the state of "+d.Key, o.Delivery(d.Route, d.Seq).State, d.State)
		}
		stats[d.Route] = s
	}
	for group := range groups {
		for _, d := range o.Pending(group) {
			ofGroups = append(ofGroups, d.Key)
		}
	}
	for route := range stats {
		totals.Unreported += len(o.unreported(route))
	}
	slices.Sort(pending)
	slices.Sort(ofGroups)
	want(o.t, "pending of groups", ofGroups, pending...)
	equal(o.t, "totals", o.Totals(), totals)
	equal(o.t, "pending bytes", o.PendingBytes(), pendingBytes)
	for name, s := range o.Stats() {
		equal(o.t, "pending for "+name, s.Pending, stats[name].Pending)
		equal(o.t, "dead for "+name, s.Dead, stats[name].Dead)
	}
}

// shown returns everything that an outbox shows of its deliveries, to compare it before and after a restart.
func shown(o *box) string {
	o.t.Helper()
	text, err := json.MarshalIndent([]any{o.List(outbox.Selection{}), o.Groups(), o.Mutes()}, "", "  ")
	must(o.t, err)
	return string(text)
}

var (
	modelGroups = []string{"G0", "G1", "G2"}
	// b is the fallback of a, and c begins nothing about a group that is over.
	modelRoutes = []outbox.Route{{Name: "a", Fallback: "b"}, {Name: "b"}, {Name: "c", Late: delivery.LateDrop}}
)

// play follows the script to its end, and then looks at every crash that could have happened.
func play(t *testing.T, script []byte) {
	p := &player{
		o: open(t, t.TempDir(), outbox.Options{Storage: newDisk()}), script: script, m: newModel(),
		added: map[uint64]outbox.Addition{},
	}
	p.listen()
	p.setRoutes(modelRoutes)
	p.states = append(p.states, newModel().String(), p.m.String())
	for len(p.script) > 0 && !t.Failed() {
		p.step()
		p.hear()
	}
	p.o.diskRecovers()
	p.o.wantDurable()
	got := know(p.o, p.added)
	maps.DeleteFunc(got.routes, func(name string, _ bool) bool {
		_, known := p.m.routes[name]
		return !known
	})
	equal(t, "at the end it knows", got.String(), p.m.String())
	agree(p.o)
	before := shown(p.o)
	p.o.restart()
	equal(t, "after a restart it shows", shown(p.o), before)
	agree(p.o)
	must(t, p.o.Close())

	batches, at := p.o.disk.recorded(), 0
	for n := 1; n <= len(batches) && !t.Failed(); n++ {
		o := open(t, p.o.dir, outbox.Options{Storage: diskOf(batches[:n])})
		got := know(o, p.added).String()
		must(t, o.Close())
		for at < len(p.states) && p.states[at] != got {
			at++
		}
		if at == len(p.states) {
			t.Errorf("after %d of %d batches it knows what it never was:\n%s", n, len(batches), got)
		}
	}
	if at < len(p.states) {
		equal(t, "after the last batch it knows", p.states[at], p.m.String())
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
		synctest.Test(t, func(t *testing.T) { play(t, script[:min(len(script), 400)]) })
	})
}
