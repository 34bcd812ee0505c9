package jsontime

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

type inner struct{ At time.Time }

type outer struct {
	*Named
	Any    any
	List   []inner
	ByName map[string]*inner
	Zero   time.Time `json:",omitzero"`
	own    time.Time
}

type Named struct{ Until time.Time }

// Every time that JSON would show can be said afterwards, and the value itself is as before.
func TestTimesAreBounded(t *testing.T) {
	far := time.Date(10899, 1, 1, 0, 0, 0, 0, time.UTC)
	was := outer{Named: &Named{far}, Any: map[string]any{"at": far, "n": 1}, List: []inner{{far}, {time.Unix(1, 0)}},
		ByName: map[string]*inner{"a": {far}, "b": nil}, own: far}
	got := BoundAll(was).(outer)
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const end = `"9999-12-31T23:59:59Z"`
	want := `{"Until":` + end + `,"Any":{"at":` + end + `,"n":1},"List":[{"At":` + end + `},{"At":` +
		string(mustJSON(time.Unix(1, 0))) + `}],"ByName":{"a":{"At":` + end + `},"b":null}}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if !was.Until.Equal(far) || !was.List[0].At.Equal(far) || !was.ByName["a"].At.Equal(far) {
		t.Errorf("the value itself was changed: %+v", was)
	}
	if !reflect.DeepEqual(BoundAll(nil), nil) {
		t.Error("nil is something")
	}
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// A time is bounded in its own zone and in UTC, because it may be written in both.
func TestATimeIsBoundedInEveryZone(t *testing.T) {
	for at, bounded := range map[time.Time]bool{
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC):                       false,
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("west", -60*60)): true,
		time.Date(10000, 1, 1, 0, 0, 0, 0, time.FixedZone("east", 60*60)):      true,
		time.Date(-1, 12, 31, 23, 0, 0, 0, time.UTC):                           true,
		time.Time{}: false,
	} {
		got := Bound(at)
		if got.Equal(at) == bounded {
			t.Errorf("%v becomes %v", at, got)
		}
		if _, err := json.Marshal(got.UTC()); err != nil {
			t.Error(err)
		}
	}
}
