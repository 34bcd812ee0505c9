package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/cmd/forewarn/internal/settings"
)

// fakeWindows is a machine whose service does after a while what it is told to.
type fakeWindows struct {
	installed bool
	now       service
	next      []serviceState // what it goes through, one for each look
	code      uint32         // with which it ends
	plan      servicePlan
	source    bool // of the Event Log
	removed   bool
	controls  []serviceControl
	places    map[string]place
	secured   map[string]string
	exe       string
	sick      error // of every change
}

func (f *fakeWindows) look() (service, error) {
	if !f.installed {
		return service{}, errNoService
	}
	if len(f.next) > 0 {
		f.now.State, f.next = f.next[0], f.next[1:]
		if f.now.ExitCode = 0; f.now.State == serviceStopped {
			f.now.ExitCode = f.code
		}
	}
	return f.now, nil
}

func (f *fakeWindows) write(plan servicePlan) error {
	if f.sick == nil {
		f.installed, f.plan = true, plan
		f.now.Command, f.now.Account, f.now.Start = plan.Command, plan.Account, "automatic"
		if f.now.State == 0 {
			f.now.State = serviceStopped
		}
	}
	return f.sick
}

func (f *fakeWindows) remove() error { f.installed, f.removed = false, true; return f.sick }

func (f *fakeWindows) start() error {
	f.now.PID = 4711
	f.next = append(f.next, serviceStartPending, serviceStartPending, serviceRunning)
	if f.code != 0 {
		f.next[len(f.next)-1] = serviceStopped
	}
	return f.sick
}

func (f *fakeWindows) control(c serviceControl) error {
	f.controls = append(f.controls, c)
	if c == controlStop {
		f.next = append(f.next, serviceStopPending, serviceStopped)
	}
	return f.sick
}

func (f *fakeWindows) registerEvents() error               { f.source = true; return f.sick }
func (f *fakeWindows) unregisterEvents() error             { f.source = false; return f.sick }
func (f *fakeWindows) place(path string) (place, error)    { return f.places[path], nil }
func (f *fakeWindows) executable() (string, string, error) { return f.exe, `C:\Users\alice`, nil }

func (f *fakeWindows) secure(path, access string) error {
	f.secured[path] = access
	return f.sick
}

// aWindows is a machine without the service, a program for it, and the directory that is forewarn's own there, with a
// settings file whose state is in it.
func aWindows(t *testing.T) (*fakeWindows, *program, string) {
	t.Helper()
	data := t.TempDir()
	getenv := func(name string) string { return map[string]string{"ProgramData": data}[name] }
	own := ownDirectory(getenv)
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	p := &program{logFormat: "text", logLevel: "info", output: "text", config: filepath.Join(own, "forewarn.yaml")}
	p.world = world{out: new(bytes.Buffer), err: new(bytes.Buffer), getenv: getenv, defaults: settings.SystemDefaults("windows", -1, getenv)}
	settle(t, p, own)
	return &fakeWindows{
		exe: `C:\Program Files\forewarn\forewarn.exe`, secured: map[string]string{},
		places: map[string]place{
			own:      {Type: aDirectory, Owner: sidAdministrators},
			p.config: {Type: aFile, Owner: sidAdministrators},
		},
	}, p, own
}

// settle writes settings with this state directory.
func settle(t *testing.T, p *program, state string) {
	t.Helper()
	text, err := json.Marshal(state)
	if err == nil {
		err = os.WriteFile(p.config, []byte("state: "+string(text)+"\nsinks: []\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// said is what people read of a command, and begins anew.
func said(p *program) string {
	b := p.err.(*bytes.Buffer)
	defer b.Reset()
	return b.String()
}

// A service is installed with its settings, a source of the Event Log, and a directory that is closed to others. Doing
// it again, from elsewhere or with other flags, changes it.
func TestServiceIsInstalledAndChangedByInstall(t *testing.T) {
	m, p, own := aWindows(t)
	if err := p.serviceInstall(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want := `"C:\Program Files\forewarn\forewarn.exe" run --config ` + p.config
	if m.plan.Command != want || !m.source {
		t.Errorf("it runs %s, and is a source: %v; want %s", m.plan.Command, m.source, want)
	}
	if len(m.secured) != 1 || m.secured[own] != directoryAccess("") {
		t.Errorf("access lists were given: %q, want that of %s alone", m.secured, own)
	}
	if text := said(p); !strings.Contains(text, "is installed and starts with Windows; forewarn service start starts it now\nit runs "+want) {
		t.Errorf("install says %q", text)
	}
	m.exe, p.logFormat = `D:\forewarn.exe`, "json"
	if err := p.serviceInstall(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if want := `"D:\forewarn.exe" run --config ` + p.config + " --log-format json"; m.plan.Command != want {
		t.Errorf("installed again it runs %s, want %s", m.plan.Command, want)
	}
	if text := said(p); !strings.Contains(text, "was there already and is now as said here") {
		t.Errorf("install says %q", text)
	}
}

// A state directory of the operator's own is made when it is missing. One that is there may hold more than ours: it is
// left alone, and how the service gets in is said.
func TestServiceInstallLeavesForeignDirectoriesAlone(t *testing.T) {
	for _, there := range []placeType{nothingThere, aDirectory} {
		m, p, own := aWindows(t)
		const state = `D:\data\forewarn`
		settle(t, p, state)
		m.places[state] = place{Type: there, Owner: "S-1-5-21-1-2-3-1001"}
		if err := p.serviceInstall(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		_, secured := m.secured[state]
		if secured != (there == nothingThere) || m.secured[own] == "" {
			t.Errorf("with %q there, access lists were given: %q", there, m.secured)
		}
		hint := `icacls "D:\data\forewarn" /grant *` + serviceSID("forewarn") + ":(OI)(CI)M"
		if text := said(p); strings.Contains(text, hint) != (there == aDirectory) {
			t.Errorf("with %q there, install says %q", there, text)
		}
	}
}

// A state directory below forewarn's own needs nothing: it has the access list of that one.
func TestServiceInstallKnowsItsOwnDirectories(t *testing.T) {
	m, p, own := aWindows(t)
	state := own + `\state`
	settle(t, p, state)
	m.places[state] = place{Type: aDirectory, Owner: serviceSID("forewarn")}
	if err := p.serviceInstall(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if text := said(p); len(m.secured) != 1 || m.secured[own] == "" || strings.Contains(text, "icacls") {
		t.Errorf("access lists were given: %q, and install says %q", m.secured, text)
	}
}

// What cannot be a safe service is refused before anything is changed.
func TestServiceInstallRefusesBeforeItChangesAnything(t *testing.T) {
	for claim, tt := range map[string]struct {
		spoil func(m *fakeWindows, p *program, own string)
		code  int
		says  string
	}{
		"no settings where they were said to be": {func(_ *fakeWindows, p *program, _ string) { os.Remove(p.config) }, exitSettings, "create it"},
		"no settings in the default place":       {func(_ *fakeWindows, p *program, _ string) { p.config = "" }, exitSettings, "there are no settings at"},
		"a program in a user's directory": {
			func(m *fakeWindows, _ *program, _ string) { m.exe = `C:\Users\alice\forewarn.exe` }, exitFailed, `copy it to C:\Program Files\forewarn`,
		},
		"a directory that a user made": {
			func(m *fakeWindows, _ *program, own string) {
				m.places[own] = place{Type: aDirectory, Owner: "S-1-5-21-1-2-3-1001", OwnerName: `VM\mallory`}
			}, exitFailed, `belongs to VM\mallory`,
		},
	} {
		m, p, own := aWindows(t)
		tt.spoil(m, p, own)
		err := p.serviceInstall(t.Context(), m)
		if err == nil || exitCode(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, exit code %d; want %q, %d", claim, err, exitCode(err), tt.says, tt.code)
		}
		if m.installed || m.source || len(m.secured) > 0 {
			t.Errorf("%s: something was changed: %+v", claim, m)
		}
	}
}

// Settings that a user has put into forewarn's own directory do not become those of a service.
func TestServiceInstallRefusesSettingsOfAUser(t *testing.T) {
	m, p, _ := aWindows(t)
	m.places[p.config] = place{Type: aFile, Owner: "S-1-5-21-1-2-3-1001", OwnerName: `VM\mallory`}
	if err := p.serviceInstall(t.Context(), m); err == nil || !strings.Contains(err.Error(), `forewarn.yaml belongs to VM\mallory`) || m.installed {
		t.Errorf("install = %v, installed %v; want it refused", err, m.installed)
	}
}

// A service is started, stopped and removed, and each may be asked for again: what is so already is said, and no error.
func TestServiceCommandsMayBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, p, _ := aWindows(t)
		m.write(planService("x", nil))
		m.source = true
		for _, step := range []struct {
			do   func(context.Context, machine) error
			says string
			is   serviceState
		}{
			{p.serviceStart, "the service forewarn runs, process 4711\n", serviceRunning},
			{p.serviceStart, "the service forewarn runs already\n", serviceRunning},
			{p.serviceReload, "the service forewarn reads its settings again", serviceRunning},
			{p.serviceStop, "the service forewarn is stopped\n", serviceStopped},
			{p.serviceStop, "the service forewarn is stopped already\n", serviceStopped},
			{p.serviceStart, "the service forewarn runs, process 4711\n", serviceRunning},
			{p.serviceUninstall, "the service forewarn is stopped\nthe service forewarn is removed; its settings and its state stay\n", serviceStopped},
			{p.serviceUninstall, "the service forewarn is not installed\n", serviceStopped},
		} {
			if err := step.do(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if text := said(p); !strings.HasPrefix(text, step.says) || m.now.State != step.is {
				t.Errorf("it says %q and the service is %s; want %q, %s", text, m.now.State.word(), step.says, step.is.word())
			}
		}
		if m.installed || !m.removed || m.source {
			t.Errorf("in the end the service is installed: %v, a source: %v", m.installed, m.source)
		}
	})
}

// Whoever asks for what cannot be has a reason and an exit code to go by.
func TestServiceCommandsFailWithTheirExitCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, p, _ := aWindows(t)
		for name, do := range map[string]func(context.Context, machine) error{
			"start": p.serviceStart, "stop": p.serviceStop, "reload": p.serviceReload, "status": p.serviceStatus,
		} {
			if err := do(t.Context(), m); exitCode(err) != exitUnavailable || !errors.Is(err, errNoService) {
				t.Errorf("%s without a service = %v, exit code %d; want %d", name, err, exitCode(err), exitUnavailable)
			}
		}
		m.write(planService("x", nil))
		if err := p.serviceReload(t.Context(), m); exitCode(err) != exitUnavailable || !strings.Contains(err.Error(), "is stopped") {
			t.Errorf("reload of a stopped service = %v, want exit code %d", err, exitUnavailable)
		}

		m.code = exitSettings // it ends at once
		if err := p.serviceStart(t.Context(), m); exitCode(err) != exitSettings || !strings.Contains(err.Error(), "Get-WinEvent") {
			t.Errorf("start of a service with wrong settings = %v, exit code %d; want its own, %d", err, exitCode(err), exitSettings)
		}
		m.code = 1067
		if err := p.serviceStart(t.Context(), m); exitCode(err) != exitFailed || !strings.Contains(err.Error(), "1067") {
			t.Errorf("start of a service that crashes = %v, exit code %d; want %d", err, exitCode(err), exitFailed)
		}

		m.now.State, m.next = serviceStopPending, nil
		began := time.Now()
		if err := p.serviceStop(t.Context(), m); exitCode(err) != exitTryAgain || time.Since(began) < servicePatience {
			t.Errorf("stop of a service that hangs = %v after %v, want exit code %d", err, time.Since(began), exitTryAgain)
		}
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.serviceStop(stopped, m); !errors.Is(err, context.Canceled) {
			t.Errorf("a stop that is cancelled = %v", err)
		}
	})
}

// A service that changes its state just now is waited for, and then has what was asked.
func TestServiceInBetweenIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, p, _ := aWindows(t)
		m.write(planService("x", nil))
		m.next = []serviceState{serviceStopPending, serviceStopPending, serviceStopped}
		if err := p.serviceStart(t.Context(), m); err != nil || m.now.State != serviceRunning {
			t.Errorf("start during a stop = %v, it is %s", err, m.now.State.word())
		}
		m.next = []serviceState{serviceStartPending, serviceStartPending, serviceRunning}
		if err := p.serviceStop(t.Context(), m); err != nil || m.now.State != serviceStopped {
			t.Errorf("stop during a start = %v, it is %s", err, m.now.State.word())
		}
		m.code, m.next = exitSettings, []serviceState{serviceStartPending, serviceStopped}
		if err := p.serviceStop(t.Context(), m); err != nil {
			t.Errorf("stop of a service whose start fails meanwhile = %v", err)
		}
	})
}

// Status is data for people and programs, and its exit code says whether the service runs.
func TestServiceStatusIsData(t *testing.T) {
	m, p, _ := aWindows(t)
	out := p.out.(*bytes.Buffer)
	for _, tt := range []struct {
		set        func()
		code       int
		text, json string
	}{
		{func() {}, exitUnavailable, "", `{"installed":false}`},
		{
			func() { m.write(planService("x", nil)); m.now.ExitCode = 78 }, exitUnavailable,
			"state    stopped, its last run ended with exit code 78\nstart    automatic\naccount  NT SERVICE\\forewarn\ncommand  \"x\"\n",
			`{"account":"NT SERVICE\\forewarn","command":"\"x\"","exitCode":78,"installed":true,"start":"automatic","state":"stopped"}`,
		},
		{
			func() { m.now.State, m.now.PID = serviceRunning, 42 }, exitOK,
			"state    running, process 42\nstart    automatic\naccount  NT SERVICE\\forewarn\ncommand  \"x\"\n",
			`{"account":"NT SERVICE\\forewarn","command":"\"x\"","installed":true,"pid":42,"start":"automatic","state":"running"}`,
		},
	} {
		tt.set()
		for form, want := range map[string]string{"text": tt.text, "json": tt.json} {
			p.output = form
			out.Reset()
			if err := p.serviceStatus(t.Context(), m); exitCode(err) != tt.code {
				t.Errorf("status = %v, exit code %d, want %d", err, exitCode(err), tt.code)
			}
			got := out.String()
			if form == "json" {
				var compact bytes.Buffer
				if err := json.Compact(&compact, out.Bytes()); err != nil {
					t.Fatal(err)
				}
				got = compact.String()
			}
			if got != want {
				t.Errorf("status as %s is\n%s\nwant\n%s", form, got, want)
			}
		}
	}
}
