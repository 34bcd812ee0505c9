package sinks

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// slackPace is the time between two messages to one channel. Slack may disable an app that stays faster than that.
const slackPace = time.Second

// SlackTurns limits the sinks that share it to one message a second in each channel. The zero value is ready to use. It
// is safe for concurrent use.
type SlackTurns struct {
	pace time.Duration // 0 means slackPace

	mu       sync.Mutex
	channels map[string]*slackChannel // those of the settings, so they are few
}

// A slackChannel is a channel that messages are posted in, one after the other.
type slackChannel struct {
	turn chan struct{} // holds one value while somebody has the turn; who waits longest gets it next
	next time.Time     // the earliest time of the next message; for who has the turn
}

// wait waits until the next message may be posted in the channel, and takes that time. It fails if ctx ends first, and
// then delays nobody else. A nil SlackTurns never waits.
func (s *SlackTurns) wait(ctx context.Context, place string) error {
	if s == nil {
		return context.Cause(ctx)
	}
	c := s.channel(place)
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	select {
	case <-time.After(time.Until(c.next)):
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.next = time.Now().Add(cmp.Or(s.pace, slackPace))
	return nil
}

// channel returns the channel of that name.
func (s *SlackTurns) channel(place string) *slackChannel {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[place]
	if c == nil {
		c = &slackChannel{turn: make(chan struct{}, 1)}
		if s.channels == nil {
			s.channels = map[string]*slackChannel{}
		}
		s.channels[place] = c
	}
	return c
}
