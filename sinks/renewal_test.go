package sinks

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// A secret in a file of any kind is read again on use: a sink whose destination refuses the old one is accepted with
// the next attempt after another file was moved into its place. The file is among those that end the wait of a blocked
// sink.
func TestEverySecretFileIsReadAgainOnUse(t *testing.T) {
	t.Parallel()
	hook := func(right func(r *http.Request, body string) bool) string {
		return "url: " + serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); !right(r, string(body)) {
				w.WriteHeader(http.StatusUnauthorized)
			}
			io.WriteString(w, "ok") // the word of Slack
		})).URL + "\n"
	}
	header := func(name, value string) string {
		return hook(func(r *http.Request, _ string) bool { return r.Header.Get(name) == value })
	}
	path := hook(func(r *http.Request, _ string) bool { return r.URL.Path == "/new" })
	address := strings.TrimSpace(strings.TrimPrefix(path, "url: "))
	signed := hook(func(r *http.Request, body string) bool {
		verifier, err := standardwebhooks.NewWebhook(secretXX)
		return err == nil && verifier.Verify([]byte(body), r.Header) == nil
	})

	nats := func(needs func(*server.Options)) string {
		return "core: true\nurl: " + natsServe(t, func(o *server.Options) { o.JetStream = false; needs(o) }).ClientURL() +
			"\n"
	}
	login := nats(func(o *server.Options) { o.Username, o.Password = "azure", "new" })
	oldSeed, _, _ := natsSeed(t)
	newSeed, _, public := natsSeed(t)
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	keyed := nats(func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	operated := natsOperator(t, account).ClientURL()
	oldCreds, _, _ := natsUser(t, stranger, time.Time{})
	newCreds, _, _ := natsUser(t, account, time.Time{})
	with := func(settings, user string) string { // the address in them, with a user
		_, url, _ := strings.Cut(strings.TrimSpace(settings), "nats://")
		return "nats://" + user + url
	}
	text := func(path string) string { return string(read(t, path)) }

	// Over TLS, with authorities and a certificate that are renewed.
	ca, oldCA := newAuthority(t), newAuthority(t)
	cert := ca.issue(t, "127.0.0.1", time.Hour)
	mail := serveMail(t, &mailbox{mechanisms: []string{"PLAIN"}}, "starttls", ca, cert) + "to: [ops@example.com]\n"
	natsTLS := nats(func(o *server.Options) {
		o.TLSTimeout, o.TLSConfig = 5, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	})

	for name, tt := range map[string]struct{ kind, settings, old, new string }{
		"webhook url":    {"webhook", "url_file: FILE", address + "/old", address + "/new"},
		"webhook bearer": {"webhook", header("Authorization", "Bearer new") + "bearer_file: FILE", "old", "new"},
		"webhook password": {"webhook",
			header("Authorization", basic("a", "new")) + "basic: {username: a, password_file: FILE}", "old", "new"},
		"webhook header":    {"webhook", header("X-Api-Key", "new") + "headers: {X-Api-Key: {file: FILE}}", "old", "new"},
		"webhook signature": {"webhook", signed + "signing_secrets: [{file: FILE}]", secretAZ, secretXX},
		"key of a service":  {"splunk", header("Authorization", "Splunk new") + "token_file: FILE", "old", "new"},
		"slack webhook":     {"slack", "webhook_url_file: FILE", address + "/old", address + "/new"},
		"email password":    {"email", mail + "username: azure\npassword_file: FILE", "old", mailPassword},
		"email authority":   {"email", strings.Replace(mail, ca.file, "FILE", 1), text(oldCA.file), text(ca.file)},
		"nats url":          {"nats", "core: true\nurl_file: FILE", with(login, "azure:old@"), with(login, "azure:new@")},
		"nats password":     {"nats", login + "username: azure\npassword_file: FILE", "old", "new"},
		"nats token": {"nats", nats(func(o *server.Options) { o.Authorization = "new" }) + "token_file: FILE", "old",
			"new"},
		"nats nkey": {"nats", keyed + "nkey_file: FILE", text(oldSeed), text(newSeed)},
		"nats creds": {"nats", "core: true\nurl: " + operated + "\ncreds_file: FILE", text(oldCreds),
			text(newCreds)},
		"nats authority": {"nats", natsTLS + "tls: {ca_file: FILE}", text(oldCA.file), text(ca.file)},
		"exec variable": {"exec", "command: [/bin/sh, -c, 'test \"$KEY\" = new || exit 78']\nenv: {KEY: {file: FILE}}",
			"old", "new"},
	} {
		if !strings.Contains(tt.settings, "ca_file") {
			t.Run(name+" in Key Vault", func(t *testing.T) { isReadAgainFromKeyVault(t, tt.kind, tt.settings, tt.old, tt.new) })
		}
		t.Run(name, func(t *testing.T) {
			if tt.kind == "exec" && runtime.GOOS == "windows" {
				t.Skip("Windows has no sh")
			}
			file := writeFile(t, "secret", tt.old)
			if err := os.Chtimes(file, monday, monday); err != nil { // or the clock of the file system may show no difference
				t.Fatal(err)
			}
			opened, err := open(tt.kind, strings.ReplaceAll(tt.settings, "FILE", file), testHost(t))
			if err != nil || !slices.Contains(opened.Secrets, file) {
				t.Fatalf("open = %q, %v; want %s among the files to watch", opened.Secrets, err, file)
			}
			defer closeSink(opened.Sink)
			deliver := func(which, want string) {
				t.Helper()
				var err error
				for range 5 { // Windows now and then drops what a server said before it hung up
					if _, err = opened.Sink.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again {
						break
					}
				}
				if classOf(err) != want {
					t.Errorf("with the %s one: %v, want it %s", which, err, want)
				}
			}
			deliver("old", blocked)
			if err := os.Rename(writeFile(t, "new", tt.new), file); err != nil {
				t.Fatal(err)
			}
			deliver("new", accepted)
		})
	}
}

// isReadAgainFromKeyVault tries the same with the secret in Key Vault, in place of the file that the settings name.
func isReadAgainFromKeyVault(t *testing.T, kind, settings, old, new string) {
	if kind == "exec" && runtime.GOOS == "windows" {
		t.Skip("Windows has no sh")
	}
	f := newVault(t)
	f.set(old)
	settings = strings.NewReplacer("_file: FILE", "_vault: "+vaultURL, "{file: FILE}", "{vault: '"+vaultURL+"'}").Replace(settings)
	opened, err := open(kind, settings, f.host(t))
	if err != nil {
		t.Fatal(err)
	}
	defer closeSink(opened.Sink)
	for _, step := range []struct{ secret, want string }{{old, blocked}, {new, accepted}} {
		f.set(step.secret)
		var err error
		for range 5 { // Windows now and then drops what a server said before it hung up
			if _, err = opened.Sink.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again {
				break
			}
		}
		if classOf(err) != step.want {
			t.Errorf("with %s: %v, want it %s", step.secret[:3], err, step.want)
		}
	}
	if asked := len(f.requests()); asked != 2 {
		t.Errorf("the vault was asked %d times, want 2", asked)
	}
}
