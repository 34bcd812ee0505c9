package imdstest_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// listener is a destination that records each change that it gets, in a few words.
type listener struct {
	mu  sync.Mutex
	got []string
}

func (l *listener) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range batch {
		change, ours := strings.CutPrefix(d.Event.Type(), cloudevent.EventPrefix)
		if !ours {
			continue
		}
		var data cloudevent.Data
		if err := json.Unmarshal(d.Event.Data(), &data); err != nil {
			return delivery.Answer{}, err
		}
		kind, _ := d.Event.Extensions()["azeventtype"].(string)
		names, _ := d.Event.Extensions()["azresources"].(string)
		words := []string{kind, names, change}
		if data.Outcome != "" {
			words = append(words, string(data.Outcome))
		}
		l.got = append(l.got, strings.Join(append(words, data.Changed...), " "))
	}
	return delivery.Answer{}, nil
}

// changes runs a scenario for a bridge that polls once a second, and returns the changes that the bridge delivers.
func changes(t *testing.T, name string, speed float64) []string {
	t.Helper()
	sc, err := imdstest.Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	azure, ear := imdstest.New(imdstest.Options{}), &listener{}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	b, err := bridge.New(bridge.Options{
		Client:   imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, azure.RoundTripper()),
		Outbox:   box,
		Interval: time.Second,
		Routes: []bridge.Route{{
			Name: "ear", Kind: "ear", Sink: ear, Filter: bridge.Filter{Only: bridge.Only{VMs: "all"}},
			Terms: bridge.Terms{Terms: delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend}},
		}},
		Host: "host", Version: "test", Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- b.Run(ctx) }()
	if err := azure.Play(ctx, sc, speed); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	time.Sleep(time.Minute)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("%s: the bridge ended with %v", name, err)
	}
	return ear.got
}

// The bridge reports the changes of each built-in scenario, up to its end.
func TestBridgeReportsEveryBuiltinScenario(t *testing.T) {
	systemtest.Alone(t)
	untested := imdstest.Names()
	for _, tt := range []struct {
		name  string
		speed float64
		want  []string
	}{
		{"reboot", 10, []string{"Reboot vm_0 scheduled", "Reboot vm_0 started", "Reboot vm_0 vanished completed"}},
		{"user-reboot", 10, []string{"Reboot vm_0 scheduled", "Reboot vm_0 started", "Reboot vm_0 vanished completed"}},
		{"redeploy", 10, []string{"Redeploy vm_0 scheduled", "Redeploy vm_0 started", "Redeploy vm_0 vanished completed"}},
		{"freeze", 10, []string{"Freeze vm_0 scheduled", "Freeze vm_0 started", "Freeze vm_0 vanished completed"}},
		{"preempt", 2, []string{"Preempt vm_0 scheduled", "Preempt vm_0 started", "Preempt vm_0 vanished completed"}},
		{"terminate", 10, []string{"Terminate vm_0 scheduled", "Terminate vm_0 started", "Terminate vm_0 vanished completed"}},
		{"canceled", 10, []string{"Reboot vm_0 scheduled", "Reboot vm_0 vanished canceled"}},
		{"updated", 10, []string{
			"Reboot vm_0 scheduled", "Reboot vm_0 updated NotBefore", "Reboot vm_0,vm_1 updated Resources",
			"Reboot vm_0,vm_1 started", "Reboot vm_0,vm_1 vanished completed",
		}},
		{"hardware-failure", 10, []string{"Reboot vm_0 started", "Reboot vm_0 vanished completed"}},
		{"degraded", 300, []string{"Redeploy vm_0 scheduled", "Redeploy vm_0 started", "Redeploy vm_0 vanished completed"}},
		{"two-events", 10, []string{
			"Reboot vm_0 scheduled", "Reboot vm_1 scheduled", "Reboot vm_0 started", "Reboot vm_1 started",
			"Reboot vm_0 vanished completed", "Reboot vm_1 vanished completed",
		}},
		{"busy-week", 60, []string{
			"Freeze vm_0,vm_1 scheduled", "Freeze vm_0,vm_1 started", "Freeze vm_0,vm_1 vanished completed",
			"Reboot vm_1 scheduled", "Reboot vm_1 started", "Reboot vm_1 vanished completed",
			"Reboot vm_2 scheduled", "Reboot vm_2 vanished canceled",
			"Redeploy vm_0 scheduled",
			"Reboot vm_1 started", "Reboot vm_1 vanished completed",
			"Reboot vm_2 scheduled", "Reboot vm_2 updated NotBefore", "Reboot vm_2 started", "Reboot vm_2 vanished completed",
			"Redeploy vm_0 started", "Redeploy vm_0 vanished completed",
			"Terminate vm_2 scheduled", "Terminate vm_2 started", "Terminate vm_2 vanished completed",
		}},
	} {
		untested = slices.DeleteFunc(untested, func(name string) bool { return name == tt.name })
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := changes(t, tt.name, tt.speed); !slices.Equal(got, tt.want) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
				}
			})
		})
	}
	if len(untested) > 0 {
		t.Errorf("no test plays %v", untested)
	}
}
