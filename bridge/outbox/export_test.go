package outbox

// InMemory returns how many pending deliveries no disk has yet.
func (o *Outbox) InMemory() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unstored(false))
}

// PendingBytes returns what Bounds.PendingBytes bounds.
func (o *Outbox) PendingBytes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pending.bytes
}
