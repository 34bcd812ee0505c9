package bridge_test

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge/systemtest"
)

// Whatever happens to Azure's events, the endpoint, the destinations, the disk, the machine and the settings: every
// promise is kept. Each seed makes up another story. The machine's clock is stepped only between two runs of the program,
// because time.Now in a bubble of testing/synctest can't be set; .ci/full steps that of the real program while it runs.
//
//	FOREWARN_SEEDS=1000 go test ./bridge -run TestSimulation    tries so many
//	FOREWARN_FROM=5000  go test ./bridge -run TestSimulation    begins with that seed, beside the other
//	FOREWARN_SEED=17    go test ./bridge -run TestSimulation    tries one again, and prints the log of what is left of it
func TestSimulation(t *testing.T) {
	few := uint64(10)
	if systemtest.Whole() {
		few = 30
	}
	first, n := number(t, "FOREWARN_FROM", 1), number(t, "FOREWARN_SEEDS", few)
	again := number(t, "FOREWARN_SEED", 0)
	if again != 0 {
		first, n = again, 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // much is made, and little kept
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(2 << 30))
	var failed, next atomic.Uint64
	next.Store(first)
	var players sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		players.Go(func() {
			for seed := next.Add(1) - 1; seed < first+n && failed.Load() < 3; seed = next.Add(1) - 1 {
				if !keeps(t, seed) {
					failed.Add(1)
				}
			}
		})
	}
	players.Wait()
}

// keeps reports whether a seed's simulation keeps every promise. If not, it logs a story shrunk to what is needed, in the
// words of knownStories.
func keeps(t *testing.T, seed uint64) bool {
	p := planOf(seed)
	found := play(t, p, variant{}, quiet())
	if len(found) == 0 {
		return true
	}
	p, found = shrink(t, p, variant{}, found)
	t.Errorf("seed %d:%s\nrepeat it with\n  %s=%d go test ./bridge -run TestSimulation\nwhat is left of it:\n%v",
		seed, describe(found), "FOREWARN_SEED", seed, p)
	if os.Getenv("FOREWARN_SEED") != "" {
		play(t, p, variant{}, loud(os.Stderr))
	}
	return false
}

// play runs a plan, and returns the promises that were not kept.
func play(t *testing.T, p plan, v variant, log *slog.Logger) []finding {
	t.Helper()
	frozen := time.AfterFunc(patience, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		// It does when somebody waits for a lock and who holds it waits for the disk.
		panic(fmt.Sprintf("seed %d: time stands still\n%s", p.seed, stacks))
	})
	defer frozen.Stop()
	return examine(simulate(t, p, v, log))
}

// patience is how long a simulation may take. Most take a tenth of a second, a wave of events some, and ten times as
// long when races are looked for.
const patience = 15 * time.Minute

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", name, err))
	}
	return n
}

// shrink leaves out of a plan what it fails without: it drops steps, many at a time and then one by one, and then routes,
// as long as the same promise is not kept, for a minute. It gives what was found last too.
func shrink(t *testing.T, p plan, v variant, found []finding) (plan, []finding) {
	t.Helper()
	promise, enough := found[0].promise, time.Now().Add(time.Minute)
	fails := func(p plan) bool {
		for range 2 { // jitter and goroutines are not in the plan, so it may fail only now and then
			now := play(t, p, v, quiet())
			if slices.ContainsFunc(now, func(f finding) bool { return f.promise == promise }) {
				found = now
				return true
			}
		}
		return false
	}
	for n := max(1, len(p.steps)/2); time.Now().Before(enough); n /= 2 {
		for i := 0; i < len(p.steps) && time.Now().Before(enough); {
			smaller := p
			smaller.steps = slices.Delete(slices.Clone(p.steps), i, min(i+n, len(p.steps)))
			if fails(smaller) {
				p = smaller
			} else {
				i += n
			}
		}
		if n <= 1 {
			break
		}
	}
	for i := 0; i < len(p.routes) && len(p.routes) > 1 && time.Now().Before(enough); {
		smaller := p
		smaller.routes = slices.Delete(slices.Clone(p.routes), i, i+1)
		if fails(smaller) {
			p = smaller
		} else {
			i++
		}
	}
	return p, found
}
