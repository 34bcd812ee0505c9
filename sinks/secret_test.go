package sinks

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// A Secret does not show itself, however it is printed, encoded or logged, and wherever it is kept.
func TestSecretNeverShowsItself(t *testing.T) {
	const text = "s3cr3t-token"
	secret := NewSecret(text)
	type settings struct {
		Key    Secret
		Keys   []Value
		hidden Secret
	}
	all := settings{secret, []Value{{Text: secret}}, secret}
	var said bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%10.3s"} {
		fmt.Fprintf(&said, verb+" "+verb+" "+verb+"\n", secret, &secret, all)
	}
	fmt.Fprintln(&said, secret, secret.String(), all)
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		out, err := marshal(all)
		if err != nil {
			t.Error(err)
		}
		said.Write(out)
	}
	slog.New(slog.NewTextHandler(&said, nil)).Info("x", "secret", secret, "all", all, "value", all.Keys[0])
	slog.New(slog.NewJSONHandler(&said, nil)).Info("x", "secret", secret, "all", all)
	for _, form := range []string{text, fmt.Sprintf("%x", text), fmt.Sprintf("%X", text), text[:3], "115 51"} {
		if strings.Contains(said.String(), form) {
			t.Errorf("%q is in\n%s", form, &said)
		}
	}
	if out, err := json.Marshal(secret); err != nil || string(out) != `"[secret]"` {
		t.Errorf("as JSON it is %s, %v; want [secret]", out, err)
	}
	if got := fmt.Sprint(secret); got != "[secret]" {
		t.Errorf("printed it is %s, want [secret]", got)
	}
}

// What is shown is one line, cut at a character.
func TestExcerptsAreOneLine(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cr3t-token")
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"  two\r\n\tlines\x00\u202e ", 100, "two lines"},
		{"ééééé", 8, "éé…"},
		{"éééé", 8, "éééé"},
		{"\xff\xfe", 8, ""},
		{"0123456789 s3cr3t-to", 16, "0123456789 s3…"},
		{"s3cr3t\x00-token", 100, notShown},
	} {
		if got := redact.line(tt.text, tt.n); got != tt.want {
			t.Errorf("line(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}

// webhookSecrets puts a secret in every place of a webhook, before destinations that say back all they are told.
func webhookSecrets(t *testing.T) []secretPlace {
	const secret, user = `s3cr3t-t0ken`, "azure-user"
	code := base64.StdEncoding.EncodeToString([]byte(user + ":" + secret))
	signing := base64.StdEncoding.EncodeToString([]byte("s3cr3t-signing-key-of-32-bytes-!"))
	file, env := writeFile(t, "secret", secret+"\n"), map[string]string{"SECRET": secret}
	urlFile := writeFile(t, "url", "http://127.0.0.1:1/"+secret+"\n")

	var places []secretPlace
	add := func(place, settings string, secrets ...string) {
		places = append(places, secretPlace{place, settings, append(secrets, secret), env})
	}
	for _, status := range []int{200, 302, 401, 422, 503} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sayBack(w, r, status) }))
		at := func(what string) string { return fmt.Sprintf("%s, answered %d", what, status) }
		plain := "url: " + srv.URL + "\n"
		withUser := strings.Replace(srv.URL, "://", "://"+user+":"+secret+"@", 1)

		add(at("path"), "url: "+srv.URL+"/hooks/"+secret)
		add(at("escaped path"), "url: "+srv.URL+"/hooks/s3cr3t%2Dt0ken%2F%C3%A9", "s3cr3t%2dt0ken")
		add(at("query"), "url: "+srv.URL+"/?sig="+secret)
		add(at("escaped query"), "url: "+srv.URL+"/?sig=s3cr3t%2Dt0ken", "s3cr3t%2dt0ken")
		add(at("userinfo"), "url: "+withUser, user, code)
		add(at("url_env"), "url_env: URL")
		places[len(places)-1].env = map[string]string{"URL": srv.URL + "/" + secret}
		add(at("header"), plain+"headers: {X-Api-Key: "+secret+"}")
		add(at("header file"), plain+"headers: {X-Api-Key: {file: "+file+"}}")
		add(at("header env"), plain+"headers: {X-Api-Key: {env: SECRET}}")
		add(at("authorization"), plain+"headers: {Authorization: Token "+secret+"}")
		add(at("authorization basic"), plain+"headers: {Authorization: Basic "+code+"}", code, user)
		add(at("cookie"), plain+"headers: {Cookie: a=b; session="+secret+"}")
		add(at("bearer"), plain+"bearer: "+secret)
		add(at("bearer_file"), plain+"bearer_file: "+file)
		add(at("bearer_env"), plain+"bearer_env: SECRET")
		add(at("password"), plain+"basic: {username: "+user+", password: "+secret+"}", code)
		add(at("password_file"), plain+"basic: {username: "+user+", password_file: "+file+"}", code)
		add(at("signing secret"), plain+"signing_secrets: [whsec_"+signing+"]", signing)
		add(at("identity"), plain+"azure_identity: {resource: https://eventgrid.azure.net}", identityToken)
		proxy := strings.Replace(srv.URL, "://", "://"+user+":"+secret+"@", 1)
		add(at("proxy"), "url: http://destination.example\nproxy: "+proxy, code)
		add(at("proxy, tunnel"), "url: https://destination.example\nproxy: "+proxy, code)
	}
	for what, address := range map[string]string{"nobody listens": "http://127.0.0.1:1",
		"no tls": "https://" + talk(t, secret)} {
		add("path, "+what, "url: "+address+"/"+secret)
		add("userinfo, "+what, "url: "+strings.Replace(address, "://", "://"+user+":"+secret+"@", 1))
		add("proxy, "+what, "url: http://destination.example\nproxy: "+strings.Replace(address, "://",
			"://"+user+":"+secret+"@", 1))
	}
	add("url_file", "url_file: "+urlFile)

	add("wrong url", "url: 'http://a b.example/"+secret+"'")
	add("wrong port", "url: http://"+secret+":x@a.example:port/"+secret)
	add("wrong scheme", "url: ftp://a.example/"+secret)
	add("wrong userinfo", "{url: 'http://u:"+secret+"@a.example', bearer: abc}")
	add("wrong header", "{url: http://a.example, headers: {X-A: \""+secret+"\\n\"}}")
	add("wrong bearer", "{url: http://a.example, bearer: \""+secret+"\\n\"}")
	add("wrong signing", "{url: http://a.example, signing_secrets: ["+secret+"]}")
	add("wrong signing, not base64", "{url: http://a.example, signing_secrets: ['whsec_"+secret+"']}")
	add("wrong proxy", "{url: http://a.example, proxy: 'http://u:"+secret+"@:port'}")
	add("wrong mode", "{url: http://a.example, bearer: "+secret+", mode: x}")
	return places
}

// sayBack answers with all that is known about a request, in several spellings.
func sayBack(w http.ResponseWriter, r *http.Request, status int) {
	body, _ := io.ReadAll(r.Body)
	said := r.RequestURI + " " + r.URL.Path + " " + r.URL.RawQuery + " " + r.URL.Query().Get("sig")
	for _, h := range []string{"Authorization", "Proxy-Authorization", "X-Api-Key", "Cookie", "Webhook-Signature"} {
		said += " " + r.Header.Get(h)
	}
	for _, h := range []string{"Authorization", "Proxy-Authorization"} {
		plain, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get(h), "Basic "))
		said += " " + string(plain)
	}
	quoted, _ := json.Marshal(said)
	w.Header().Set("X-Request-Id", said)
	w.Header().Set("Location", "https://elsewhere.example/"+url.PathEscape(said))
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s\n%s\n%s", said, quoted, body)
}

// A secret's file is read as it was meant, whichever editor of Windows wrote it; what PowerShell's > makes of a text is
// refused with what to do instead, and not sent as a wrong password.
func TestSecretFilesOfWindowsAreReadOrRefused(t *testing.T) {
	for text, want := range map[string]string{
		"token\r\n":                "token",
		"\ufefftoken\r\n":          "token",
		"\xff\xfet\x00o\x00\r\x00": "",
		"\xfe\xff\x00t\x00o":       "",
		"\ufeff":                   "",
	} {
		path := writeFile(t, "token", text)
		got, err := keyedSource("token", Secret{}, Path(path), "", "").read(Host{})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("the secret in %q is %q, %v; want %q", text, got, err, want)
		}
		if err != nil && (!strings.Contains(err.Error(), path) || strings.ContainsAny(err.Error(), "\x00\ufeff")) {
			t.Errorf("the error of %q is %q", text, err)
		}
	}
}

// A file that can't be read is named, with what to do.
func TestUnreadableFilesNameTheRemedy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	_, err := readText(Path(path))
	if err == nil || !strings.HasPrefix(err.Error(), path+": ") ||
		!strings.HasSuffix(err.Error(), "; create it, or correct the path") || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	err = unreadable(path, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission})
	if want := path + ": permission denied; let the user of forewarn read it"; err.Error() != want {
		t.Errorf("a file of somebody else gives %q, want %q", err, want)
	}
}
