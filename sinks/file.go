package sinks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"forewarn/bridge/delivery"
)

type fileSettings struct {
	Path        Path          `yaml:"path" doc:"the file; - is standard output, under systemd the journal"`
	MaxSize     Size          `yaml:"max_size" doc:"start a new file at this size, such as 100MB (default: never)"`
	RotateEvery time.Duration `yaml:"rotate_every" doc:"start a new file each period, such as 1d (default: never)"`
	Keep        int           `yaml:"keep" default:"0" doc:"how many old files to keep; 0 keeps all"`
	Chain       bool          `yaml:"chain" doc:"chain the lines by hashes, so that changes to the file show"`
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
	switch {
	case s.Path == "-" && h.Console != nil:
		shown, err := h.Console(h.Zone)
		return Opened{Sink: shown}, err
	case s.Path == "-":
		return Opened{Sink: &stdoutSink{w: h.Stdout}}, nil
	}
	path := filepath.Clean(string(s.Path))
	f := &file{path: path, name: filepath.Base(path), rotation: r, log: h.Log, now: time.Now, write: (*os.File).Write,
		openFolder: openFolder}
	if s.Chain {
		return Opened{Sink: &chainedFile{file: f}}, nil
	}
	return Opened{Sink: f}, nil
}

// A stdoutSink writes one CloudEvent a line to the program's standard output.
type stdoutSink struct {
	jsonLine
	w    io.Writer
	torn bool // the last line is incomplete, so the next write has to begin a new one
}

// Deliver writes the batch in one write. If only part of it is written, the whole batch is sent again, on a new line.
func (s *stdoutSink) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return deliverLines(ctx, batch, s.write)
}

func (s *stdoutSink) write(lines []byte) error {
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

// deliverLines passes the CloudEvents of a batch, one a line, to write, or returns the cause if ctx has ended already.
// It cannot interrupt write. A CloudEvent that cannot be encoded rejects the whole batch, with delivery.ErrRejected.
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

// jsonLine renders deliveries for the sinks that write one CloudEvent a line.
type jsonLine struct{}

// Render returns the line, with its end.
func (jsonLine) Render(d delivery.Delivery) (string, error) {
	line, err := jsonLines([]delivery.Delivery{d})
	return string(line), err
}

// Connect always succeeds, because there is nothing to check.
func (s *stdoutSink) Connect(context.Context) (string, error) { return "standard output", nil }

// Connect checks that a delivery could write to the file. It leaves no file and no directory behind.
func (f *file) Connect(context.Context) (string, error) {
	if err := f.writable(); err != nil {
		return "", classOfFile(err)
	}
	return f.path + " can be written to", nil
}

func (f *file) writable() error {
	path := filepath.Dir(f.path)
	for notExist(path) && filepath.Dir(path) != path { // a delivery makes missing directories
		path = filepath.Dir(path)
	}
	dir, err := f.openFolder(path, false, f.log)
	if err != nil {
		return err
	}
	defer dir.Close()
	if path == filepath.Dir(f.path) {
		file, err := f.openIn(dir, os.O_RDWR|os.O_APPEND)
		if err == nil {
			return file.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	name := ".forewarn-check-" + rand.Text()
	file, err := dir.open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), dir.remove(name))
}

// notExist reports whether nothing has that name, not even a broken link. It returns false if that cannot be found out.
func notExist(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// A file appends one CloudEvent a line to a file. It opens the file for each delivery, so that other programs can
// rename, rotate or delete it at any time.
type file struct {
	jsonLine
	path       string
	name       string // the last part of path
	rotation   rotation
	log        *slog.Logger
	now        func() time.Time
	write      func(*os.File, []byte) (int, error)
	openFolder func(path string, missing bool, log *slog.Logger) (folder, error)
	rotateErr  string // why the last rotation failed, "" if it did not
}

// Deliver appends the batch and returns when it is on disk. If it cannot write the whole batch, it removes the part
// that it wrote, unless another program has written to the file meanwhile.
func (f *file) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	return deliverLines(ctx, batch, func(lines []byte) error { return classOfFile(f.append(lines)) })
}

// errIrregular is the error for a path that keeps nothing that is written to it, such as a pipe or a device.
var errIrregular = errors.New("is not a regular file")

// errForeign is the error for what root must not use where others may write: they may have put it there.
var errForeign = errors.New("can't be trusted")

// append rotates the file if it is due, then appends whole lines, and returns when they are on disk. It makes the file
// and its directory if they do not exist. Its errors have no class yet; see classOfFile.
func (f *file) append(lines []byte) error {
	dir, err := f.openFolder(filepath.Dir(f.path), true, f.log)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.stat(f.name)
	if err == nil && info.Mode().IsRegular() && f.rotation.due(info.Size(), int64(len(lines)), info.ModTime(), f.now()) {
		f.rotate(dir)
	}
	file, err := f.openIn(dir, os.O_RDWR|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	if err := f.appendTo(dir, file, lines); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// openIn opens the file in its folder. What is there has to be a regular file.
func (f *file) openIn(dir folder, flag int) (*os.File, error) {
	info, err := dir.stat(f.name)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s %w", f.path, errIrregular)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return dir.open(f.name, flag, 0o640)
}

// appendTo appends lines to the open file and syncs it. If the file does not end in a newline, it begins a new line.
func (f *file) appendTo(dir folder, file *os.File, lines []byte) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if old := info.Size(); old == 0 {
		if err := dir.sync(); err != nil { // the file may be new
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
	if left := f.undoWrite(dir, file, info.Size(), int64(n)); left != nil {
		return fmt.Errorf("%w, and part of it stays: %w", err, left)
	}
	return err
}

// undoWrite truncates a file to its old size, if the n bytes that were written since are all that was added. If another
// program has written to it too, or has replaced it, undoWrite changes nothing and returns nil. It opens the file a
// second time, because not every system can truncate one that is open for appending.
func (f *file) undoWrite(dir folder, file *os.File, old, n int64) error {
	if n <= 0 {
		return nil
	}
	writable, err := dir.open(f.name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer writable.Close()
	written, err := file.Stat()
	current, statErr := writable.Stat()
	err = cmp.Or(err, statErr)
	if err != nil || !os.SameFile(written, current) || current.Size() != old+n {
		return err
	}
	return writable.Truncate(old)
}

// classOfFile returns err with its class: if somebody has to act, it wraps delivery.ErrBlocked and names the remedy;
// else it is err itself, because a retry can help, as with a full disk.
func classOfFile(err error) error {
	remedy := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "let the user that forewarn runs as read and write there"
	case errors.Is(err, syscall.EROFS):
		remedy = "mount it writable, or name it in ReadWritePaths= of the unit"
	case errors.Is(err, errForeign):
		remedy = "where others may write, root follows no link, and uses only files of root's or of the directory's " +
			"owner; give the real path"
	case errors.Is(err, syscall.EISDIR), errors.Is(err, errIrregular):
		remedy = "path has to name a file, - is standard output"
	case errors.Is(err, syscall.ENOTDIR):
		remedy = "what path says is a directory is a file"
	default:
		return err
	}
	return fmt.Errorf("%w: %w: %s", delivery.ErrBlocked, err, remedy)
}

// jsonLines returns the CloudEvents of a batch as JSON in structured mode, one a line. Its error wraps
// delivery.ErrRejected.
func jsonLines(batch []delivery.Delivery) ([]byte, error) {
	var b bytes.Buffer
	for _, d := range batch {
		line, err := d.Event.MarshalJSON()
		switch {
		case err == nil && bytes.ContainsAny(line, "\r\n"): // data from elsewhere may be indented
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
