package outbox

import "encoding/json"

// followAhead is how many CloudEvents a follower may be behind.
const followAhead = 1000

// Follow gives every CloudEvent that is added from now on, in the JSON format, until stop is called. The channel is
// closed when its reader falls too far behind.
func (o *Outbox) Follow() (events <-chan json.RawMessage, stop func()) {
	c := make(chan json.RawMessage, followAhead)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.followers[c] = true
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.followers, c)
	}
}

// show gives followers a CloudEvent. mu is held.
func (o *Outbox) show(body json.RawMessage) {
	for c := range o.followers {
		select {
		case c <- body:
		default:
			delete(o.followers, c)
			close(c)
		}
	}
}
