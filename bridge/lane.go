package bridge

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// The rules of the schedule.
const (
	urgentNotice  = 15 * time.Minute // less notice than this beats the schedule
	urgentEvery   = 5 * time.Second  // but not more often
	blockedAfter  = 3                // blocked answers …
	blockedOver   = 30 * time.Second // … over at least this
	probeEvery    = time.Minute      // while blocked
	maxRetryAfter = time.Hour
	dueSoon       = 2 * time.Minute // less notice than this waits for no group
	maxGroup      = 500             // deliveries in one
)

// waits are how long to wait after the first, second, … attempt that failed; the last one stays.
var waits = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
}

// backoff is the wait after so many failures, with full jitter: a random part of it.
func backoff(failures int, random float64) time.Duration {
	return time.Duration(random * float64(waits[min(failures, len(waits))-1]))
}

// A lane is what is owed to a route about one Azure event, oldest first; what is about the bridge has a lane of its
// own. Lanes do not wait for each other.
type lane struct {
	event    string
	owed     []*Entry
	busy     bool      // an attempt is under way
	urgent   bool      // something came that beats the schedule
	due      time.Time // of the next attempt
	failures int       // in a row
	alone    bool      // it had its chance after the route accepted others, so the trouble is its own
	tried    time.Time // when the last attempt began
	gathered time.Time // the group is complete that it waits for
}

// A schedule says what a route is owed and when which of it may be tried. It knows no sink and touches no disk but to
// ask whether an entry is still owed.
type schedule struct {
	terms Terms
	owed  func(*Entry) bool

	lanes    map[string]*lane
	under    int       // attempts under way
	floor    time.Time // a Retry-After ends
	refusals int       // blocked answers since the last acceptance
	refused  time.Time // the first of them
	blocked  bool
	probe    time.Time // the next one, while blocked
	override time.Time // the last attempt that beat the schedule
	single   int       // deliveries to make one by one, because a batch of them was rejected
	waves    map[wave]*gathering
}

// A wave is what messages of a group have in common.
type wave struct {
	azureType string
	change    ChangeKind
}

// gathering is what came lately of one wave.
type gathering struct {
	came []time.Time // at most so many as do not make a group yet, the latest
	done time.Time   // when those that wait now become one batch
}

// attempt is one call of Deliver: a batch, and for late: latest the entries that its only delivery stands for.
type attempt struct {
	batch      []*Entry
	superseded []*Entry
	lanes      []*lane // of all of them
}

// all are the entries that the attempt is about.
func (a attempt) all() []*Entry { return slices.Concat(a.superseded, a.batch) }

// add puts what came to be owed into its lane.
func (s *schedule) add(e *Entry, now time.Time) {
	l := s.lanes[e.Event]
	if l == nil {
		l = &lane{event: e.Event, due: now}
		s.lanes[e.Event] = l
	}
	l.owed = append(l.owed, e)
	if n := len(l.owed); n > 1 && l.owed[n-2].seq > e.seq { // replayed
		slices.SortFunc(l.owed, bySeq)
	}
	l.gathered = s.gather(e, now)
	l.urgent = l.urgent || e.Event != "" && (e.NotBefore.IsZero() || e.NotBefore.Sub(now) < urgentNotice)
}

// gather counts what came of a wave. It gives the time until which the entry waits for others; zero if it does not.
func (s *schedule) gather(e *Entry, now time.Time) time.Time {
	if s.terms.Group.Above <= 0 || s.terms.Late != LateLatest || e.Event == "" {
		return time.Time{}
	}
	of := e.wave()
	g := s.waves[of]
	if g == nil {
		if s.waves == nil {
			s.waves = make(map[wave]*gathering)
		}
		g = &gathering{}
		s.waves[of] = g
	}
	g.came = slices.DeleteFunc(g.came, func(at time.Time) bool { return now.Sub(at) >= s.terms.Group.Within })
	if len(g.came) < s.terms.Group.Above {
		g.came = append(g.came, now)
		return time.Time{}
	}
	g.came = append(g.came[1:], now)
	if e.dueSoon(now) {
		return time.Time{}
	}
	if !g.done.After(now) {
		g.done = now.Add(s.terms.Group.Within)
	}
	return g.done
}

func (e *Entry) wave() wave { return wave{e.AzureType, e.Change} }

// dueSoon says whether people have no time to lose: the event lies ahead, and begins soon or nobody knows when.
func (e *Entry) dueSoon(now time.Time) bool {
	return (e.Change == Scheduled || e.Change == Updated) && e.NotBefore.Sub(now) < dueSoon
}

// overtaken takes out what the route does not want any more because something newer is owed, or its time has passed.
func (s *schedule) overtaken(now time.Time) (late []*Entry) {
	if s.terms.Late != LateDrop {
		return nil
	}
	for _, l := range s.lanes {
		if l.event == "" || l.busy || len(l.owed) == 0 {
			continue
		}
		n := len(l.owed) - 1
		for n > 0 && !l.owed[n].Change.azures() { // which overtakes nothing
			n--
		}
		if e := l.owed[n]; e.Change == Scheduled && !e.NotBefore.IsZero() && now.After(e.NotBefore) {
			n++
		}
		late = append(late, l.owed[:n]...)
		l.owed = l.owed[n:]
	}
	slices.SortFunc(late, bySeq)
	return late
}

// next picks what to attempt now; if nothing, it says when to ask again (zero: when something changes). While stopping,
// only first attempts are made.
func (s *schedule) next(now time.Time, stopping bool) (attempt, time.Time) {
	if s.under >= max(1, s.terms.Parallel) || s.blocked && s.under > 0 {
		return attempt{}, time.Time{}
	}
	var ready []*lane
	var wake time.Time
	for event, l := range s.lanes {
		if l.busy {
			continue
		}
		for len(l.owed) > 0 && !s.owed(l.owed[0]) {
			l.owed = l.owed[1:]
		}
		if stopping {
			l.gathered = time.Time{}
		}
		at := s.due(l)
		switch {
		case len(l.owed) == 0:
			delete(s.lanes, event)
		case stopping && (s.blocked || l.failures > 0):
		case at.After(now):
			wake = earlier(wake, at)
		default:
			ready = append(ready, l)
		}
	}
	if len(ready) == 0 {
		return attempt{}, wake
	}
	slices.SortFunc(ready, s.before)
	a := s.pick(ready)
	if len(a.batch) == 0 {
		return a, now // it was given up just now
	}
	s.begin(a, now)
	return a, time.Time{}
}

// due is when the lane's first delivery may be tried.
func (s *schedule) due(l *lane) time.Time {
	at := s.planned(l)
	if l.urgent {
		at = earlier(at, s.override.Add(urgentEvery))
	}
	return later(later(at, l.gathered), s.floor)
}

// planned is when the lane's turn comes, urgent or not.
func (s *schedule) planned(l *lane) time.Time {
	if s.blocked {
		return s.probe
	}
	return l.due
}

// before orders lanes that may be tried: by what matters first or, for probes, in turn.
func (s *schedule) before(a, b *lane) int {
	if s.blocked && !(a.urgent && b.urgent) {
		return cmp.Or(boolean(b.urgent)-boolean(a.urgent), a.tried.Compare(b.tried), bySeq(a.owed[0], b.owed[0]))
	}
	return cmp.Or(a.rank()-b.rank(), a.newest().NotBefore.Compare(b.newest().NotBefore), bySeq(a.owed[0], b.owed[0]))
}

// rank puts Azure events that still lie ahead before those that are over, and what is about the bridge last.
func (l *lane) rank() int {
	switch {
	case l.event == "":
		return 2
	case l.newest().Change == Vanished:
		return 1
	}
	return 0
}

func (l *lane) newest() *Entry { return l.owed[len(l.owed)-1] }

// pick makes an attempt of the ready lanes, the first of which matters most.
func (s *schedule) pick(ready []*lane) attempt {
	limit := max(1, s.terms.Batch)
	if s.single > 0 || s.blocked {
		limit = 1
	}
	var a attempt
	if first := ready[0]; s.terms.Late == LateLatest && first.event != "" {
		for _, l := range s.group(first) {
			owed := slices.DeleteFunc(slices.Clone(l.owed), func(e *Entry) bool { return !s.owed(e) })
			if n := len(owed) - 1; n >= 0 {
				a.batch, a.superseded = append(a.batch, owed[n]), append(a.superseded, owed[:n]...)
				a.lanes = append(a.lanes, l)
			}
		}
		return a
	}
	for _, l := range ready {
		if len(a.batch) == limit {
			break
		}
		a.lanes = append(a.lanes, l)
		for _, e := range l.owed {
			if len(a.batch) < limit && s.owed(e) {
				a.batch = append(a.batch, e)
			}
		}
	}
	slices.SortFunc(a.batch, bySeq)
	return a
}

// group are the lanes of which one message is made, the first of which may be tried now: itself alone, or all of its wave.
func (s *schedule) group(first *lane) []*lane {
	above := s.terms.Group.Above
	if above <= 0 || s.single > 0 || s.blocked || first.alone {
		return []*lane{first}
	}
	of := first.newest().wave()
	lanes := []*lane{first}
	for _, l := range s.lanes {
		if l != first && l.event != "" && !l.busy && !l.alone && len(l.owed) > 0 && l.newest().wave() == of {
			lanes = append(lanes, l)
		}
	}
	if len(lanes) <= above && first.gathered.IsZero() {
		return lanes[:1]
	}
	slices.SortFunc(lanes, s.before)
	return lanes[:min(len(lanes), maxGroup)]
}

// begin notes that the attempt is under way.
func (s *schedule) begin(a attempt, now time.Time) {
	first := a.lanes[0]
	switch {
	case first.urgent && s.planned(first).After(now):
		s.override = now
	case s.blocked:
		s.probe = now.Add(probeEvery)
	}
	s.under++
	for _, l := range a.lanes {
		l.busy, l.urgent, l.tried, l.gathered = true, false, now, time.Time{} // what comes from now on is not in this attempt
	}
}

// end notes that the attempt is over.
func (s *schedule) end(a attempt) {
	s.under--
	s.single = max(0, s.single-1)
	for _, l := range a.lanes {
		l.busy = false
	}
}

// drop takes entries of the attempt out of their lanes: settled, or given up.
func (a attempt) drop(entries []*Entry) {
	done := make(map[*Entry]bool, len(entries))
	for _, e := range entries {
		done[e] = true
	}
	for _, l := range a.lanes {
		l.failures = 0
		for len(l.owed) > 0 && done[l.owed[0]] {
			l.owed = l.owed[1:]
		}
		if slices.ContainsFunc(l.owed, func(e *Entry) bool { return done[e] }) {
			l.owed = slices.DeleteFunc(slices.Clone(l.owed), func(e *Entry) bool { return done[e] })
		}
	}
}

// accepted begins the times of the route anew: it works. Lanes that wait have another chance; one that fails again
// waits alone.
func (s *schedule) accepted(a attempt, now time.Time) {
	s.refusals, s.blocked, s.floor = 0, false, time.Time{}
	for _, l := range a.lanes {
		l.due, l.alone = now, false
	}
	for _, l := range s.lanes {
		if l.failures > 0 && !l.alone {
			l.due, l.alone = now, true
		}
	}
}

// refuse plans the next attempt after one that failed and may be repeated, at a random part of the wait. It says
// whether the route became blocked with it, and whether the trouble is the route's.
func (s *schedule) refuse(a attempt, blocked bool, wish *RetryAfter, now time.Time) (became, shared bool) {
	for _, l := range a.lanes {
		l.failures++
		l.due = now.Add(backoff(l.failures, rand.Float64()))
		shared = shared || !l.alone
	}
	if wish != nil {
		s.floor = now.Add(min(wish.After, maxRetryAfter))
	}
	if !blocked || !shared {
		return false, shared
	}
	if s.refusals++; s.refusals == 1 {
		s.refused = now
	}
	if !s.blocked && s.refusals >= blockedAfter && now.Sub(s.refused) >= blockedOver {
		s.blocked, became = true, true
		s.probe = now.Add(probeEvery)
	}
	return became, shared
}

// anew begins all times anew.
func (s *schedule) anew(now time.Time) {
	s.refusals, s.blocked, s.floor = 0, false, time.Time{}
	for _, l := range s.lanes {
		l.due, l.failures, l.alone = now, 0, false
	}
}

// failing says whether something waits because it was refused.
func (s *schedule) failing() bool {
	for _, l := range s.lanes {
		if l.failures > 0 {
			return true
		}
	}
	return false
}

// since is when the oldest attempt under way began; zero when there is none.
func (s *schedule) since() (since time.Time) {
	for _, l := range s.lanes {
		if l.busy {
			since = earlier(since, l.tried)
		}
	}
	return since
}

// earlier and later compare times of which a zero one counts as not set.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}
