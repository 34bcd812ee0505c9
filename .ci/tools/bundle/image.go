package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The media types of OCI's image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        *descriptor       `json:"config,omitempty"`
	Layers        []descriptor      `json:"layers,omitempty"`
	Manifests     []descriptor      `json:"manifests,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type config struct {
	Created time.Time `json:"created"`
	platform
	Config struct {
		User       string
		Entrypoint []string
		Cmd        []string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// A layout is an image layout in the making: a tar file with a blob for each part.
type layout struct {
	tar  *tar.Writer
	made time.Time
	has  map[string]bool
}

func (l *layout) file(name string, content []byte) error {
	return writeFile(l.tar, name, 0o644, l.made, content)
}

// blob adds a part, once.
func (l *layout) blob(mediaType string, content []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
	if l.has[d.Digest] {
		return d, nil
	}
	l.has[d.Digest] = true
	return d, l.file("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), content)
}

// encoded adds a part that is JSON.
func (l *layout) encoded(mediaType string, v any) (descriptor, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, content)
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func writeFile(t *tar.Writer, name string, mode int64, made time.Time, content []byte) error {
	h := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), ModTime: made, Typeflag: tar.TypeReg}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}

func writeImage(w io.Writer, made time.Time, version string, binaries []string) error {
	l := &layout{tar.NewWriter(w), made, map[string]bool{}}
	if err := l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	roots := authorities()
	images := manifest{SchemaVersion: 2, MediaType: typeIndex}
	for _, b := range binaries {
		name, path, ok := strings.Cut(b, "=")
		system, arch, fine := strings.Cut(name, "/")
		if !ok || !fine {
			return fmt.Errorf("%q: want OS/ARCHITECTURE=BINARY", b)
		}
		program, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		d, err := l.image(platform{arch, system}, version, program, roots)
		if err != nil {
			return err
		}
		images.Manifests = append(images.Manifests, d)
	}
	all, err := l.encoded(typeIndex, images)
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	index, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{all}})
	if err != nil {
		return err
	}
	if err := l.file("index.json", index); err != nil {
		return err
	}
	return l.tar.Close()
}

// authorities returns the certificates of the public authorities that Mozilla trusts. Those that it trusts only within
// limits, which a file of certificates can't express, are left out.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes all
		}
	}
	return all.Bytes()
}

// image adds the image for one platform.
func (l *layout) image(p platform, version string, program, roots []byte) (descriptor, error) {
	files, err := l.layer(program, roots)
	if err != nil {
		return descriptor{}, err
	}
	c := config{Created: l.made, platform: p}
	c.Config.User = "65532:65532"
	c.Config.Entrypoint, c.Config.Cmd = []string{"/forewarn"}, []string{"run"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{digest(files)}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(files); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	layer, err := l.blob(typeLayer, packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	setup, err := l.encoded(typeConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.encoded(typeManifest, manifest{SchemaVersion: 2, MediaType: typeManifest, Config: &setup,
		Layers: []descriptor{layer}, Annotations: map[string]string{
			"org.opencontainers.image.title": "forewarn", "org.opencontainers.image.version": version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		}})
	d.Platform = &p
	return d, err
}

// layer is the image's only layer: the program, and the certificates of public authorities.
func (l *layout) layer(program, roots []byte) ([]byte, error) {
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/"} {
		h := &tar.Header{Name: dir, Mode: 0o755, ModTime: l.made, Typeflag: tar.TypeDir}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	if err := writeFile(t, "etc/ssl/certs/ca-certificates.crt", 0o644, l.made, roots); err != nil {
		return nil, err
	}
	if err := writeFile(t, "forewarn", 0o755, l.made, program); err != nil {
		return nil, err
	}
	err := t.Close()
	return out.Bytes(), err
}
