// Bundle makes the archives of a release that the machine has no tool for, with the same bytes everywhere:
//
//	go -C .ci/tools run ./bundle zip OUT NAME=FILE...
//	go -C .ci/tools run ./bundle image OUT VERSION linux/amd64=BINARY...
//	go -C .ci/tools run ./bundle provenance OUT VERSION COMMIT GOVERSION SUMS
//
// zip makes a .zip with these files. image makes a container image of static binaries as a .tar in OCI's image layout
// (https://github.com/opencontainers/image-spec, v1.1), which podman, docker, skopeo and containerd take: the same
// image as examples/container/Containerfile builds, without an engine and for all platforms at once. The certificates of
// public authorities in it are Mozilla's, of the version in go.mod. provenance says of each file in a list of sha256sum
// from which commit and with which Go it was built.
//
// Every time in them is SOURCE_DATE_EPOCH.
package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	made := time.Unix(seconds, 0).UTC()
	var write func(io.Writer) error
	switch {
	case len(args) > 2 && args[0] == "zip":
		write = func(w io.Writer) error { return writeZip(w, made, args[2:]) }
	case len(args) > 3 && args[0] == "image":
		write = func(w io.Writer) error { return writeImage(w, made, args[2], args[3:]) }
	case len(args) == 6 && args[0] == "provenance":
		write = func(w io.Writer) error { return writeProvenance(w, args[2], args[3], args[4], args[5]) }
	default:
		return errors.New("usage: bundle zip OUT NAME=FILE... | bundle image OUT VERSION PLATFORM=BINARY... | " +
			"bundle provenance OUT VERSION COMMIT GOVERSION SUMS")
	}
	out, err := os.Create(args[1])
	if err != nil {
		return err
	}
	return errors.Join(write(out), out.Close())
}

func writeZip(w io.Writer, made time.Time, files []string) error {
	z := zip.NewWriter(w)
	for _, f := range files {
		name, path, ok := strings.Cut(f, "=")
		if !ok {
			return fmt.Errorf("%q: want NAME=FILE", f)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		part, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: made})
		if err != nil {
			return err
		}
		if _, err := part.Write(content); err != nil {
			return err
		}
	}
	return z.Close()
}
