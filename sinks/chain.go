package sinks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"forewarn/bridge/cloudevent/chain"
	"forewarn/bridge/delivery"
)

// chainedFile is a file whose lines form a chain, across its rotations and across restarts. All that a restart needs is
// in the file, or, if that is new, in the newest old one.
type chainedFile struct {
	*file

	head atomic.Value // chainhash of the last line that this run wrote; "" if the file has to be asked
}

// Head returns the chainhash of the last line that this run wrote, "" if there is none yet.
func (c *chainedFile) Head() string {
	head, _ := c.head.Load().(string)
	return head
}

// Deliver appends the batch to the chain and returns when it is on disk.
//
// It goes on from the last line that it wrote, whatever is in the file now: so lines that somebody cuts off while it
// runs are missed by the next one.
func (c *chainedFile) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return deliverLines(ctx, batch, func(lines []byte) error { return classOfFile(c.extend(lines)) })
}

func (c *chainedFile) extend(lines []byte) error {
	head := c.Head()
	if head == "" {
		var err error
		if head, err = c.resume(); err != nil {
			return err
		}
	}
	var chained, line []byte
	for object := range bytes.Lines(lines) {
		line, head = chain.Append(object, head)
		chained = append(append(chained, line...), '\n')
	}
	err := c.append(chained)
	if err != nil {
		head = "" // some of it may be in the file
	}
	c.head.Store(head)
	return err
}

// resume returns the hash that the next line follows: that of the last whole line of the file or, if the file is new or
// empty, of the newest old file. It sets aside a file that ends without a chain.
func (c *chainedFile) resume() (string, error) {
	hash, size, err := c.last(c.path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case hash != "":
		return hash, nil
	case size > 0:
		if err := setAside(c.path, c.now(), c.rename); err != nil {
			return "", fmt.Errorf("set aside %s, which has no chain: %w", c.path, err)
		}
		c.log.Info("file without a chain set aside", "path", c.path)
		return chain.Start, nil
	}
	old, err := oldFiles(c.path)
	if err != nil || len(old) == 0 {
		return chain.Start, err
	}
	if hash, _, err = c.last(old[len(old)-1]); hash == "" {
		hash = chain.Start
	}
	return hash, err
}

// last returns the chainhash of the last whole line of a file, and its size. If a chain ends in half a line, which a
// crash left and nobody counts as delivered, last cuts that off.
func (c *chainedFile) last(path string) (hash string, size int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, fmt.Errorf("%s %w", path, errIrregular)
	}
	file, err := openAt(path, os.O_RDONLY, 0, c.log) // an old one may be write-protected
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	hash, whole, err := chain.Last(file, info.Size())
	if half := info.Size() - whole; err == nil && hash != "" && half > 0 {
		c.log.Warn("half a line cut off", "path", path, "bytes", half)
		err = c.cut(path, whole)
	}
	return hash, info.Size(), err
}

func (c *chainedFile) cut(path string, size int64) error {
	file, err := openAt(path, os.O_RDWR, 0, c.log)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}
