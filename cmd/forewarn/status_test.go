package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
)

// status --watch on a terminal begins each time at the top and leaves nothing of what stood there; elsewhere one status
// follows the other. Both say when the bridge goes away and comes back.
func TestWatchSaysWhenTheBridgeIsAway(t *testing.T) {
	began := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	st := bridge.Status{Version: "v0.1.0", StartedAt: began, Ready: true, Observer: bridge.Observer{Name: "vm-0"}}
	st.IMDS.Endpoint, st.IMDS.APIVersion, st.IMDS.LastAnswer = "http://azure.test", "2020-07-01", began.Add(time.Minute)
	st.Outbox.Durable, st.Outbox.Bytes = true, 64<<10
	gone := errors.New("no forewarn runs with these settings")
	moments := []struct {
		after time.Duration
		err   error
		want  []string // the lines that begin so, in this order, of what is shown; no lines: nothing is shown
		there []string // the same in place
	}{
		{60 * time.Second, nil, []string{"vm-0  ready, "}, []string{"vm-0  ready, "}},
		{61 * time.Second, gone, []string{"FOREWARN DOES NOT ANSWER since 04:01:01 UTC: no forewarn runs"},
			[]string{"FOREWARN DOES NOT ANSWER since 04:01:01 UTC: no forewarn runs", "Its last status, 0 s old:", "vm-0  ready, "}},
		{65 * time.Second, gone, nil,
			[]string{"FOREWARN DOES NOT ANSWER since 04:01:01 UTC: no forewarn runs", "Its last status, 4 s old:", "vm-0  ready, "}},
		{70 * time.Second, nil, []string{"forewarn answers again, after 9 s", "vm-0  ready, "}, []string{"forewarn answers again, after 9 s", "vm-0  ready, "}},
		{71 * time.Second, nil, []string{"vm-0  ready, "}, []string{"vm-0  ready, "}},
	}
	for _, inPlace := range []bool{false, true} {
		var out strings.Builder
		w := watch{out: &out, inPlace: inPlace}
		for _, m := range moments {
			out.Reset()
			if err := w.show(st, m.err, began.Add(m.after)); err != nil {
				t.Fatal(err)
			}
			got, want := out.String(), m.want
			if inPlace {
				want = m.there
				body, home := strings.CutPrefix(got, "\x1b[H")
				body, below := strings.CutSuffix(body, "\x1b[J")
				if !home || !below || strings.Count(body, "\n") != strings.Count(body, "\x1b[K\n") {
					t.Errorf("after %v on a terminal: got %q, want it from the top, every line and all below cleared", m.after, got)
				}
				got = strings.ReplaceAll(body, "\x1b[K", "")
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
			if strings.Join(known, "\n") != strings.Join(want, "\n") || len(want) == 0 && got != "" {
				t.Errorf("after %v, in place %v: got\n%s\nwant the lines %q", m.after, inPlace, got, want)
			}
		}
	}
}
