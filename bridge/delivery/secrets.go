package delivery

import (
	"fmt"
	"os"
	"time"
)

// secretsEvery is the interval of checks of secret files while deliveries wait.
const secretsEvery = 2 * time.Second

// secrets notices when secret files change.
type secrets struct {
	files   []string
	stamps  string // times and sizes of the files at the last check
	checked time.Time
}

// wake returns the time of the next check, at most at.
func (s *secrets) wake(at, now time.Time) time.Time {
	if len(s.files) == 0 {
		return at
	}
	return earlier(at, now.Add(secretsEvery))
}

// changed reports whether one of the files has changed since the last check. It checks at most every secretsEvery.
func (s *secrets) changed(now time.Time) bool {
	if len(s.files) == 0 || now.Sub(s.checked) < secretsEvery {
		return false
	}
	s.checked = now
	var seen string
	for _, path := range s.files {
		if info, err := os.Stat(path); err == nil {
			seen += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), ";")
		} else {
			seen += "none;"
		}
	}
	was := s.stamps
	s.stamps = seen
	return was != "" && was != seen
}
