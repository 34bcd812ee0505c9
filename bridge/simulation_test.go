package bridge_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"
)

// Whatever happens to Azure's events, the endpoint, the destinations, the disk, the machine and the settings: every
// promise is kept. Each seed makes up another story.
//
//	FOREWARN_SEEDS=1000 go test ./bridge -run TestSimulation    tries so many
//	FOREWARN_SEED=17    go test ./bridge -run TestSimulation    tries one again, and says what happened
func TestSimulation(t *testing.T) {
	first, n := uint64(1), number(t, "FOREWARN_SEEDS", 30)
	again := number(t, "FOREWARN_SEED", 0)
	if again != 0 {
		first, n = again, 1
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // much is made, and little kept
	failed := 0
	for seed := first; seed < first+n && failed < 3; seed++ {
		p := planOf(seed)
		found := play(t, p, variant{}, quiet())
		if len(found) == 0 {
			continue
		}
		failed++
		p, found = shrink(t, p, variant{}, found)
		t.Errorf("seed %d:%s\nrepeat it with\n  %s=%d go test ./bridge -run TestSimulation\nwhat is left of it:\n%v",
			seed, describe(found), "FOREWARN_SEED", seed, p)
		if again != 0 {
			play(t, p, variant{}, loud(os.Stderr))
		}
	}
}

// play lets a plan happen, and gives the promises that were not kept.
func play(t *testing.T, p plan, v variant, log *slog.Logger) []finding {
	t.Helper()
	dir := scratch(t)
	defer os.RemoveAll(dir)
	frozen := time.AfterFunc(patience, func() {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		// It does when somebody waits for a lock and who holds it waits for the disk.
		panic(fmt.Sprintf("seed %d: time stands still\n%s", p.seed, stacks))
	})
	defer frozen.Stop()
	return unknown(examine(simulate(t, p, v, dir, log)))
}

// patience is how long a simulation may take. Most take a tenth of a second, a wave of events some, and ten times as
// long when races are looked for.
const patience = 5 * time.Minute

// scratch is a directory for one simulation, in memory where there is such a thing, because a disk takes its time to
// sync.
func scratch(t *testing.T) string {
	t.Helper()
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		parent = t.TempDir()
	}
	dir, err := os.MkdirTemp(parent, "forewarn-simulation-")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Clean(dir)
}

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
