package delivery

import (
	"fmt"
	"os"
	"time"
)

// secretsEvery is how often secret files are looked at while something waits.
const secretsEvery = 2 * time.Second

// secrets notices when files with credentials change.
type secrets struct {
	files  []string
	seen   string // how they looked
	looked time.Time
}

// wake is the time to look again, if that comes before at.
func (s *secrets) wake(at, now time.Time) time.Time {
	if len(s.files) == 0 {
		return at
	}
	return earlier(at, now.Add(secretsEvery))
}

// changed says whether one of the files looks different than last time. It looks at most every secretsEvery.
func (s *secrets) changed(now time.Time) bool {
	if len(s.files) == 0 || now.Sub(s.looked) < secretsEvery {
		return false
	}
	s.looked = now
	var seen string
	for _, path := range s.files {
		if info, err := os.Stat(path); err == nil {
			seen += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), ";")
		} else {
			seen += "none;"
		}
	}
	was := s.seen
	s.seen = seen
	return was != "" && was != seen
}
