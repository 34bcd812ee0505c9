package sinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	lookAgain  = 10 * time.Millisecond  // between two looks at what is left
	lookSeldom = 100 * time.Millisecond // between two looks at what takes its time
	killPasses = 5                      // at most at a stop: what is killed may have started something else meanwhile
	slowPasses = 200                    // at most else: on a busy machine what is killed takes a while to end
)

// unfound stands for a process that is known only because it still has the output of the program open.
var unfound leftover

// runTerms are the terms of one run of a program.
type runTerms struct {
	marked bool          // find what it leaves wherever that is, if this system can
	grace  time.Duration // from SIGTERM to SIGKILL
	moment time.Duration // for what is about to end by itself when the program has ended
}

// A leftover is a process that a program has left running.
type leftover struct {
	pid   int
	name  string // of what it runs, as the system knows it
	ended bool   // it has ended since the program has, and may have started others
	apart bool   // it is not in the process group of the program
	lives bool   // it, or what it has started, could not be ended
}

// A groupEnd is how a program ended that had a process group.
type groupEnd struct {
	left []leftover // what it has left running
	cut  bool       // it was still running when ctx ended, or something that it has left was
}

// runGroup starts a program and waits until it ends. When ctx ends before, the program and all that it has started get
// SIGTERM, and what is still there after the grace gets SIGKILL. What a program has left running that has ended by
// itself is killed after a moment. What was killed after the program's end is returned: processGroup.rest says what each
// system finds.
//
// It locks its thread, because on Linux the program dies with the thread that started it.
func runGroup(ctx context.Context, cmd *exec.Cmd, terms runTerms) (e groupEnd, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mark, err := startMarked(cmd, terms.marked)
	defer endMarked(mark)
	if err != nil {
		return e, err
	}
	group := newProcessGroup(cmd.Process, mark)
	running, ended := context.WithCancel(context.Background())
	defer ended()
	graceEnd := make(chan time.Time, 1) // zero if the program had ended before ctx did
	stop := context.AfterFunc(ctx, func() {
		grace := terms.grace
		if errors.Is(ctx.Err(), context.Canceled) {
			grace = min(grace, shutdownGrace)
		}
		if !group.terminate() {
			graceEnd <- time.Time{}
			return
		}
		graceEnd <- time.Now().Add(grace)
		select {
		case <-time.After(grace):
			group.kill()
		case <-running.Done():
		}
	})
	defer stop()
	defer group.close()
	if !group.awaitEnd() {
		err = cmd.Wait()
		e.cut = !stop() && !(<-graceEnd).IsZero()
		return e, err
	}
	soon, cancel := context.WithTimeout(ctx, terms.moment)
	if !stop() {
		until := <-graceEnd
		e.cut = !until.IsZero()
		cancel()
		soon, cancel = context.WithDeadline(context.Background(), until)
	}
	defer cancel()
	ended() // from here on nothing is killed before it was found
	e.left = group.endRest(ctx, soon)
	group.close()
	err = cmd.Wait()
	e.cut = e.cut || len(e.left) > 0 && ctx.Err() != nil
	return e, err
}

// endRest kills what the program has left running, and returns it. What ends by itself until soon ends, such as the last
// member of a pipeline, is not returned. Processes that keep starting others are given up after a while, sooner if ctx
// has ended: they are returned as living.
func (g *processGroup) endRest(ctx, soon context.Context) []leftover {
	rest := g.rest()
	for pause := lookAgain; len(rest) > 0 && soon.Err() == nil; pause = min(2*pause, lookSeldom) {
		select {
		case <-time.After(pause):
		case <-soon.Done():
		}
		rest = g.rest()
	}
	g.kill() // also what can't be seen
	var killed []leftover
	for pass := 0; len(rest) > 0 && (pass < killPasses || pass < slowPasses && ctx.Err() == nil); pass++ {
		living := slices.DeleteFunc(rest, func(l leftover) bool { return l.ended })
		g.killRest(living)
		killed = append(killed, living...)
		time.Sleep(lookAgain)
		rest = g.rest()
	}
	for i := range rest {
		rest[i].lives = true
	}
	left := append(rest, killed...)
	slices.SortStableFunc(left, func(a, b leftover) int { return cmp.Compare(a.pid, b.pid) })
	return slices.CompactFunc(left, func(a, b leftover) bool { return a.pid == b.pid })
}

// describeLeft returns what people read of what a program has left running, "" if that is nothing. If the run was
// cut, the program had no chance to wait, so there is no advice.
func describeLeft(left []leftover, redact *redactor, cut bool) string {
	const most = 3 // names
	var names []string
	for _, l := range left[:min(len(left), most)] {
		names = append(names, redact.line(l.name, 40))
	}
	if more := len(left) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	lives := slices.ContainsFunc(left, func(l leftover) bool { return l.lives })
	what, end, it := "1 process", "which was ended", "it"
	switch {
	case len(left) == 0:
		return ""
	case len(left) == 1 && lives:
		end = "which can't be ended"
	case len(left) > 1:
		what, end, it = fmt.Sprintf("%d processes", len(left)), "which were ended", "them"
		if lives {
			end = "which can't all be ended"
		}
	}
	text := fmt.Sprintf("left %s running (%s), %s", what, strings.Join(names, ", "), end)
	if left[0] == unfound {
		text = "left something running that has its output open and can't be found to end it"
	}
	if cut {
		return text
	}
	return fmt.Sprintf("%s; wait for %s, or start %s %s", text, it, it, startApart)
}
