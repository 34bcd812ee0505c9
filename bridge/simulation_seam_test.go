package bridge

import "log/slog"

// OpenOutboxOn is OpenOutbox with a seam: each transaction of the file goes through disk.
func OpenOutboxOn(dir string, log *slog.Logger, disk func(write func() error) error) (*Outbox, error) {
	o := newOutbox(dir, false, log)
	o.store.disk = disk
	return o.start()
}
