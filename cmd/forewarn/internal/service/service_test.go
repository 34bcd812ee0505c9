package service

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fakeWindows is a machine whose service does after a while what it is told to.
type fakeWindows struct {
	installed   bool
	now         Status
	next        []State // what it goes through, one for each look
	code        uint32  // with which it ends
	plan        plan
	source      bool // of the Event Log
	removed     bool
	controls    []control
	places      map[string]place
	secured     map[string]string
	exe         string
	unsupported []string
	sick        error // of every change
}

func (f *fakeWindows) query() (Status, error) {
	if !f.installed {
		return Status{}, ErrNotInstalled
	}
	if len(f.next) > 0 {
		f.now.State, f.next = f.next[0], f.next[1:]
		if f.now.ExitCode = 0; f.now.State == Stopped {
			f.now.ExitCode = f.code
		}
	}
	return f.now, nil
}

func (f *fakeWindows) write(p plan) ([]string, error) {
	if f.sick == nil {
		f.installed, f.plan = true, p
		f.now.Command, f.now.Account, f.now.Start = strings.Join(p.Command, " "), p.Account, "automatic"
		if f.now.State == 0 {
			f.now.State = Stopped
		}
	}
	return f.unsupported, f.sick
}

func (f *fakeWindows) remove() error { f.installed, f.removed = false, true; return f.sick }

func (f *fakeWindows) start() error {
	f.now.PID = 4711
	f.next = append(f.next, StartPending, StartPending, Running)
	if f.code != 0 {
		f.next[len(f.next)-1] = Stopped
	}
	return f.sick
}

func (f *fakeWindows) control(c control) error {
	f.controls = append(f.controls, c)
	if c == controlStop {
		f.next = append(f.next, StopPending, Stopped)
	}
	return f.sick
}

func (f *fakeWindows) registerEvents() error               { f.source = true; return f.sick }
func (f *fakeWindows) unregisterEvents() error             { f.source = false; return f.sick }
func (f *fakeWindows) place(path string) (place, error)    { return f.places[path], nil }
func (f *fakeWindows) installer() (string, error)          { return "S-1-5-21-1-2-3-1000", nil }
func (f *fakeWindows) executable() (string, string, error) { return f.exe, `C:\Users\alice`, nil }

func (f *fakeWindows) secure(path, access string) error {
	f.secured[path] = access
	return f.sick
}

// aWindows is a machine without the service, a program for it, and a settings file whose state is in the directory
// that is forewarn's own there.
func aWindows() (*fakeWindows, *Service, Setup) {
	const own = `C:\ProgramData\forewarn`
	with := Setup{Config: filepath.Join(own, "forewarn.yaml"), State: own, Own: own, LogFormat: "text", LogLevel: "info"}
	m := &fakeWindows{
		exe: `C:\Program Files\forewarn\forewarn.exe`, secured: map[string]string{},
		places: map[string]place{
			own:         {Type: aDirectory, Owner: SIDAdministrators},
			with.Config: {Type: aFile, Owner: SIDAdministrators},
		},
	}
	return m, &Service{m, new(bytes.Buffer)}, with
}

// said is what people read of what was done, and begins anew.
func said(s *Service) string {
	b := s.messages.(*bytes.Buffer)
	defer b.Reset()
	return b.String()
}

// Install creates the service with its settings, its source of the Event Log and its closed directory. Installing
// again with another program or other flags changes it.
func TestServiceIsInstalledAndChangedByInstall(t *testing.T) {
	m, s, with := aWindows()
	if err := s.Install(with); err != nil {
		t.Fatal(err)
	}
	want := `C:\Program Files\forewarn\forewarn.exe service run --config ` + with.Config
	if m.now.Command != want || !m.source {
		t.Errorf("it runs %s, and is a source: %v; want %s", m.now.Command, m.source, want)
	}
	if len(m.secured) != 1 || m.secured[with.Own] != directoryAccess("") {
		t.Errorf("access lists were given: %q, want that of %s alone", m.secured, with.Own)
	}
	if text := said(s); !strings.Contains(text,
		"is installed and starts with Windows; to start it now, run forewarn service start\nit runs "+want) {
		t.Errorf("install says %q", text)
	}
	m.exe, with.LogFormat = `D:\forewarn.exe`, "json"
	if err := s.Install(with); err != nil {
		t.Fatal(err)
	}
	if want := `D:\forewarn.exe service run --config ` + with.Config + " --log-format json"; m.now.Command != want {
		t.Errorf("installed again it runs %s, want %s", m.now.Command, want)
	}
	if text := said(s); !strings.Contains(text, "is changed; the changes take effect at its next start") {
		t.Errorf("install says %q", text)
	}
}

// A missing state directory is created. An existing one may contain other files, so its access list stays, and Install
// says how to grant access.
func TestServiceInstallLeavesForeignDirectoriesAlone(t *testing.T) {
	for _, there := range []placeType{absent, aDirectory} {
		m, s, with := aWindows()
		const state = `D:\data\forewarn`
		with.State = state
		m.places[state] = place{Type: there, Owner: SIDAdministrators}
		if err := s.Install(with); err != nil {
			t.Fatal(err)
		}
		_, secured := m.secured[state]
		if secured != (there == absent) || m.secured[with.Own] == "" {
			t.Errorf("with %q there, access lists were given: %q", there, m.secured)
		}
		hint := `icacls "D:\data\forewarn" /grant *` + serviceSID("forewarn") + ":(OI)(CI)M"
		if text := said(s); strings.Contains(text, hint) != (there == aDirectory) {
			t.Errorf("with %q there, install says %q", there, text)
		}
	}
}

// A state directory below forewarn's own is left alone, because it inherits that access list.
func TestServiceInstallKnowsItsOwnDirectories(t *testing.T) {
	m, s, with := aWindows()
	state := with.Own + `\state`
	with.State = state
	m.places[state] = place{Type: aDirectory, Owner: serviceSID("forewarn")}
	if err := s.Install(with); err != nil {
		t.Fatal(err)
	}
	if text := said(s); len(m.secured) != 1 || m.secured[with.Own] == "" || strings.Contains(text, "icacls") {
		t.Errorf("access lists were given: %q, and install says %q", m.secured, text)
	}
}

// Whatever makes the service unsafe is refused before anything is changed.
func TestServiceInstallRefusesBeforeItChangesAnything(t *testing.T) {
	for claim, tt := range map[string]struct {
		spoil func(m *fakeWindows, own string)
		says  string
	}{
		"a program in a user's directory": {
			func(m *fakeWindows, _ string) { m.exe = `C:\Users\alice\forewarn.exe` }, `copy it to C:\Program Files\forewarn`,
		},
		"a directory that a user made": {
			func(m *fakeWindows, own string) {
				m.places[own] = place{Type: aDirectory, Owner: "S-1-5-21-1-2-3-1001", OwnerName: `VM\mallory`}
			}, `belongs to VM\mallory`,
		},
	} {
		m, s, with := aWindows()
		tt.spoil(m, with.Own)
		if err := s.Install(with); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", claim, err, tt.says)
		}
		if m.installed || m.source || len(m.secured) > 0 {
			t.Errorf("%s: something was changed: %+v", claim, m)
		}
	}
}

// Install refuses settings, an outbox or a state directory that another user made or can change, and says what to do.
// It accepts those of the installing administrator.
func TestServiceInstallRefusesWhatOthersCanChange(t *testing.T) {
	const me, mallory = "S-1-5-21-1-2-3-1000", "S-1-5-21-1-2-3-1001"
	const read, modify = 0x1200a9, 0x1301bf
	users := func(rights uint32) []grant {
		return []grant{{SIDAdministrators, "administrators", 0x1f01ff}, {SID(), "forewarn", modify}, {"S-1-5-32-545", `BUILTIN\Users`, rights}}
	}
	for claim, tt := range map[string]struct {
		path func(Setup) string
		is   place
		says string // "" for taken
	}{
		"settings of mallory": {func(w Setup) string { return w.Config }, place{Type: aFile, Owner: mallory, OwnerName: `VM\mallory`},
			`forewarn.yaml belongs to VM\mallory`},
		"settings of whoever installs": {func(w Setup) string { return w.Config }, place{Type: aFile, Owner: me}, ""},
		"settings that users can read": {func(w Setup) string { return w.Config }, place{Type: aFile, Owner: me, Grants: users(read)}, ""},
		"settings that users can change": {func(w Setup) string { return w.Config }, place{Type: aFile, Owner: me, Grants: users(modify)},
			`can be changed by BUILTIN\Users, who could control the service with it; to close it to other users, run: icacls "`},
		"an outbox of mallory": {func(w Setup) string { return filepath.Join(w.State, "outbox.db") }, place{Type: aFile, Owner: mallory,
			OwnerName: `VM\mallory`}, `outbox.db belongs to VM\mallory`},
		"a state that users can read": {func(w Setup) string { return w.State }, place{Type: aDirectory, Owner: me, Grants: users(read)}, ""},
		"a state that users can change": {func(w Setup) string { return w.State }, place{Type: aDirectory, Owner: me, Grants: users(modify)},
			`/inheritance:r /grant *` + SID() + `:(OI)(CI)M *S-1-5-18:(OI)(CI)F *S-1-5-32-544:(OI)(CI)F`},
		"a state where users can make files": {func(w Setup) string { return w.State }, place{Type: aDirectory, Owner: me, Grants: users(read | 2)},
			`D:\data can be changed by BUILTIN\Users`},
	} {
		m, s, with := aWindows()
		with.State = `D:\data`
		m.places[tt.path(with)] = tt.is
		err := s.Install(with)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: install = %v, want %q", claim, err, tt.says)
		}
		if m.installed != (tt.says == "") {
			t.Errorf("%s: installed %v", claim, m.installed)
		}
	}
}

// Features that this version of Windows lacks are reported, and do not prevent the installation.
func TestServiceInstallSaysWhatWindowsLacks(t *testing.T) {
	m, s, with := aWindows()
	m.unsupported = []string{"SIDs of services"}
	if err := s.Install(with); err != nil || !m.installed {
		t.Errorf("install = %v, installed %v", err, m.installed)
	}
	if text := said(s); !strings.Contains(text, "note: this Windows does not know SIDs of services\n") {
		t.Errorf("install says %q", text)
	}
}

// Start, stop and uninstall can be repeated. A command that has nothing to do says so, without an error.
func TestServiceCommandsMayBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s, _ := aWindows()
		m.write(newPlan("x", nil))
		m.source = true
		for _, step := range []struct {
			do   func(context.Context) error
			says string
			is   State
		}{
			{s.Start, "the service forewarn is running, process 4711\n", Running},
			{s.Start, "the service forewarn is already running\n", Running},
			{func(context.Context) error { return s.Reload() }, "the service forewarn reloads its settings", Running},
			{s.Stop, "the service forewarn is stopped\n", Stopped},
			{s.Stop, "the service forewarn is already stopped\n", Stopped},
			{s.Start, "the service forewarn is running, process 4711\n", Running},
			{s.Uninstall, "the service forewarn is stopped\nthe service forewarn is removed; its settings and state are kept\n",
				Stopped},
			{s.Uninstall, "the service forewarn is not installed\n", Stopped},
		} {
			if err := step.do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if text := said(s); !strings.HasPrefix(text, step.says) || m.now.State != step.is {
				t.Errorf("it says %q and the service is %s; want %q, %s", text, m.now.State, step.says, step.is)
			}
		}
		if m.installed || !m.removed || m.source {
			t.Errorf("in the end the service is installed: %v, a source: %v", m.installed, m.source)
		}
	})
}

// A command that fails says why.
func TestServiceCommandsFailWithTheirReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s, _ := aWindows()
		status := func(context.Context) error { _, err := s.Status(); return err }
		reload := func(context.Context) error { return s.Reload() }
		for name, do := range map[string]func(context.Context) error{
			"start": s.Start, "stop": s.Stop, "reload": reload, "status": status,
		} {
			if err := do(t.Context()); !errors.Is(err, ErrNotInstalled) {
				t.Errorf("%s without a service = %v, want %v", name, err, ErrNotInstalled)
			}
		}
		m.write(newPlan("x", nil))
		var idle *NotRunningError
		if err := s.Reload(); !errors.As(err, &idle) || !strings.Contains(err.Error(), "is stopped") {
			t.Errorf("reload of a stopped service = %v, want that it is stopped", err)
		}

		m.code = 78 // it ends at once
		var ended *EndedError
		if err := s.Start(t.Context()); !errors.As(err, &ended) || ended.ExitCode != 78 || !strings.Contains(err.Error(),
			"Get-WinEvent") {
			t.Errorf("start of a service with wrong settings = %v, want its exit code, 78", err)
		}
		m.code = 1067
		if err := s.Start(t.Context()); !errors.As(err, &ended) || !strings.Contains(err.Error(), "1067") {
			t.Errorf("start of a service that crashes = %v, want its exit code, 1067", err)
		}

		m.now.State, m.next = StopPending, nil
		began := time.Now()
		var slow *SlowError
		if err := s.Stop(t.Context()); !errors.As(err, &slow) || slow.State != StopPending || time.Since(began) < stateTimeout {
			t.Errorf("stop of a service that hangs = %v after %v, want that it is still stopping", err, time.Since(began))
		}
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Stop(stopped); !errors.Is(err, context.Canceled) {
			t.Errorf("a stop that is cancelled = %v", err)
		}
	})
}

// Commands wait for a service that is changing its state, and then do what was asked.
func TestCommandsWaitForAPendingState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s, _ := aWindows()
		m.write(newPlan("x", nil))
		m.next = []State{StopPending, StopPending, Stopped}
		if err := s.Start(t.Context()); err != nil || m.now.State != Running {
			t.Errorf("start during a stop = %v, it is %s", err, m.now.State)
		}
		m.next = []State{StartPending, StartPending, Running}
		if err := s.Stop(t.Context()); err != nil || m.now.State != Stopped {
			t.Errorf("stop during a start = %v, it is %s", err, m.now.State)
		}
		m.code, m.next = 78, []State{StartPending, Stopped}
		if err := s.Stop(t.Context()); err != nil {
			t.Errorf("stop of a service whose start fails meanwhile = %v", err)
		}
	})
}
