package sinks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"forewarn/bridge/cloudevent/chain"
	"forewarn/bridge/delivery"
)

// A chainedFile is a file whose lines form a chain of hashes (see package chain), which continues across rotations and
// restarts. It needs no other state: a restart reads the last hash from the file, or from the newest rotated file if
// the file is new.
type chainedFile struct {
	*file

	head atomic.Value // chainhash of the last line that this process wrote; "" if it must be read from the file
}

// Head returns the chainhash of the last line that this process wrote. It returns "" before the first write, and after
// one that failed. It may be called from any goroutine.
func (c *chainedFile) Head() string {
	head, _ := c.head.Load().(string)
	return head
}

// Deliver appends the batch to the chain and returns when it is on disk.
//
// It continues from the last line that it wrote, not from the last line in the file. If somebody has cut lines off
// since, the next line does not fit the one before it, and a check of the chain shows that.
func (c *chainedFile) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return deliverLines(ctx, batch, func(lines []byte) error { return classOfFile(c.extend(lines)) })
}

// extend adds a chainhash to each of the lines and appends them to the file.
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
		head = "" // part of the batch may be in the file
	}
	c.head.Store(head)
	return err
}

// resume returns the hash that the next line continues from: that of the last whole line of the file or, if the file is
// new or empty, of the newest rotated file. If the file ends in a line without a chainhash, resume renames it, as a
// rotation does, and starts a new chain.
func (c *chainedFile) resume() (string, error) {
	hash, size, err := c.lastHash(c.path)
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
	if hash, _, err = c.lastHash(old[len(old)-1].path); hash == "" {
		hash = chain.Start
	}
	return hash, err
}

// lastHash returns the chainhash of the last whole line of a file, "" if that line has none, and the file's size. If a
// chain ends in half a line, or the file has only half of its first, lastHash cuts that off: a crash left it, and its
// CloudEvent was never counted as delivered.
func (c *chainedFile) lastHash(path string) (hash string, size int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, fmt.Errorf("%s %w", path, errIrregular)
	}
	file, err := openAt(path, os.O_RDONLY, 0, c.log) // a rotated file may be write-protected
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	size = info.Size()
	hash, whole, err := chain.Last(file, size)
	if half := size - whole; err == nil && half > 0 && (hash != "" || whole == 0 && isHalf(file, half)) {
		c.log.Warn("half a line cut off", "path", path, "bytes", half)
		size, err = whole, c.truncate(path, whole)
	}
	return hash, size, err
}

// isHalf reports whether a file of size bytes without a newline begins as a CloudEvent and is not a whole one of somebody
// else: then it is what was written of the first line.
func isHalf(file io.ReaderAt, size int64) bool {
	const begins = `{"specversion":`
	line := make([]byte, size)
	_, err := file.ReadAt(line, 0)
	return err == nil && bytes.HasPrefix(line, []byte(begins[:min(len(begins), len(line))])) &&
		(!json.Valid(line) || bytes.Contains(line, []byte(`,"chainhash":"`)))
}

func (c *chainedFile) truncate(path string, size int64) error {
	file, err := openAt(path, os.O_RDWR, 0, c.log)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}
