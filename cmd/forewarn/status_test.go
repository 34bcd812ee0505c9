package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/cmd/forewarn/internal/statustest"
)

// statusOf is the status of the sample page, as it comes from a running forewarn, with the texts of its sinks replaced
// by long ones.
func statusOf(t *testing.T, now time.Time) bridge.Status {
	t.Helper()
	sent := statustest.Status(now)
	for i := range sent.Sinks {
		k := &sent.Sinks[i]
		if !k.OldestPending.IsZero() {
			k.OldestPendingSeconds = now.Sub(k.OldestPending).Seconds()
		}
	}
	body, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var heard bridge.Status
	if err := json.Unmarshal(body, &heard); err != nil {
		t.Fatal(err)
	}
	return heard
}

// inUTC returns the status of a forewarn whose settings have no timezone.
func inUTC(st bridge.Status) bridge.Status {
	st.Settings.Timezone = ""
	return st
}

// A screen is what a terminal shows of what is written to it. It knows the sequences that a watch uses, and no others.
type screen struct {
	t             *testing.T
	width, height int
	rows          []string // of the other screen while one is taken
	taken, cursor bool
	at            int    // the row
	below         string // what the screen shows that is there again at the end
}

func (s *screen) Write(b []byte) (int, error) {
	rest := string(b)
	for rest != "" {
		switch next := func(p string) (found bool) { rest, found = strings.CutPrefix(rest, p); return found }; {
		case next(takeScreen):
			s.taken, s.cursor, s.rows, s.at = true, false, make([]string, s.height), 0
		case next(giveScreen):
			s.taken, s.cursor = false, true
		case next("\x1b[H"):
			s.at = 0
		case next("\x1b[K"):
			s.rows[s.at] = ""
		case next("\r\n") && s.taken:
			if s.at++; s.at == s.height {
				s.t.Fatalf("more than %d lines are written, so the screen scrolls", s.height)
			}
		default:
			line := rest
			if i := strings.IndexAny(rest, "\x1b\r\n"); i > 0 {
				line = rest[:i]
			} else if i == 0 && s.taken {
				s.t.Fatalf("the screen is sent %.20q", rest)
			} else if i == 0 {
				line = rest[:1]
			}
			rest = rest[len(line):]
			if !s.taken {
				s.below += line
				continue
			}
			if s.rows[s.at] += line; utf8.RuneCountInString(s.rows[s.at]) > s.width {
				s.t.Errorf("a line is wider than %d: %q", s.width, s.rows[s.at])
			}
		}
	}
	return len(b), nil
}

func (s *screen) text() string { return strings.TrimRight(strings.Join(s.rows, "\n"), "\n") }

// status --watch uses the whole screen and fits it, however small it is or becomes: nothing scrolls or wraps, and it
// says what does not fit. At the end the screen is restored, with its cursor and the last status in full.
func TestWatchFitsItsScreen(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	st := inUTC(statusOf(t, now))
	st.Sinks[1].LastError = "blocked: " + strings.Repeat("the token of the workspace was refused ", 6) + "THE END"
	whole := statusText(st, now, now)
	s := &screen{t: t}
	w := statusWatch{out: s, size: func() (int, int) { return s.width, s.height }}
	for _, size := range []struct {
		width, height int
		end, more     bool // whether the end of the long text is seen, and that there is more
	}{{120, 40, true, false}, {80, 24, true, false}, {80, 14, false, false}, {60, 8, false, true}, {20, 1, false,
		true}, {80, 24, true, false}} {
		s.width, s.height = size.width, size.height
		s.rows, s.at = slices.Repeat([]string{"left over"}, s.height), 0 // as a terminal may show it that changed its size
		if err := w.show(st, nil, now); err != nil {
			t.Fatal(err)
		}
		got := s.text()
		if !s.taken || s.cursor || strings.Contains(got, "left over") {
			t.Errorf("on %dx%d: taken %v, cursor %v:\n%s", size.width, size.height, s.taken, s.cursor, got)
		}
		if end, more := strings.Contains(got, "THE END"), strings.Contains(got,
			"more"); end != size.end || more != size.more {
			t.Errorf("on %dx%d the end is seen: %v, want %v; that there is more: %v, want %v:\n%s", size.width, size.height, end,
				size.end, more, size.more, got)
		}
	}
	w.restoreScreen()
	if s.taken || !s.cursor || s.below != whole {
		t.Errorf("at the end: taken %v, cursor %v, and it shows\n%s\nwant\n%s", s.taken, s.cursor, s.below, whole)
	}
}

// status --watch says when the bridge stops answering, that it tries again, and when the bridge is back. On a terminal
// the last status stays, and its countdowns continue. Otherwise no control sequence is written.
func TestWatchReportsAnOutageOfTheBridge(t *testing.T) {
	began := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	st := inUTC(statusOf(t, began)) // with an event due at 04:14:12
	gone := errors.New("no forewarn runs with these settings")
	const away = "FOREWARN DOES NOT ANSWER since 04:00:01 UTC, trying again: no forewarn runs"
	const ready = "vm-db-1  ready, "
	moments := []struct {
		after time.Duration
		err   error
		want  []string // the lines that begin so, in this order, of what is shown; no lines: nothing is shown
		there []string // the same on a terminal
		due   string
	}{
		{0, nil, []string{ready}, []string{ready}, "in 14 min 12 s"},
		{time.Second, gone, []string{away}, []string{away, "Its last status, 1 s old:", ready}, "in 14 min 11 s"},
		{5 * time.Second, gone, nil, []string{away, "Its last status, 5 s old:", ready}, "in 14 min 7 s"},
		{10 * time.Second, nil, []string{"forewarn answers again, after 9 s", ready},
			[]string{"forewarn answers again, after 9 s", ready}, "in 14 min 2 s"},
		{11 * time.Second, nil, []string{ready}, []string{ready}, "in 14 min 1 s"},
	}
	for _, terminal := range []bool{false, true} {
		var out strings.Builder
		w := statusWatch{out: &out}
		shown := func() string { return out.String() }
		if terminal {
			s := &screen{t: t, width: 100, height: 30}
			w.out, w.size, shown = s, func() (int, int) { return s.width, s.height }, s.text
		}
		for _, m := range moments {
			out.Reset()
			if err := w.show(st, m.err, began.Add(m.after)); err != nil {
				t.Fatal(err)
			}
			got, want := shown(), m.want
			if terminal {
				want = m.there
			} else if strings.Contains(got, "\x1b") {
				t.Errorf("after %v: got %q, want no control sequences", m.after, got)
			}
			var known []string
			for line := range strings.Lines(got) {
				for _, begins := range want {
					if strings.HasPrefix(line, begins) {
						known = append(known, begins)
					}
				}
			}
			if !slices.Equal(known, want) || len(want) == 0 && got != "" || slices.Contains(want,
				ready) && !strings.Contains(got, m.due) {
				t.Errorf("after %v, terminal %v: got\n%s\nwant the lines %q and an event due %s", m.after, terminal, got, want,
					m.due)
			}
		}
	}
}

// A status starts with what matters most: sinks that need attention, with the full reason, then started events, then
// the next ones, and this VM before others that an event affects. Text from outside stays on its line.
func TestStatusText(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	st := statusOf(t, now)
	slices.Reverse(st.Events)
	due := now.Add(72 * time.Hour)
	far := bridge.EventStatus{Event: statustest.Event(eventID("far"), "Redeploy", "Platform", "", due, -1, "vm-db-2",
		"vm-db-1", "vm-db-3"), NotBefore: due}
	allowed := bridge.EventStatus{
		Event: statustest.Event(eventID("allowed"), "Reboot", "User", "", now.Add(14*time.Minute), -1,
			"vm-db-1"), NotBefore: now.Add(14 * time.Minute),
		Asked: &cloudevent.Asked{Time: now.Add(-3 * time.Second), By: "rule 1", Answered: true},
	}
	st.Events = append([]bridge.EventStatus{far, allowed}, st.Events...)
	st.Events[2].Approval, st.Events[2].NotYet = "it waits for ops-chat", true
	st.Sinks = append(st.Sinks,
		bridge.SinkStatus{Name: "silent", State: bridge.SinkRetrying, Pending: 1, OldestPendingSeconds: 301,
			LastError: "timeout"},
		bridge.SinkStatus{Name: "hushed", State: bridge.SinkRetrying, Pending: 1, Muted: 1,
			NeededSince: now.Add(-time.Minute), LastError: "timeout"},
		bridge.SinkStatus{Name: "shaky", State: bridge.SinkRetrying, Pending: 1, OldestPendingSeconds: 299,
			LastError: "bad\nline\x1b[2J", NextAttempt: now.Add(3 * time.Second)},
		bridge.SinkStatus{Name: "slow", State: bridge.SinkRetrying, Pending: 1, LastError: "429 (asks for 20m)",
			NextAttempt: now.Add(20 * time.Minute), WaitsFor: delivery.WaitsForRetryAfter},
		bridge.SinkStatus{Name: "picky", State: bridge.SinkOK, DeadLetters: 2, LastError: "rejected: 422"},
		bridge.SinkStatus{Name: "tidied", State: bridge.SinkOK, LastError: "rejected: 422"},
		bridge.SinkStatus{Name: "fresh", State: bridge.SinkOK},
		bridge.SinkStatus{Name: "ahead", State: bridge.SinkOK, NextAttempt: now.Add(2 * time.Hour), WaitsFor: delivery.WaitsForLead},
		bridge.SinkStatus{Name: "busy", State: bridge.SinkOK, Pending: 1},
	)
	want := `vm-db-1  ready, 3 SINKS NEED YOU, forewarn 1.0.0, up 9 d 0 h
endpoint  answered 0 s ago, http://169.254.169.254, api-version 2020-07-01
outbox    3 pending, 1 dead letter, 96 KiB

EVENT     TYPE      STATE      DUE             NOT BEFORE                VMS
%.8[1]s  Freeze    Started    -               -                         vm-db-3
%.8[4]s  Reboot    approved 3 s ago by rule 1  any moment  05:14:00 CET (04:14:00 UTC)  this VM
%.8[2]s  Reboot    Scheduled  in 14 min 12 s  05:14:12 CET (04:14:12 UTC)  this VM, vm-db-2
  not approved yet: it waits for ops-chat
%.8[3]s  Redeploy  Scheduled  in 3 d 0 h      Tue 24 Nov, 05:00:00 CET (04:00:00 UTC)  this VM, vm-db-2, vm-db-3

SINK      STATE             PENDING           LAST DELIVERY DELIVERED DEAD LETTERS KIND
ops-chat  NEEDS YOU         3, for 2 h 0 min  9 h 0 min ago  21    0         slack
  next try in 31 s; last error: invalid_auth
silent    NEEDS YOU         1, for 5 min 1 s  -              0     0
  trying now; last error: timeout
hushed    NEEDS YOU         1, 1 muted        -              0     0
  muted; last error: timeout
shaky     trying again      1, for 4 min 59 s  -              0     0
  next try in 3 s; last error: bad line [2J
slow      trying again      1, for 0 s         -              0     0
  it asks to wait; next try in 20 min 0 s; last error: 429 (asks for 20m)
picky     last failed  0                  -              0     2
  422
audit     works             0                  48 s ago       34    0         file
runbook   works             0                  47 s ago       12    1         webhook
tidied    ready             0                  -              0     0
fresh     ready             0                  -              0     0
ahead     sends at 07:00:00 CET (06:00:00 UTC) 0              -              0     0
busy      sending           1, for 0 s         -              0     0
`
	// How wide a column is does not matter here.
	squeeze := func(s string) string {
		var lines []string
		for line := range strings.Lines(s) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	want = fmt.Sprintf(want, eventID("freeze"), eventID("reboot"), eventID("far"), eventID("allowed"))
	if got := statusText(st, now, now); squeeze(got) != squeeze(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A status lists forewarn's own problems, one per line, and claims nothing unknown.
func TestStatusTextInTrouble(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	st := bridge.Status{Version: "v1", StartedAt: now,
		Reasons: []string{"the endpoint has not answered yet: timeout", "the outbox cannot be written: disk full"}}
	st.IMDS = bridge.IMDSStatus{Endpoint: "http://azure.test", APIVersion: "2020-07-01", LastError: "timeout"}
	st.Outbox.Error, st.Settings.LastError = "disk full", "line 3\nline 4"
	want := `(VM name not known yet)  NOT READY, forewarn v1, up 0 s
          the endpoint has not answered yet: timeout
          the outbox cannot be written: disk full
endpoint  has not answered yet, http://azure.test, api-version 2020-07-01
          now: timeout
outbox    0 pending, 0 dead letters, 0 KiB
          NOT ON DISK: disk full
settings  the newest are wrong; older ones are in force
          line 3
          line 4

Azure has not answered yet.

There are no sinks, so nobody is notified.
`
	if got := statusText(st, now, now); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Without an answer of Azure the status does not claim to know the current events.
func TestStatusTextWithoutAnAnswer(t *testing.T) {
	now := time.Now()
	st := bridge.Status{Ready: true, IMDS: bridge.IMDSStatus{LastAnswer: now.Add(-time.Minute), LastError: "timeout"}}
	if got := statusText(st, now, now); !strings.Contains(got, "now: timeout\n") || !strings.Contains(got,
		"its last answer had no events") || strings.Contains(got, "No events") {
		t.Errorf("got\n%s", got)
	}
	st = bridge.Status{Relay: &bridge.RelayStatus{Stream: "FOREWARN"}, Outbox: bridge.OutboxStatus{Error: "refused"}}
	if got := statusText(st, now, now); !strings.Contains(got, "so Azure's plans are unknown") ||
		!strings.Contains(got, "relays    none known, on stream FOREWARN\n") || strings.Contains(got, "No events") {
		t.Errorf("of a relay without its stream: got\n%s", got)
	}
}
