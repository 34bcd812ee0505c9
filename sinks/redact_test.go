package sinks

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"mime/quotedprintable"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/text/width"

	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

// A writing is a way in which a destination may write what it was sent. Those that make digits of a text are counted,
// since readings undoes only two of them.
type writing struct {
	name   string
	digits bool
	write  func(text string) string
}

// writings use the encoders of the standard library where there are any.
var writings = []writing{
	{"JSON", false, inJSON},
	{"JSON of PHP", false, func(text string) string { return strings.ReplaceAll(inJSON(text), "/", `\/`) }},
	{"JSON of .NET", false, func(text string) string { return each(utf16.Encode([]rune(text)), `\u%04X`) }},
	{"Go", false, func(text string) string { return strconv.QuoteToASCII(text) }},
	{"a log of nginx", false, func(text string) string { return each([]byte(text), `\x%02X`) }},
	{"octal", false, func(text string) string { return each([]byte(text), `\%03o`) }},
	{"octal without zeros", false, func(text string) string { return each([]byte(text), `\%o`) }},
	{"hex of C", true, func(text string) string { return each([]byte(text), "0x%02x, ") }},
	{"numbers in JSON", false, func(text string) string { return strings.ReplaceAll(fmt.Sprint([]byte(text)), " ", ",") }},
	{"a path", false, url.PathEscape},
	{"a form", false, url.QueryEscape},
	{"a URL in small letters", false, func(text string) string { return each([]byte(text), "%%%02x") }},
	{"HTML with names", false, html.EscapeString},
	{"HTML in decimal", false, func(text string) string { return each([]rune(text), "&#%d;") }},
	{"HTML in hex", false, func(text string) string { return each([]rune(text), "&#x%x;") }},
	{"a mail", false, inMail},
	{"lines", false, func(text string) string { return inLines(text, 7) }},
	{"base64", true, func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }},
	{"base64 without =", true, func(text string) string { return base64.RawStdEncoding.EncodeToString([]byte(text)) }},
	{"base64url", true, func(text string) string { return base64.URLEncoding.EncodeToString([]byte(text)) }},
	{"base64url without =", true, func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }},
	{"base64 behind a byte", true, func(text string) string {
		return base64.StdEncoding.EncodeToString([]byte("u" + text))
	}},
	{"base64 behind two", true, func(text string) string {
		return base64.StdEncoding.EncodeToString([]byte("u:" + text))
	}},
	{"base64 in lines", true, func(text string) string {
		return inLines(base64.StdEncoding.EncodeToString([]byte(text)), 16)
	}},
	{"hex", true, func(text string) string { return hex.EncodeToString([]byte(text)) }},
	{"hex in capitals", true, func(text string) string { return strings.ToUpper(hex.EncodeToString([]byte(text))) }},
	{"hex with colons", true, func(text string) string { return each([]byte(text), "%02x:") }},
}

func each[T rune | uint16 | byte](text []T, format string) string {
	var b strings.Builder
	for _, c := range text {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

func inJSON(text string) string {
	raw, _ := json.Marshal(text) // a text always can be
	return string(raw)
}

func inMail(text string) string {
	var b bytes.Buffer
	w := quotedprintable.NewWriter(&b)
	io.WriteString(w, text)
	w.Close()
	return b.String()
}

func inLines(text string, length int) string {
	var b strings.Builder
	for i, r := range text {
		if i > 0 && i%length == 0 {
			b.WriteString("\r\n ")
		}
		b.WriteRune(r)
	}
	return b.String()
}

// A secret is recognised however it is written, and however that is written again.
func TestASecretIsRecognisedHoweverItIsWritten(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	every := systemtest.Every(3) // of the secrets, for two writings
	for i, secret := range []string{
		"hunter2hunter2", "s3cr3t/of+the=mail", `p&ss "w/rd" <é>`, "a=41b%41c&amp;d\\u0041e", "пароль-длинный", "pa55w/+=",
		"correct horse battery staple", "xoxb-2404-81-aBcD", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJmb3Jld2FybiJ9.",
		"a/+=b", "🔑k3y🔑k3y",
	} {
		redact := new(redactor)
		redact.hide(secret)
		shows := func(written, how string) {
			got := redact.line("no such token: "+written+" (of vm-db-1)", 4<<10)
			if got != notShown {
				t.Errorf("%q as %s shows %q", secret, how, got)
			}
		}
		for j, first := range writings {
			written := first.write(secret)
			shows(written, first.name)
			for k, then := range writings {
				if (i+j+k)%every == 0 {
					shows(then.write(written), first.name+" in "+then.name)
				}
			}
		}
	}
}

// Letters beyond ASCII have several forms and bytes, which make no difference, and neither do characters between them that
// nobody sees.
func TestASecretBeyondASCIIIsRecognised(t *testing.T) {
	const secret, letters = "pässwörd-ñandú-€x", "pässwörd-ñandú"
	latin1 := make([]byte, 0, len(letters))
	for _, r := range letters {
		latin1 = append(latin1, byte(r))
	}
	var mistaken strings.Builder
	for _, b := range []byte(secret) {
		mistaken.WriteRune(rune(b))
	}
	r := new(redactor)
	r.hide(secret)
	for name, text := range map[string]string{
		"as it is":                  secret,
		"in capitals":               strings.ToUpper(secret),
		"decomposed":                norm.NFD.String(secret),
		"full width":                width.Widen.String(secret),
		"Latin-1":                   string(latin1),
		"Latin-1 in a URL":          each(latin1, "%%%02X"),
		"Latin-1 in a log":          each(latin1, `\x%02x`),
		"Latin-1 in base64":         base64.StdEncoding.EncodeToString(latin1),
		"Latin-1 in hex":            hex.EncodeToString(latin1),
		"UTF-8 as Latin-1":          mistaken.String(),
		"UTF-8 as Latin-1, in JSON": inJSON(mistaken.String()),
		"with joiners":              strings.Join(strings.Split(secret, ""), "\u034f"),
		"with variations":           strings.Join(strings.Split(secret, ""), "\ufe0f"),
	} {
		if !r.repeats("no: " + text + ".") {
			t.Errorf("%s: %q is not recognised", name, text)
		}
	}
	for _, text := range []string{"Größe überschritten: naïve", "Accès refusé", "\xe9\xe8 \u034f", "パスワードが違います"} {
		if r.repeats(text) {
			t.Errorf("%q is taken for the secret", text)
		}
	}
}

// Those who quote a text double its marks, or put others beside or between them. Its letters and digits stay.
func TestASecretIsRecognisedWhateverItsMarksBecome(t *testing.T) {
	r := new(redactor)
	r.hide(`pa'55"wo$rd`)
	for name, text := range map[string]string{
		"SQL":                `'pa''55"wo$rd'`,
		"CSV":                `"pa'55""wo$rd"`,
		"a shell":            `'pa'\''55"wo$rd'`,
		"a shell, otherwise": `'pa'"'"'55"wo$rd'`,
		"PowerShell":         "\"pa'55`\"wo`$rd\"",
		"cmd":                `pa'55^"wo$rd`,
		"a makefile":         `pa'55"wo$$rd`,
		"a list":             `["p", "a", "'", "5", "5", "\"", "w", "o", "$", "r", "d"]`,
		"a name":             "pa-55-wo-rd",
		"mail":               `=?utf-8?q?pa=27_55=22wo=24rd?=`,
		"two texts":          `"pa'55" + "\"wo$rd"`,
		"groups":             "pa5 5wo rd",
	} {
		if !r.repeats("no: " + text + ".") {
			t.Errorf("%s: %q is not recognised", name, text)
		}
	}
	r = new(redactor)
	r.hide(`it's9me'x`)
	for _, text := range []string{"'it''s9me''x'", `'it'\''s9me'\''x'`, "it-s9me-x"} {
		if !r.repeats(text) {
			t.Errorf("%q is not recognised", text)
		}
	}
	r = new(redactor)
	r.hide("k7$Vm!q9@Zt#4x&L*w2")
	for name, text := range map[string]string{
		"names of XML": `k7_x0024_Vm_x0021_q9_x0040_Zt_x0023_4x`, "mail's xtext": "k7+24Vm+21q9+40Zt+234x+26L+2Aw2",
		"Perl": `k7\x{24}Vm\x{21}q9\x{40}Zt`, "LDAP": `k7\24Vm\21q9\40Zt\234x`, "DNS": `k7\036Vm\033q9\064Zt`,
		"a wiki": "k7.24Vm.21q9.40Zt", "SQL": "'k7'||CHR(36)||'Vm'||CHR(33)||'q9'||CHR(64)||'Zt'",
	} {
		if !r.repeats("no: " + text + ".") {
			t.Errorf("%s: %q is not recognised", name, text)
		}
	}
	r = new(redactor)
	r.hide("!*&^-_!", "a+b", "c-d-e-f")
	for _, text := range []string{"abcdef", "a b c d e f", "!*&^"} {
		if r.repeats(text) {
			t.Errorf("%q is taken for a secret", text)
		}
	}
}

// Of a secret that is cut in two, where a text is cut or by its sender, seven characters in a row are left at most.
func TestAPartOfASecretIsASecret(t *testing.T) {
	systemtest.Alone(t)
	const secret = "s3cr3t-0123456789-t0k3n"
	redact := new(redactor)
	redact.hide(secret)
	for first := range len(secret) {
		for n := range len(secret) - first + 1 {
			part := secret[first : first+n]
			for _, text := range []string{"of " + part, hex.EncodeToString([]byte(part)), url.PathEscape(part)} {
				if got := redact.line(text, maxShown); (got == notShown) != (n >= 8) {
					t.Errorf("%q shows %q", text, got)
				}
			}
		}
	}
	for shift := range 4 * len(secret) {
		for _, w := range writings {
			written := w.write(secret)
			got := redact.line(strings.Repeat("?", max(0, maxShown-shift))+written, maxShown)
			end := strings.TrimSuffix(got[strings.LastIndexByte(got, '?')+1:], "…")
			if got != notShown && len(end) >= len(w.write(secret[:10])) {
				t.Errorf("cut after %d bytes of %s: %q", len(end), w.name, end)
			}
			if got != notShown && strings.Contains(got, secret[:8]) {
				t.Errorf("%s shows %q", w.name, end)
			}
		}
	}
}

// Of a secret of fewer than eight characters all of it counts. One of a single character is in nearly every text, and
// is not shown either.
func TestAShortSecretIsNotShown(t *testing.T) {
	for secret, shown := range map[string]string{
		"": "any answer", "pa55": "the pa5 is wrong", "7": "", "hunter2": "hunter is wrong", "   ": "a b",
	} {
		redact := new(redactor)
		redact.hide(secret)
		if got := redact.line(shown, maxShown); got != shown {
			t.Errorf("with %q, %q is shown as %q", secret, shown, got)
		}
		if strings.TrimSpace(secret) == "" {
			continue
		}
		inBase64 := base64.StdEncoding.EncodeToString([]byte("u:" + secret))
		for _, text := range []string{"it is " + secret, strings.ToUpper(secret), inBase64} {
			if got := redact.line(text, maxShown); got != notShown {
				t.Errorf("with %q, %q is shown as %q", secret, text, got)
			}
		}
	}
}

// What repeats no secret is shown as it is: the usual answers and errors, even if they are full of escapes and ids.
func TestOtherAnswersAreShown(t *testing.T) {
	redact := new(redactor)
	u, err := url.Parse("https://gatekeeper:s3cr3t%2Fpassw0rd@mattermost.example.com/mattermost/hooks/k3v9x2m7qd?wait=true&v=2")
	if err != nil {
		t.Fatal(err)
	}
	redact.hideURL(u)
	redact.hide("xoxb-2404815-aBcDeFgHiJ", strings.Repeat("eyJhbGciOiJSUzI1NiJ9", 100))
	for _, text := range []string{
		`{"error":{"code":"InvalidAuthenticationToken","message":"The access token has expired."}}`,
		"dial tcp: lookup mattermost.example.com: no such host", "the hooks of this user wait for v2, true or false",
		"proxyconnect tcp: dial tcp 10.0.0.4:3128: connect: connection refused",
		"tls: failed to verify certificate: x509: certificate is valid for other.example, not mattermost.example.com",
		`{"message":"\u003cb\u003eno\u003c/b\u003e &amp; never","id":"0123456789abcdef0123456789abcdef"}`,
		"request 6f1e2b7c-8a4d-4d5e-9b0a-1c2d3e4f5a6b: =3D%20&#x20;" + strings.Repeat(" nothing of it", 20),
	} {
		if got := redact.line(text, maxShown); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
	if log := linesOfALog; redact.repeats(log) || redact.repeats(strings.Repeat(log, 4096/len(log))) {
		t.Error("lines of a log are taken for a secret")
	}
}

// linesOfALog have escapes of many kinds, as lines of several programs have.
const linesOfALog = `10.0.0.5 - - [30/Nov/2026:05:00:01 +0000] "GET /search?q=caf%C3%A9+bar&next=%252Fhome HTTP/1.1" 502
"https://x.example/?a=1&amp;b=2" "Mozilla/5.0 (X11; Linux) \x22test\x22"
app[99]: {"msg":"render \u003cdiv\u003e failed","path":"\/a\/b","in":"{\"x\":\"\\n\"}","bytes":[104, 105, 106]}
a=3Db= <a href='x'>&amp;lt;q</a> [0;31mred[0m 0x41 0x42 aGVsbG8gd29ybGQ= 68656c6c6f ca:fe:ba:be
`

// In a secret URL the user, values of the query, what is no word in the path and the end of the path are secrets.
// Words in the middle of the path, which services name in their answers, and an end of up to three letters are none.
func TestTheEndOfAPathIsASecret(t *testing.T) {
	for _, tt := range []struct{ url, said string }{
		{"https://ntfy.test/alarms", "no topic alarms"},
		{"https://ntfy.test/alarms/", "no topic alarms"},
		{"https://ntfy.test/Alarms-of-Ops", "no topic alarms-of-ops"},
		{"https://hooks.test/services/T0/B0/correcthorse", "no hook correcthorse"},
		{"https://hooks.test/a%20long%2Fname", "no hook a long/name"},
		{"https://hooks.test/a+long+name", "no hook a long name"},
		{"https://hooks.test/k3v9x2m7qd/run", "no hook k3v9x2m7qd"},
		{"https://hooks.test/run?key=correcthorse", "no key correcthorse"},
		{"https://hooks.test/run?correcthorse", "no key correcthorse"},
		{"https://hooks.test/run?key=correct+horse+battery", "no key correct horse battery"},
		{"https://hooks.test/run?key=correct%20horse", "no key correct horse"},
		{"https://hooks.test/run?to=https%3A%2F%2Fa.test%2Fcorrecthorse", "no hook correcthorse"},
		{"https://hooks.test/run#correcthorse", "no key correcthorse"},
		{"https://token:pa55@hooks.test/run", "no pa55"},
	} {
		if got := shownBeside(t, tt.url, tt.said); got != notShown {
			t.Errorf("%s: shown is %q", tt.url, got)
		}
	}
	for _, tt := range []struct{ url, said string }{
		{"https://ntfy.test/ops", "the ops of others stops"},
		{"https://prod.test/workflows/k3v9x2m7qd/triggers/manual/paths/invoke?sv=1", "no workflows with manual triggers"},
		{"https://hooks.test/services/T0/B0/k3v9x2m7qd", "no services"},
		{"https://hooks.test/k3v9x2m7qd?wait=true", `{"ok":true}`},
		{"https://hooks.test/k3v9x2m7qd?to=https://a.test/secret-path", "see https://help.test or a.test"},
		{"https://hooks.test/", "any answer"},
		{"https://hooks.test", "any answer"},
	} {
		if got := shownBeside(t, tt.url, tt.said); got != tt.said {
			t.Errorf("%s: %q is shown as %q", tt.url, tt.said, got)
		}
	}
}

// What a user may not do can be read: a user name beside a password is no secret. Beside none, or a short one, it may be
// the key of a service.
func TestAUserNameBesideAPasswordIsShown(t *testing.T) {
	for _, tt := range []struct {
		username, password, said string
		shown                    bool
	}{
		{"web-prod", "s3cr3t-passw0rd", `Permissions Violation for Publish to "forewarn.events.web-prod"`, true},
		{"481516", "s3cr3t-passw0rd", "ingestion rate limit exceeded for user 481516", true},
		{"web-prod", "s3cr3t-passw0rd", "user web-prod with password s3cr3t-passw0rd", false},
		{"k3v9x2m7qd", "", "no key k3v9x2m7qd", false},
		{"k3v9x2m7qd", "X", "no key k3v9x2m7qd", false},
	} {
		header := new(redactor)
		header.hideHeader(basic(tt.username, tt.password))
		login := new(redactor)
		login.hideLogin(tt.username, tt.password)
		for where, redact := range map[string]*redactor{"as keys": login, "as a header": header} {
			if got := redact.line(tt.said, maxShown); (got == tt.said) != tt.shown {
				t.Errorf("%s beside %q, given %s: %q is shown as %q", tt.username, tt.password, where, tt.said, got)
			}
		}
	}
}

// The scheme of an Authorization header is no secret; what follows it is.
func TestTheSchemeOfAHeaderIsNoSecret(t *testing.T) {
	redact := new(redactor)
	redact.hideHeader("Bearer t0p-secret-token")
	for text, shown := range map[string]bool{"no such bearer token": true, "Bearer t0p-secr": false} {
		if got := redact.line(text, maxShown); (got == text) != shown {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
}

// The program's own name in a longer secret hides nothing; the rest of such a secret does.
func TestOurOwnNameIsNoSecret(t *testing.T) {
	for secret, texts := range map[string]map[string]bool{
		"forewarn-web": {"stored in stream FOREWARN, message 5": true, "no user forewarn-w": false},
		"forewarn":     {"no password forewarn": false},
	} {
		redact := new(redactor)
		redact.hide(secret)
		for text, shown := range texts {
			if got := redact.line(text, maxShown); (got == text) != shown {
				t.Errorf("with %s, %q is shown as %q", secret, text, got)
			}
		}
	}
}

// A list of bytes is read as Go prints it, too.
func TestASecretInNumbersIsNotShown(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cr3t/t0ken")
	if got := redact.line(fmt.Sprint("token ", []byte("s3cr3t/t0ken"), " is unknown"), maxShown); got != notShown {
		t.Errorf("shown is %s", got)
	}
}

// Whatever stands around a secret, and however it is written, what is shown doesn't hold it.
func FuzzNoSecretIsShown(f *testing.F) {
	f.Add("s3cr3t/t0ken+=", "401: no such token ", " (of vm-db-1)", []byte{1, 9}, uint16(512))
	f.Add("hunter2", `{"error":"`, `"}`, []byte{14, 0, 1, 7}, uint16(4096))
	f.Add("hook.test!24x", "no hook.test: ", "", []byte{0}, uint16(513))
	f.Add("a=41b%41c&amp;d", "%&=\\", "+", []byte{13, 2, 21}, uint16(600))
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		secret, stack := make([]byte, 1+random.IntN(30)), make([]byte, random.IntN(5))
		for i := range secret {
			secret[i] = byte('!' + random.IntN('~'-'!'))
		}
		for i := range stack {
			stack[i] = byte(random.IntN(len(writings)))
		}
		f.Add(string(secret), "it is ", "", stack, uint16(random.IntN(8<<10)))
	}
	f.Fuzz(func(t *testing.T, secret, before, after string, stack []byte, n uint16) {
		secret = templates.Line(strings.ToValidUTF8(secret, ""))
		if len(secret) > 100 || len(before)+len(after) > 8<<10 || strings.ContainsRune(secret, utf8.RuneError) {
			return
		}
		redact, knows := tellOf(t, secret, before, int(n))
		write := func(text string) string {
			digits := 0
			for _, i := range stack[:min(len(stack), maxLayers)] {
				w := writings[int(i)%len(writings)]
				if w.digits {
					digits++
				}
				if digits <= maxDigits && len(text) < 4<<10 {
					text = w.write(text)
				}
			}
			return text
		}
		limit := 64 + int(n)%(8<<10)
		got := redact.line(before+" "+write(secret)+" "+after, limit)
		unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
		if len(got) > max(limit, len(notShown)) || strings.ContainsFunc(got, unprintable) {
			t.Errorf("shown is %q", got)
		}
		row, size := []rune(fold(secret)), 8
		if len(row) == 0 || got == notShown || !knows {
			return
		}
		shown := limit - len("…") - len(before) - len(" ") // of what was written
		if len(before)+len(write(secret))+len(after)+2 <= limit {
			shown = limit
		}
		if shown >= len(write(secret)) || len(row) > size+4 && shown > len(write(secret[:byteIndex(secret, size+4)])) {
			t.Errorf("%q, written as %q, is shown: %q", secret, write(secret), got)
		}
	})
}

func parsed(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// isAddress reports whether a text is an address, whose host and words are shown.
func isAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != ""
}

// byteIndex returns where the character n of a text begins.
func byteIndex(text string, n int) int {
	for i := range text {
		if n == 0 {
			return i
		}
		n--
	}
	return len(text)
}

// BenchmarkLine searches a usual answer.
func BenchmarkLine(b *testing.B) {
	redact := new(redactor)
	redact.hide("xoxb-2404815-aBcDeFgHiJ", strings.Repeat("eyJhbGciOiJSUzI1NiJ9", 100))
	text := strings.Repeat(`{"error":{"code":"InvalidAuthenticationToken","message":"It has expired."}}`+"\n", 50)
	for _, n := range []int{64, maxShown, maxOutput} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				redact.line(text, n)
			}
		})
	}
}
