package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"forewarn/bridge/outbox"
)

// A selection picks by route, state and the beginning of the group.
func TestListPicksWhatIsSelected(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("AAA", "scheduled", "a", "b")
		o.add("BBB", "scheduled", "a")
		o.reject("b")
		for _, tt := range []struct {
			selection outbox.Selection
			want      []string
		}{
			{outbox.Selection{}, []string{"a AAA", "a BBB", "b AAA"}},
			{outbox.Selection{Route: "a"}, []string{"a AAA", "a BBB"}},
			{outbox.Selection{State: outbox.StateDead}, []string{"b AAA"}},
			{outbox.Selection{Group: "bb"}, []string{"a BBB"}},
			{outbox.Selection{Route: "b", Group: "bb"}, nil},
			{outbox.Selection{Group: "AAAA"}, nil},
		} {
			var got []string
			for _, d := range o.List(tt.selection) {
				got = append(got, d.Route+" "+d.Group)
			}
			want(t, fmt.Sprintf("%+v", tt.selection), got, tt.want...)
		}
	})
}

// Show returns a delivery with its CloudEvent. Its JSON is what commands print.
func TestShow(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a := o.add("A", "scheduled", "a", "b")
		o.reject("b")
		for _, key := range o.keys(outbox.Selection{}) {
			d, ce, err := o.Show(key)
			if err != nil || d.ID != a.ID || string(ce) != string(a.Body) {
				t.Errorf("Show(%s) = %v %s %v", key, d.ID, ce, err)
			}
			var public struct {
				Key, Sink, ID, Type, Event, State string
				Attempts, Bytes                   *int
			}
			data, err := json.Marshal(d)
			must(t, errors.Join(err, json.Unmarshal(data, &public)))
			if public.Key != key || public.Sink != d.Route || public.ID != a.ID || public.Event != "A" ||
				public.State != d.State || public.Attempts == nil || *public.Bytes != len(ce) {
				t.Errorf("as JSON it is %s", data)
			}
		}
		_, _, err := o.Show("a/0000000000000001")
		wantError(t, "Show of a key that is none", err, outbox.ErrUnknownKey)
	})
}

// Page returns one end of a list, and how many more there are.
func TestPage(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		for _, group := range []string{"A", "B", "C"} {
			o.add(group, "scheduled", "a")
		}
		for n, more := range map[int]int{0: 3, 2: 1, 3: 0, 4: 0} {
			page, rest := o.Page(outbox.Selection{}, n)
			want(t, fmt.Sprint("the first ", n), ids(page), o.pending("a")[:3-more]...)
			equal(t, fmt.Sprint("more than the first ", n), rest, more)
			page, rest = o.Page(outbox.Selection{Last: true}, n)
			want(t, fmt.Sprint("the last ", n), ids(page), o.pending("a")[more:]...)
			equal(t, fmt.Sprint("more than the last ", n), rest, more)
		}
	})
}

// A follower gets every CloudEvent that is added. Its channel is closed when it falls too far behind.
func TestFollow(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		events, stop := o.Follow()
		slow, _ := o.Follow()
		a := o.add("A", "scheduled", "a")
		equal(t, "it sees", string(<-events), string(a.Body))
		stop()
		o.apply(wave(o, 1200, "a"))
		n := 0
		for range slow {
			n++
		}
		equal(t, "the slow one sees", n, 1000)
		equal(t, "the one that stopped sees", len(events), 0)
	})
}
