package main

import (
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// The second half of step 1 of examples/fleet makes what three servers take: a certificate with the name of its host, and
// a cluster of which only its certificates make a member. What listens is what the page says. .ci/machine/fleet types the
// whole page.
func TestThePageOfAFleetMakesWhatItsServersTake(t *testing.T) {
	for _, tool := range []string{"bash", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed, and the page takes it", tool)
		}
	}
	dir := t.TempDir()
	blocks := codeBlocks(t, "examples/fleet/README.md", "1. On your machine: passwords and certificates")
	if len(blocks) != 2 {
		t.Fatalf("step 1 has %d code blocks, want 2", len(blocks))
	}
	for _, name := range []string{"server.conf", "nats.conf", "nats-server.service"} {
		write(t, filepath.Join(dir, name), strings.ReplaceAll(example(t, "fleet/"+name), "/etc/nats/", ""))
	}
	for _, name := range []string{"nats-server", "forewarn_0.1.0_amd64.deb", "relay/relay.yaml", "web/forewarn.yaml"} {
		write(t, filepath.Join(dir, filepath.FromSlash(name)), "")
	}
	c := exec.Command("bash", "-ec", "umask 077; scp() { [[ -d $2 && $3 == *.example.com: ]]; }\n"+blocks[1])
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil || strings.Count(string(out), "cert.pem: OK\n") != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
	passwords, err := os.ReadFile(filepath.Join(dir, "passwords"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(passwords)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		t.Setenv(name, value)
	}
	clients := map[string]string{}
	for _, user := range []string{"admin", "relay", "web"} {
		clients[user] = example(t, "fleet/"+user+".yaml")
	}
	for _, host := range []string{"nats-1", "nats-2", "nats-3"} {
		t.Chdir(filepath.Join(dir, host))
		o, err := server.ProcessConfigFile("server.conf")
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		if o.TLSConfig == nil || o.Cluster.TLSConfig == nil || o.Cluster.TLSConfig.ClientAuth != tls.RequireAndVerifyClientCert {
			t.Errorf("%s doesn't ask each server for a certificate", host)
		}
		leaf := o.TLSConfig.Certificates[0].Leaf
		if err := leaf.VerifyHostname(host + ".example.com"); err != nil || leaf.IsCA {
			t.Errorf("%s has a certificate for %v, of a CA %v: %v", host, leaf.DNSNames, leaf.IsCA, err)
		}
		if o.Port != 4222 || o.Cluster.Port != 6222 || o.HTTPPort != 0 || o.HTTPSPort != 0 || !o.Cluster.NoAdvertise {
			t.Errorf("%s listens at %d, %d, %d and %d", host, o.Port, o.Cluster.Port, o.HTTPPort, o.HTTPSPort)
		}
		if len(o.Routes) != 3 {
			t.Errorf("%s has the routes %v", host, o.Routes)
		}
		for user, text := range clients {
			if !strings.Contains(text, "username: "+user) || !strings.Contains(text, "tls://"+host+".") {
				t.Errorf("%s.yaml isn't that of the user %s, or doesn't know %s", user, user, host)
			}
		}
	}
}
