package sinks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
		head, err = c.resume()
		if err != nil {
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
	dir, err := c.openFolder(filepath.Dir(c.path), false, c.log)
	if errors.Is(err, fs.ErrNotExist) {
		return chain.Start, nil
	}
	if err != nil {
		return "", err
	}
	defer dir.Close()
	hash, size, err := c.lastHash(dir, c.name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case hash != "":
		return hash, nil
	case size > 0:
		if err := setAside(dir, c.name, c.now()); err != nil {
			return "", fmt.Errorf("set aside %s, which has no chain: %w", c.path, err)
		}
		c.log.Info("file without a chain set aside", "path", c.path)
		return chain.Start, nil
	}
	old, err := oldFiles(dir, c.name)
	if err != nil || len(old) == 0 {
		return chain.Start, err
	}
	hash, _, err = c.lastHash(dir, old[len(old)-1])
	return cmp.Or(hash, chain.Start), err
}

// lastHash returns the chainhash of the last whole line of a file, "" if that line has none, and the file's size. If a
// chain ends in half a line, or the file has only half of its first, lastHash cuts that off: a crash left it, and its
// CloudEvent was never counted as delivered.
func (c *chainedFile) lastHash(dir folder, name string) (hash string, size int64, err error) {
	path := filepath.Join(filepath.Dir(c.path), name)
	info, err := dir.stat(name)
	if err != nil {
		return "", 0, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, fmt.Errorf("%s %w", path, errIrregular)
	}
	file, err := dir.open(name, os.O_RDONLY, 0) // a rotated file may be write-protected
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	size = info.Size()
	hash, whole, err := chain.Last(file, size)
	if half := size - whole; err == nil && half > 0 && (hash != "" || whole == 0 && isHalf(file, half)) {
		c.log.Warn("half a line cut off", "path", path, "bytes", half)
		size, err = whole, truncate(dir, name, whole)
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

func truncate(dir folder, name string, size int64) error {
	file, err := dir.open(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}
