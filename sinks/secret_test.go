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

// Redaction hides a secret in every form in which it commonly comes back, and leaves everything else as it was.
func TestRedactionHidesEveryForm(t *testing.T) {
	const secret = `p&ss "w/rd" <é>`
	redact := new(redactor)
	redact.hide(secret)
	for _, form := range []string{
		secret, strings.ToUpper(secret[:len(secret)-4]) + secret[len(secret)-4:], url.PathEscape(secret),
		url.QueryEscape(secret), strings.ToLower(url.QueryEscape(secret)),
		`p&ss \"w/rd\" <é>`, `p\u0026ss \"w/rd\" \u003cé\u003e`, `p&amp;ss &#34;w/rd&#34; &lt;é&gt;`,
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)),
	} {
		if got := redact.text("a " + form + " z"); !strings.HasPrefix(got, "a [secret]") || !strings.HasSuffix(got, " z") {
			t.Errorf("%s becomes %s, want it hidden", form, got)
		}
	}
	for _, text := range []string{"", "nothing of it", "p&ss", "[secret]"} {
		if got := redact.text(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
	redact.hide("secret", "aa")
	for text, want := range map[string]string{
		"my secret": "my [secret]", "aaaa": "[secret]", "baab": "b[secret]b", "secretaa": "[secret]",
	} {
		if got := redact.text(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// An excerpt is one line, cut at a character, and its end is no beginning of a secret.
func TestExcerptsAreOneLine(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cr3t-token")
	for _, tt := range []struct {
		text string
		cut  bool
		n    int
		want string
	}{
		{"  two\r\n\tlines\x00\u202e ", false, 100, "two lines"},
		{"ééééé", false, 8, "éé…"},
		{"éééé", false, 8, "éééé"},
		{"\xff\xfe", false, 8, ""},
		{"it is s3cr3t-token!", false, 100, "it is [secret]!"},
		{"0123456789 s3cr3t-to", true, 100, "0123"},
		{"s3cr3t\x00-token", false, 100, "[secret]"},
	} {
		if got := redact.line(tt.text, tt.cut, tt.n); got != tt.want {
			t.Errorf("line(%q, %v, %d) = %q, want %q", tt.text, tt.cut, tt.n, got, tt.want)
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
		add(at("body secret"), plain+"body_text: '{{json .secret.key}}'\nbody_secrets: {key: "+secret+"}")
		add(at("body secret file"),
			plain+"body_text: 'key={{.secret.key}}'\ncontent_type: text/plain\nbody_secrets: {key: {file: "+file+"}}")
		add(at("body secret env"),
			plain+"body_text: 'key={{.secret.key}}'\ncontent_type: text/plain\nbody_secrets: {key: {env: SECRET}}")
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
		got, err := keyedSource("token", Secret{}, Path(path), "").read(nil)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("the secret in %q is %q, %v; want %q", text, got, err, want)
		}
		if err != nil && (!strings.Contains(err.Error(), path) || strings.ContainsAny(err.Error(), "\x00\ufeff")) {
			t.Errorf("the error of %q is %q", text, err)
		}
	}
}

// What everybody's addresses and headers hold is no secret: the words of an answer that needs them stay. All else of
// them does not.
func TestPlainWordsOfAnAddressAreShown(t *testing.T) {
	const answer = "no services take events here: /services/T012AB/v2/events?api-version=1&code=s3cr3t&team=hunters, " +
		"Bearer token for application/json expired, s3cr3t"
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, answer)
	}))
	s := mustOpen(t, "webhook", "url: '"+srv.URL+"/services/T012AB/v2/events?api-version=1&code=s3cr3t&team=hunters'\n"+
		"headers: {Accept: application/json, Authorization: Bearer s3cr3t}", testHost(t))
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	for _, want := range []string{"no services take events here: ",
		", Bearer token for application/json expired, [secret]"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Deliver = %v, want %q in it", err, want)
		}
	}
	for _, secret := range []string{"T012AB", "s3cr3t", "hunters"} {
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("Deliver = %v, which shows %s", err, secret)
		}
	}
	redact := new(redactor)
	u, err := url.Parse("https://127.0.0.1/v2/orders/of/abc?x=1")
	if err != nil {
		t.Fatal(err)
	}
	redact.hideURL(u, "url")
	if got := redact.text("/v2/orders/of/abc?x=1, and orders"); got != "[secret], and [secret]" {
		t.Errorf("what is not known to be plain becomes %q", got)
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
