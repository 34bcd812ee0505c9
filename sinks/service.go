package sinks

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"forewarn/bridge/delivery"
)

// A Service is a preset of webhook: how to tell one service of what happens. It is declared in a file. In the settings
// it is a kind of sink like any other, with keys of its own and those of webhook that make sense.
type Service struct {
	Name string // the key in the settings: the name of its file

	Title   string   `yaml:"title" doc:"its name for people"`
	Also    []string `yaml:"also" doc:"what the key is called elsewhere"`
	For     string   `yaml:"for" doc:"people, incidents, logs, automation, azure or own, which is the default"`
	About   string   `yaml:"about" doc:"what it does, in a few words"`
	Rules   string   `yaml:"rules" doc:"where the service documents what it takes"`
	Example string   `yaml:"example" doc:"an entry of sinks that works"`
	Answers string   `yaml:"answers" doc:"which of its answers are accepted or blocked, if that isn't just any 2xx"`
	Notes   string   `yaml:"notes" doc:"what else to know, in Markdown"`

	Keys   []ServiceKey `yaml:"keys" doc:"its own keys"`
	Offers []string     `yaml:"offers" doc:"keys of webhook that it has besides those that all services have"`
	URL    string       `yaml:"url" doc:"address unless the settings have another; without it they must"`
	URLDoc string       `yaml:"url_doc" doc:"what the key url is, in a few words"`
	Path   string       `yaml:"path" doc:"what is added to the address, a template"`

	Identity    string            `yaml:"azure_identity" doc:"what a token of the managed identity is for; used if no secret is given"`
	Method      string            `yaml:"method" doc:"POST, PUT or PATCH"`
	Headers     map[string]string `yaml:"headers" doc:"headers, each a template"`
	ContentType string            `yaml:"content_type" doc:"media type of the body"`
	Body        string            `yaml:"body" doc:"what is sent, a template"`
	Success     string            `yaml:"success" doc:"an expression over an answer of 2xx that must hold too"`
	BlockedOn   []int             `yaml:"blocked_on" doc:"more statuses that refuse credentials"`
	BlockedIf   string            `yaml:"blocked_if" doc:"an expression over an answer of 2xx that says that somebody must act"`

	Repeat time.Duration `yaml:"repeat" min:"10s" doc:"say what is open once more this often, as the service forgets it"`
}

// A ServiceKey is a key that only one service has. Its templates see it as .setting.NAME. A secret has the usual
// spellings.
type ServiceKey struct {
	Name     string `yaml:"name" doc:"the key"`
	Doc      string `yaml:"doc" doc:"what it is, in a few words"`
	Secret   bool   `yaml:"secret" doc:"whether it is never shown"`
	Required bool   `yaml:"required" doc:"whether the settings must have it"`
	Default  string `yaml:"default" doc:"its value unless the settings have another"`
	Pattern  string `yaml:"pattern" doc:"a regular expression that its whole value must match"`
	Expected string `yaml:"expected" doc:"what pattern means, in a few words"`
}

// The purposes of sinks, in the order of the documents, with what they are for.
var Purposes = []struct{ Name, Title string }{
	{"people", "People"}, {"incidents", "Incidents"}, {"logs", "Logs and archives"}, {"automation", "Automation"},
	{"azure", "Azure"}, {"own", "Your own"},
}

//go:embed services/*.yaml
var serviceFiles embed.FS

// Services returns the services that the program knows, sorted by name.
func Services() (all []*Service) {
	for _, name := range serviceNames() {
		all = append(all, readService(name))
	}
	return all
}

func serviceNames() (names []string) {
	files, err := serviceFiles.ReadDir("services")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, f := range files {
		names = append(names, ServiceName(f.Name()))
	}
	return names
}

func serviceText(name string) []byte {
	text, err := serviceFiles.ReadFile(path.Join("services", name+".yaml"))
	if err != nil {
		panic(err)
	}
	return text
}

// readService reads the service of that name.
func readService(name string) *Service {
	s, err := ParseService(name, serviceText(name))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return s
}

// ParseService reads the declaration of a service. It doesn't check more than that its keys are known; see Check.
func ParseService(name string, text []byte) (*Service, error) {
	s := &Service{Name: name}
	return s, yaml.UnmarshalWithOptions(text, s, yaml.Strict())
}

// serviceKind returns the kind of the service of that name. It reads only the first lines of its file, title and for:
// reading a whole file takes a millisecond, for which no command should wait as often as there are services.
func serviceKind(name string) Kind {
	s := &Service{Name: name}
	for line := range strings.Lines(string(serviceText(name))) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "title":
			s.Title = value
		case "for":
			s.For = value
		}
		if s.Title != "" && s.For != "" {
			break
		}
	}
	k := s.Kind()
	k.Open = func(decode func(any) error, h Host) (Opened, error) { return readService(name).open(decode, h) }
	return k
}

// ServiceName returns the name of the service that a file declares.
func ServiceName(file string) string { return strings.TrimSuffix(filepath.Base(file), ".yaml") }

// Kind returns the kind of sink that the service is.
func (s *Service) Kind() Kind {
	k := Kind{
		Open: s.open, Title: cmp.Or(s.Title, s.Name), Terms: webhookTerms,
		Purpose: cmp.Or(s.For, "own"), About: s.About, Example: s.Example, Also: s.Also, Service: true,
	}
	switch s.For {
	case "people":
		k.For, k.Terms.Late, k.Terms.DigestAbove = People, delivery.LateLatest, peopleGroup
	case "incidents": // of which each has a key of its own
		k.For, k.Terms.Late = People, delivery.LateLatest
	case "automation": // a delivery starts something, which must not begin once its event is over
		k.For, k.Terms.Late = Actors, delivery.LateDrop
	}
	return k
}

// commonKeys are the keys of webhook that every service has, behind its own.
var commonKeys = []string{"headers", "tls", "proxy", "insecure"}

// offerable are the keys of webhook that a service may offer.
var offerable = []string{"bearer", "basic", "runbook_url"}

// MoreKeys returns the keys of webhook that the service has besides its own.
func (s *Service) MoreKeys() []string { return slices.Concat(s.Offers, commonKeys) }

// settingsType returns the type of the struct that the settings of the service are decoded into: url, its own keys, and
// the fields of webhookSettings for the others.
func (s *Service) settingsType() reflect.Type {
	var fields []reflect.StructField
	add := func(key string, t reflect.Type, tags string) {
		tag := reflect.StructTag("yaml:" + strconv.Quote(key) + tags)
		fields = append(fields, reflect.StructField{Name: "F" + strconv.Itoa(len(fields)), Type: t, Tag: tag})
	}
	secret := func(key, tags string) {
		add(key, reflect.TypeFor[Secret](), tags)
		add(key+"_file", reflect.TypeFor[Path](), "")
		add(key+"_env", reflect.TypeFor[string](), "")
		add(key+"_vault", reflect.TypeFor[string](), "")
	}
	secret("url", tagsOf(cmp.Or(s.URLDoc, "address of the service"), s.URL, s.URL == ""))
	for _, k := range s.Keys {
		if k.Secret {
			secret(k.Name, tagsOf(k.Doc, "", k.Required))
		} else {
			add(k.Name, reflect.TypeFor[string](), tagsOf(k.Doc, k.Default, k.Required))
		}
	}
	if s.Identity != "" {
		add("azure_identity", reflect.TypeFor[serviceIdentity](), tagsOf("which managed identity of the VM to use", "", false))
	}
	webhook := reflect.TypeFor[webhookSettings]()
	for _, key := range slices.Concat(s.Offers, commonKeys) {
		for f := range webhook.Fields() {
			name := f.Tag.Get("yaml")
			if name == key || oneOf(name, key+"_file", key+"_env", key+"_vault") {
				_, tags, _ := strings.Cut(string(f.Tag), strconv.Quote(name))
				add(name, f.Type, tags)
			}
		}
	}
	return reflect.StructOf(fields)
}

// tagsOf returns the tags of a key's field, but for yaml.
func tagsOf(doc, byDefault string, required bool) string {
	tags := " doc:" + strconv.Quote(doc)
	if byDefault != "" {
		tags += " default:" + strconv.Quote(byDefault)
	}
	if required {
		tags += ` required:""`
	}
	return tags
}

// A serviceIdentity says which managed identity of the VM a service is told with. What its token is for, the service
// knows.
type serviceIdentity struct {
	ClientID string `yaml:"client_id" doc:"client id of a user-assigned identity, if the VM has several"`
}

// open is the Open of the service's kind.
func (s *Service) open(decode func(any) error, h Host) (Opened, error) {
	in := reflect.New(s.settingsType())
	if err := decode(in.Interface()); err != nil {
		return Opened{}, err
	}
	w := s.webhook(in.Elem())
	wrong := s.checkOwn(w.own, h)
	opened, err := openWebhook(w, h)
	wrong.add(err)
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	opened.Incident, opened.Repeat = s.For == "incidents", s.Repeat
	return opened, nil
}

// webhook returns the settings of the webhook that the service is with settings in, of its settingsType.
func (s *Service) webhook(in reflect.Value) webhookSettings {
	w := webhookSettings{
		Method: s.Method, BodyText: s.Body, ContentType: s.ContentType, Success: s.Success, BlockedOn: s.BlockedOn, service: s,
	}
	given := make(map[string]reflect.Value)
	for f, v := range in.Fields() {
		given[f.Tag.Get("yaml")] = v
	}
	for f, v := range reflect.ValueOf(&w).Elem().Fields() {
		if own, ok := given[f.Tag.Get("yaml")]; ok && own.Type() == v.Type() {
			v.Set(own)
		}
	}
	credentials := w.Basic != nil || keyedSource("bearer", w.Bearer, w.BearerFile, w.BearerEnv, w.BearerVault).given()
	for _, k := range s.Keys {
		from := source{key: k.Name, sep: "_", name: k.Name, open: !k.Secret}
		if k.Secret {
			from.Text = given[k.Name].Interface().(Secret)
			from.File, from.Env = given[k.Name+"_file"].Interface().(Path), given[k.Name+"_env"].String()
			from.Vault = given[k.Name+"_vault"].String()
			credentials = credentials || from.given()
		} else if text := cmp.Or(given[k.Name].String(), k.Default); text != "" {
			from.Text = NewSecret(text)
		}
		w.own = append(w.own, from)
	}
	if s.Identity != "" && !credentials {
		w.Identity = &identitySettings{s.Identity, given["azure_identity"].Interface().(serviceIdentity).ClientID}
	}
	return w
}

// checkOwn returns the errors about the service's own keys, which have these sources.
func (s *Service) checkOwn(own []source, h Host) (wrong KeyErrors) {
	for i, k := range s.Keys {
		expected := k.Name
		if k.Secret {
			expected += ", " + k.Name + "_file, " + k.Name + "_env or " + k.Name + "_vault"
		}
		wrong.when(k.Required && !own[i].given(), k.Name, "missing; expected %s", expected)
		if k.Pattern == "" || !own[i].given() || own[i].check() != nil {
			continue
		}
		text, err := own[i].read(h)
		if err == nil && !regexp.MustCompile("^(?:"+k.Pattern+")$").MatchString(text) {
			wrong.add(own[i].wrong(fmt.Errorf("is not valid; expected %s", k.Expected)))
		}
	}
	return wrong
}

var keyName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// Check returns all that is wrong with a service, as errors about the keys of its file. It tries the templates on
// samples.
func (s *Service) Check() error {
	wrong := s.checkKeys()
	var purposes []string
	for _, p := range Purposes {
		purposes = append(purposes, p.Name)
	}
	wrong.when(s.Body == "", "body", "missing; expected a template of what is sent")
	wrong.when(s.For != "" && !slices.Contains(purposes, s.For), "for", "%q is unknown; expected one of %s", s.For,
		strings.Join(purposes, ", "))
	for i, key := range s.Offers {
		wrong.when(!slices.Contains(offerable, key), fmt.Sprintf("offers.%d", i), "%q is unknown; expected some of %s", key,
			strings.Join(offerable, ", "))
	}
	if len(wrong) > 0 {
		return wrong.err()
	}
	in := reflect.New(s.settingsType()).Elem()
	for f, v := range in.Fields() {
		switch key := f.Tag.Get("yaml"); {
		case key == "url":
			v.Set(reflect.ValueOf(NewSecret(cmp.Or(s.URL, "https://service.example"))))
		case slices.ContainsFunc(s.Keys, func(k ServiceKey) bool { return k.Name == key && k.Secret }):
			v.Set(reflect.ValueOf(NewSecret("x")))
		case slices.ContainsFunc(s.Keys, func(k ServiceKey) bool { return k.Name == key && k.Default == "" }):
			v.SetString("x")
		}
	}
	_, err := openWebhook(s.webhook(in), Host{})
	e, ok := errors.AsType[*KeyError](err)
	if ok && e.Key == "url" && s.Path != "" { // which is added to it
		e.Key = "path"
	}
	return err
}

// checkKeys returns the errors about the declarations of the service's own keys.
func (s *Service) checkKeys() (wrong KeyErrors) {
	taken := slices.Concat(commonKeys, offerable, []string{"azure_identity", "url", "url_file", "url_env", "url_vault"})
	for i, k := range s.Keys {
		at := fmt.Sprintf("keys.%d.", i)
		wrong.when(!keyName.MatchString(k.Name), at+"name", "%q is no name of a key; expected lower case letters, digits and _",
			k.Name)
		wrong.when(slices.Contains(taken, k.Name), at+"name", "%q is taken; expected another name", k.Name)
		_, err := regexp.Compile(k.Pattern)
		wrong.when(err != nil, at+"pattern", "%v", err)
		wrong.when(k.Secret && k.Default != "", at+"default", "a secret has none; expected one or the other")
		taken = append(taken, k.Name, k.Name+"_file", k.Name+"_env", k.Name+"_vault")
	}
	return wrong
}

// joinPath returns a URL with a path and a query added, but for what it has already. Both may be templates.
func joinPath(base, added string) string {
	base, query, _ := strings.Cut(base, "?")
	added, more, _ := strings.Cut(added, "?")
	if !strings.HasSuffix(base, added) {
		base = strings.TrimSuffix(base, "/") + added
	}
	for pair := range strings.FieldsFuncSeq(more, func(r rune) bool { return r == '&' }) {
		name, _, _ := strings.Cut(pair, "=")
		if !strings.Contains("&"+query, "&"+name+"=") {
			query = strings.TrimPrefix(query+"&"+pair, "&")
		}
	}
	if query == "" {
		return base
	}
	return base + "?" + query
}
