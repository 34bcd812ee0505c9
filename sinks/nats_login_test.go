package sinks

import (
	"crypto/tls"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"forewarn/bridge/delivery"
)

// natsMay makes a server let the user vm in with permissions, and the user test with all.
func natsMay(p *server.Permissions) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{{Username: "vm", Password: "hunter2hunter2", Permissions: p}, {Username: "test", Password: "test"}}
	}
}

// Names that do not exist block, but only when no server of the list can be hoped for.
func TestNATSAddresses(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	natsStream(t, js, nil)
	gone := natsServe(t, nil)
	natsStop(gone)
	for settings, want := range map[string]string{
		"url: nats://nowhere.invalid":                                blocked,
		"url: " + gone.ClientURL():                                   again,
		"url: [nats://nowhere.invalid, " + gone.ClientURL() + "]":    again,
		"url: [nats://nowhere.invalid, " + srv.ClientURL() + "]":     accepted,
		"url: 'nats://nowhere.invalid, " + srv.ClientURL() + "'":     accepted,
		"url: tls://" + strings.TrimPrefix(srv.ClientURL(), "nats:"): blocked,
	} {
		settings = strings.Replace(settings, "tls:////", "tls://", 1)
		for range 3 { // the order is random
			s := mustOpen(t, "nats", settings, testHost(t))
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != want {
				t.Errorf("%s: %v, want it %s", settings, err, want)
			}
		}
	}
}

// Each way to log in lets in who may, and blocks who may not.
func TestNATSLogins(t *testing.T) {
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	operated := natsOperator(t, account)
	good, _, _ := natsUser(t, account, time.Time{})
	expired, _, _ := natsUser(t, account, time.Now().Add(-time.Hour))
	stranger, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	strange, _, _ := natsUser(t, stranger, time.Time{})
	seed, _, public := natsSeed(t)
	otherSeed, _, _ := natsSeed(t)
	users := natsServe(t, func(o *server.Options) { o.Username, o.Password = "azure", "hunter2" })
	token := natsServe(t, func(o *server.Options) { o.Authorization = "hunter2" })
	keys := natsServe(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	at := func(srv *server.Server, user string) string {
		return "url: nats://" + user + strings.TrimPrefix(srv.ClientURL(), "nats://") + "\ncore: true\n"
	}
	for name, tt := range map[string]struct{ settings, want string }{
		"password":        {at(users, "") + "username: azure\npassword: hunter2", accepted},
		"wrong password":  {at(users, "") + "username: azure\npassword: hunter3", blocked},
		"nothing":         {at(users, ""), blocked},
		"in the URL":      {at(users, "azure:hunter2@"), accepted},
		"wrong in it":     {at(users, "azure:hunter3@"), blocked},
		"token":           {at(token, "") + "token: hunter2", accepted},
		"wrong token":     {at(token, "") + "token: hunter3", blocked},
		"token in it":     {at(token, "hunter2@"), accepted},
		"nkey":            {at(keys, "") + "nkey_file: " + seed, accepted},
		"another nkey":    {at(keys, "") + "nkey_file: " + otherSeed, blocked},
		"nkey, no nonces": {at(token, "") + "nkey_file: " + seed, blocked},
		"creds":           {at(operated, "") + "creds_file: " + good, accepted},
		"expired creds":   {at(operated, "") + "creds_file: " + expired, blocked},
		"strange creds":   {at(operated, "") + "creds_file: " + strange, blocked},
	} {
		s := mustOpen(t, "nats", tt.settings, testHost(t))
		if err := natsAnswer(t, s); classOf(err) != tt.want {
			t.Errorf("%s: %v, want it %s", name, err, tt.want)
		}
	}
}

// natsAnswer returns what the sink says of a delivery. On Windows a connection that the server resets can take the
// server's last words with it, and the reason with them. There it is tried again, as the bridge does.
func natsAnswer(t *testing.T, s delivery.Sink) (err error) {
	t.Helper()
	for range 10 {
		_, err = s.Deliver(t.Context(), deliveries(t)[:1])
		if runtime.GOOS != "windows" || err == nil || !strings.Contains(err.Error(), "reset by peer") {
			break
		}
	}
	return err
}

// natsOperator starts a server that trusts the users of an account.
func natsOperator(t *testing.T, account nkeys.KeyPair) *server.Server {
	t.Helper()
	operator, err := nkeys.CreateOperator()
	if err != nil {
		t.Fatal(err)
	}
	public, err := operator.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	name, err := account.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.NewAccountClaims(name).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(name, token); err != nil {
		t.Fatal(err)
	}
	return natsServe(t, func(o *server.Options) {
		o.JetStream, o.TrustedKeys, o.AccountResolver = false, []string{public}, resolver
	})
}

// A server over TLS is verified, and gets the certificate and the login that it asks for.
func TestNATSOverTLSWithLogin(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	srv := natsServe(t, func(o *server.Options) {
		o.Username, o.Password, o.TLSVerify, o.TLSTimeout = "azure", "hunter2", true, 5
		o.TLSConfig = &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}, MinVersion: tls.VersionTLS12,
			MaxVersion: tls.VersionTLS12,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(),
		}
	})
	host := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	cert := files(t, ca.issue(t, "vm-0", time.Hour))
	_, js := natsClient(t, "tls://"+host, nats.UserInfo("azure", "hunter2"), nats.Secure(&tls.Config{
		RootCAs: ca.pool(), Certificates: []tls.Certificate{ca.issue(t, "test", time.Hour)},
	}))
	stream := natsStream(t, js, nil)
	for name, tt := range map[string]struct{ scheme, login, tls, want string }{
		"all right":         {"tls", "hunter2", "tls: {ca_file: " + ca.file + cert + "}", accepted},
		"by its own wish":   {"nats", "hunter2", "tls: {ca_file: " + ca.file + cert + "}", accepted},
		"another authority": {"tls", "hunter2", "tls: {ca_file: " + other.file + cert + "}", blocked},
		"the system's":      {"nats", "hunter2", "", blocked},
		"no certificate":    {"tls", "hunter2", "tls: {ca_file: " + ca.file + "}", blocked},
		"another's": {"tls", "hunter2",
			"tls: {ca_file: " + ca.file + files(t, other.issue(t, "vm-0", time.Hour)) + "}", blocked},
		"another name": {"tls", "hunter2", "tls: {ca_file: " + ca.file + cert + ", server_name: nats.example.com}",
			blocked},
		"wrong login": {"tls", "hunter3", "tls: {ca_file: " + ca.file + cert + "}", blocked},
	} {
		s := mustOpen(t, "nats", "url: "+tt.scheme+"://"+host+"\nusername: azure\npassword: "+tt.login+"\n"+tt.tls,
			testHost(t))
		if err := natsAnswer(t, s); classOf(err) != tt.want {
			t.Errorf("%s: %v, want it %s", name, err, tt.want)
		}
	}
	if got, want := natsIDs(t, stream), natsPending(t, 1); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
}

// Credentials that change in their file are used with the next delivery, on a new connection; while the file is broken
// the sink is blocked, and one that is let in stays so as long as nothing changes.
func TestNATSUsesChangedCredentials(t *testing.T) {
	_, seed, public := natsSeed(t)
	_, next, nextPublic := natsSeed(t)
	srv := natsServe(t, func(o *server.Options) {
		o.JetStream, o.Nkeys = false, []*server.NkeyUser{{Nkey: public}, {Nkey: nextPublic}}
	})
	path := writeFile(t, "nkey", seed)
	opened, err := open("nats", "url: "+srv.ClientURL()+"\ncore: true\nnkey_file: "+path, testHost(t))
	if err != nil || !slices.Equal(opened.Secrets, []string{path}) {
		t.Fatalf("open = %q, %v; want the file to watch", opened.Secrets, err)
	}
	defer closeSink(opened.Sink)
	var names []string
	for _, tt := range []struct{ text, want string }{
		{seed, accepted}, {seed, accepted}, {"half a se", blocked}, {next, accepted},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != tt.want || err != nil && !strings.Contains(err.Error(), "nkey_file: "+path) {
			t.Errorf("Deliver = %v, want it %s", err, tt.want)
		}
		info, err := srv.Connz(&server.ConnzOptions{Username: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range info.Conns {
			if c.Stop == nil && !slices.Contains(names, c.AuthorizedUser) {
				names = append(names, c.AuthorizedUser)
			}
		}
	}
	if want := []string{public, nextPublic}; !slices.Equal(names, want) {
		t.Errorf("connected as %q, want %q", names, want)
	}
}

// An address that changes to tls:// is obeyed from the next delivery on: a connection without TLS is not used again.
func TestNATSAddressThatBeginsToWantTLSIsObeyed(t *testing.T) {
	srv := natsServe(t, func(o *server.Options) { o.JetStream = false })
	path := writeFile(t, "url", srv.ClientURL())
	s := mustOpen(t, "nats", "url_file: "+path+"\ncore: true", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatalf("Deliver = %v", err)
	}
	secure := strings.Replace(srv.ClientURL(), "nats://", "tls://", 1)
	if err := os.WriteFile(path, []byte(secure), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != blocked {
		t.Errorf("Deliver to a server without TLS = %v, want it blocked", err)
	}
}
