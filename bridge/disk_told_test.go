package bridge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A disk that can't be written is told once, from memory, to those who hear of trouble, and so is its end. A failure of
// some seconds is told to nobody, and a disk that fails again and again is no flood of messages.
func TestADiskThatCannotBeWrittenIsToldOnce(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		admin, all, others := &recorder{}, &recorder{}, &recorder{}
		hearsAll := func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }
		b := s.up(admin.trouble("admin"), all.trouble("all").With(hearsAll), others.all("others"))
		fails := func(d time.Duration) {
			s.disk.fail(errFull)
			s.userReboot(idA)
			s.azure.End(idA) // so that there is something to write
			s.userReboot(idB)
			pause(d)
			s.disk.fail(nil)
			s.azure.End(idB)
		}
		fails(4 * time.Second)
		pause(5 * time.Minute)
		wantIDs(t, admin.types())

		s.disk.fail(errFull)
		s.userReboot(idA)
		pause(8 * time.Second)
		wantIDs(t, admin.types())
		pause(6 * time.Second)
		wantIDs(t, admin.types(), "outbox.unwritable")
		data := wantSays(t, admin.accepted()[0], map[string]any{"file": b.Outbox.Path()})
		wantIn(t, "why", fmt.Sprint(data["error"]), errFull.Error())
		wantIn(t, "since when", fmt.Sprint(data["since"]), "2000-01-01T00:0")
		pause(time.Hour)
		wantIDs(t, admin.types(), "outbox.unwritable")
		s.disk.fail(nil)
		pause(50 * time.Second)
		wantIDs(t, admin.types(), "outbox.unwritable")
		pause(20 * time.Second)
		wantIDs(t, admin.types(), "outbox.unwritable", "outbox.writable")

		fails(time.Minute) // soon after the last one
		pause(20 * time.Minute)
		wantIDs(t, admin.types(), "outbox.unwritable", "outbox.writable")
		before := len(admin.types())
		for range 40 { // an hour
			fails(20 * time.Second)
			pause(70 * time.Second)
		}
		wantWithin(t, "CloudEvents about a disk that fails every minute and a half", len(admin.types())-before, 2, 14)
		isAboutDisk := func(typ string) bool { return strings.HasPrefix(typ, "outbox.") }
		wantEqual(t, "a sink that hears nothing of the bridge heard of it", slices.ContainsFunc(others.types(), isAboutDisk), false)
		heardAll := strings.Join(all.types(), " ")
		wantIn(t, "who hears all of the bridge heard", heardAll, "outbox.unwritable")
		wantIn(t, "who hears all of the bridge heard", heardAll, "outbox.writable")
	})
}

// It is told also if it is so from the start.
func TestADiskThatIsFullAtTheStartIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		admin := &recorder{}
		s.disk = &faultyDisk{Storage: outbox.File(s.dir, s.logger())}
		s.disk.fail(errFull)
		box, err := outbox.Open(s.dir, outbox.Options{Log: s.logger(), Storage: s.disk})
		must(t, err)
		s.startWith(box, admin.trouble("admin"))
		pause(30 * time.Second)
		wantIDs(t, admin.types(), "outbox.unwritable")
		s.disk.fail(nil)
		pause(90 * time.Second)
		wantIDs(t, admin.types(), "outbox.unwritable", "outbox.writable")
	})
}
