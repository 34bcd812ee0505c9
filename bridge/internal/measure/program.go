package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// build builds a package as a release is built.
func build(pkg, path string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", path}, flags...)
	c := exec.Command("go", append(args, pkg)...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// A program is one that runs.
type program struct {
	cmd  *exec.Cmd
	log  bytes.Buffer  // to be read when it has ended
	gone chan struct{} // closed then
}

func start(path string, args ...string) (*program, error) {
	p := &program{cmd: exec.Command(path, args...), gone: make(chan struct{})}
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

func (p *program) stop() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

func (p *program) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// pending is how many deliveries a running forewarn says it has to make.
func (b *bench) pending(config string) (int, error) {
	text, err := exec.Command(b.forewarn, "status", "--config", config, "-o", "json").Output()
	exit, ended := errors.AsType[*exec.ExitError](err)
	if ended && exit.ExitCode() == 1 { // it is not ready, as when the emulated service is slow
		err = nil
	}
	if err != nil {
		return 0, fmt.Errorf("forewarn status: %w", err)
	}
	var status struct {
		Outbox struct{ Pending int }
	}
	err = json.Unmarshal(text, &status)
	return status.Outbox.Pending, err
}

// cpu is the time that the program has spent on a CPU.
func (p *program) cpu() (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that ended
		}
		ns, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// memory is the resident memory of the program, and the part of it that is no file's, in MiB.
func (p *program) memory() (resident, anonymous float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		key, rest, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
		switch key {
		case "VmRSS":
			resident = kib / 1024
		case "RssAnon":
			anonymous = kib / 1024
		}
	}
	return resident, anonymous, nil
}
