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
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"forewarn/bridge/delivery"
)

type fileSettings struct {
	Path        string        `yaml:"path" doc:"the file; - is standard output, under systemd the journal"`
	MaxSize     Size          `yaml:"max_size" doc:"start a new file at this size, such as 100MB (default: never)"`
	RotateEvery time.Duration `yaml:"rotate_every" doc:"start a new file each period, such as 1d (default: never)"`
	Keep        int           `yaml:"keep" default:"0" doc:"how many old files to keep; 0 keeps all"`
	Chain       bool          `yaml:"chain" doc:"chain the lines by hashes, so that changes to the file can be shown"`
}

// fileTerms: a record holds every change, however late.
var fileTerms = delivery.Terms{Timeout: 10 * time.Second, Late: delivery.LateSend, Batch: 256}

func openFile(s fileSettings, h Host) (Opened, error) {
	r := rotation{max: int64(s.MaxSize), every: s.RotateEvery, keep: s.Keep}
	var wrong KeyErrors
	wrong.when(s.Path == "", "path", "missing; expected the path of a file, or - for standard output")
	wrong.when(s.Path != "" && os.IsPathSeparator(s.Path[len(s.Path)-1]), "path",
		"%s is a directory; expected the path of a file", s.Path)
	wrong.when(s.RotateEvery != 0 && s.RotateEvery < time.Minute, "rotate_every", "expected at least 1m")
	wrong.when(s.Keep < 0, "keep", "expected how many rotated files stay, or 0 for all")
	wrong.when(s.Keep > 0 && r.max == 0 && r.every == 0, "keep",
		"is about rotated files; expected max_size or rotate_every too")
	wrong.when(s.Path == "-" && r.max > 0, "max_size", "standard output cannot be rotated")
	wrong.when(s.Path == "-" && r.every > 0, "rotate_every", "standard output cannot be rotated")
	wrong.when(s.Path == "-" && s.Chain, "chain", "standard output cannot be read back; expected the path of a file")
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	if s.Path == "-" {
		return Opened{Sink: &stream{w: h.Stdout}}, nil
	}
	f := &file{path: filepath.Clean(s.Path), rotation: r, log: h.Log, now: time.Now, write: (*os.File).Write,
		rename: renameNew}
	if s.Chain {
		return Opened{Sink: &chainedFile{file: f}}, nil
	}
	return Opened{Sink: f}, nil
}

// stream writes one CloudEvent a line to the program's standard output.
type stream struct {
	jsonLine
	w    io.Writer
	torn bool // the last line is incomplete
}

// Deliver writes the batch in one write.
func (s *stream) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return deliverLines(ctx, batch, s.write)
}

func (s *stream) write(lines []byte) error {
	if s.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := s.w.Write(lines)
	s.torn = n < len(lines) && (n > 0 || s.torn)
	if err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}

// deliverLines writes the CloudEvents of a batch, one a line, unless ctx has ended. ctx does not interrupt write.
func deliverLines(ctx context.Context, batch []delivery.Delivery, write func(lines []byte) error) (delivery.Answer,
	error) {
	lines, err := jsonLines(batch)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = write(lines)
	}
	if err != nil {
		return delivery.Answer{}, err
	}
	return delivery.Answer{Status: "written"}, nil
}

// jsonLine is what a CloudEvent becomes in a file and on a stream.
type jsonLine struct{}

// Render returns the line.
func (jsonLine) Render(d delivery.Delivery) (string, error) {
	line, err := jsonLines([]delivery.Delivery{d})
	return string(line), err
}

// Connect has nothing to check.
func (s *stream) Connect(context.Context) (string, error) { return "standard output", nil }

// Connect checks that a delivery could write to the file, and changes nothing.
func (f *file) Connect(context.Context) (string, error) {
	return f.path + " can be written to", classOfFile(f.writable())
}

func (f *file) writable() error {
	info, err := os.Stat(f.path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", f.path, errIrregular)
	case err == nil:
		file, err := openAt(f.path, os.O_RDWR|os.O_APPEND, 0, f.log)
		if err != nil {
			return err
		}
		return file.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	dir := filepath.Dir(f.path)
	for missing(dir) && filepath.Dir(dir) != dir { // a delivery makes the missing ones
		dir = filepath.Dir(dir)
	}
	file, err := os.CreateTemp(dir, ".forewarn-check-*")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// file appends one CloudEvent a line to a file. It holds nothing open between two deliveries, so that others can
// rename, rotate or delete the file at any time.
type file struct {
	jsonLine
	path      string
	rotation  rotation
	log       *slog.Logger
	now       func() time.Time
	write     func(*os.File, []byte) (int, error)
	rename    func(path, name string) error // renameNew
	rotateErr string                        // why the last rotation failed
}

// Deliver appends the batch and returns when it is on disk. A batch that cannot be written whole is taken back.
func (f *file) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return deliverLines(ctx, batch, func(lines []byte) error { return classOfFile(f.append(lines)) })
}

// errIrregular refuses what keeps nothing that is written to it, such as a pipe or a device.
var errIrregular = errors.New("is not a regular file")

// errForeign refuses a file in another user's directory that is neither root's nor that user's.
var errForeign = errors.New("is not the directory owner's")

func (f *file) append(lines []byte) error {
	switch info, err := os.Stat(f.path); {
	case errors.Is(err, fs.ErrNotExist):
		if err := makeDir(filepath.Dir(f.path)); err != nil {
			return err
		}
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", f.path, errIrregular)
	case f.rotation.due(info.Size(), int64(len(lines)), info.ModTime(), f.now()):
		f.rotate()
	}
	file, err := openAt(f.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o640, f.log)
	if err != nil {
		return err
	}
	if err := f.appendTo(file, lines); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func (f *file) appendTo(file *os.File, lines []byte) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if old := info.Size(); old == 0 {
		if err := syncDir(filepath.Dir(f.path)); err != nil { // it may be new
			return err
		}
	} else {
		var last [1]byte
		if _, err := file.ReadAt(last[:], old-1); err != nil {
			return err
		}
		if last[0] != '\n' { // a crash left half a line, or another program is writing one
			lines = append([]byte{'\n'}, lines...)
		}
	}
	n, err := f.write(file, lines)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		return nil
	}
	if left := undoWrite(file, info.Size(), int64(n)); left != nil {
		return fmt.Errorf("%w, and part of it stays: %w", err, left)
	}
	return err
}

// undoWrite cuts a file back to its old size if n bytes were added since, and nothing by another program. It opens the
// file a second time, because not every system can cut a file that is open for appending.
func undoWrite(file *os.File, old, n int64) error {
	if n <= 0 {
		return nil
	}
	again, err := os.OpenFile(file.Name(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer again.Close()
	before, err := file.Stat()
	now, failed := again.Stat()
	if err = cmp.Or(err, failed); err != nil || !os.SameFile(before, now) || now.Size() != old+n {
		return err
	}
	return again.Truncate(old)
}

// makeDir makes a directory and those above it that are missing.
func makeDir(path string) error {
	above := filepath.Dir(path)
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.IsDir(): // Windows says no more than that what is below it does not exist
		return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist), above == path:
		return err
	}
	if err := makeDir(above); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(above)
}

// syncDir makes the names in a directory durable, where the file system can.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil // one may write to a directory that one may not read
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// classOfFile returns err with its class and the remedy: blocked if somebody has to act, else to be retried, such as a
// full disk.
func classOfFile(err error) error {
	remedy := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "let the user that forewarn runs as read and write there"
	case errors.Is(err, syscall.EROFS):
		remedy = "mount it writable, or name it in ReadWritePaths= of the unit"
	case errors.Is(err, errForeign):
		remedy = "root writes in another user's directory only to what is root's or that user's"
	case errors.Is(err, syscall.EISDIR), errors.Is(err, errIrregular):
		remedy = "path has to name a file, - is standard output"
	case errors.Is(err, syscall.ENOTDIR):
		remedy = "what path says is a directory is a file"
	default:
		return err
	}
	return fmt.Errorf("%w: %w: %s", delivery.ErrBlocked, err, remedy)
}

// jsonLines returns the CloudEvents of a batch in structured mode, one a line.
func jsonLines(batch []delivery.Delivery) ([]byte, error) {
	var b bytes.Buffer
	for _, d := range batch {
		line, err := d.Event.MarshalJSON()
		switch {
		case err == nil && bytes.ContainsAny(line, "\r\n"): // between the values of data from elsewhere
			err = json.Compact(&b, line)
		case err == nil:
			b.Write(line)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s as JSON: %w", delivery.ErrRejected, d.Event.ID(), err)
		}
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}
