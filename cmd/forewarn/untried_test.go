package main

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"forewarn/bridge/imdstest"
)

// The script that compares Azure with the emulator finds no difference between two emulators. It shows what an endpoint
// answers otherwise, and says so at its end.
func TestAzureIsComparedWithTheEmulator(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the script is for the sed of Linux")
	}
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed, and the script needs it", tool)
		}
	}
	compare := func(o imdstest.Options) (string, error) {
		t.Helper()
		azure := httptest.NewServer(imdstest.New(o).Metadata())
		t.Cleanup(azure.Close)
		c := exec.Command("sh", filepath.Join("..", "..", "examples", "untried", "azure.sh"), azure.URL)
		c.Env = append(os.Environ(), "PAUSE=0", "TMPDIR="+t.TempDir(), "HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		return string(out), err
	}

	out, err := compare(imdstest.Options{VMs: []string{"vm-of-azure"}})
	if err != nil || !strings.Contains(out, "The emulated Azure answers as Azure does.") || strings.Contains(out, "DIFFERS") {
		t.Errorf("two emulators: %v\n%s", err, out)
	}
	if strings.Contains(out, "vm-of-azure") {
		t.Errorf("the script shows the name of the VM:\n%s", out)
	}
	out, err = compare(imdstest.Options{Lax: true})
	const want = "DIFFERS  without the header Metadata\n         azure     Etag"
	if err == nil || !strings.Contains(out, want) || !strings.Contains(out, "2 answers differ.") {
		t.Errorf("an Azure that lets pass what the emulator refuses: %v, want %q\n%s", err, want, out)
	}
}
