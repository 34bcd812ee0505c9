package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
)

// A service logs to the Event Log with the level and format of the flags. It writes nothing to standard error, which
// nobody reads.
func TestServiceLogsToTheEventLog(t *testing.T) {
	var entries []string
	var standard strings.Builder
	p := &program{logLevel: "warn", logFormat: "text",
		environment: environment{err: &standard, events: func(_ slog.Level, text string) error {
			entries = append(entries, text)
			return nil
		}}}
	p.log().Info("not wanted")
	p.log().Warn("wanted")
	if len(entries) != 1 || entries[0] != "wanted" || standard.Len() > 0 {
		t.Errorf("the entries are %q, standard error has %q; want one entry", entries, &standard)
	}
}

// A service is set up with the settings file, its state and the log flags. It is not set up without settings.
func TestServiceIsSetUpFromSettingsAndFlags(t *testing.T) {
	data := t.TempDir()
	getenv := func(name string) string { return map[string]string{"ProgramData": data}[name] }
	p := &program{logFormat: "json", logLevel: "info"}
	p.environment = environment{err: new(bytes.Buffer), getenv: getenv,
		defaults: settings.SystemDefaults("windows", -1, getenv)}
	if _, err := p.serviceSetup(); exitCode(err) != exitSettings || !strings.Contains(err.Error(),
		"there is no settings file") {
		t.Errorf("without settings in the default place: %v, exit code %d; want %d", err, exitCode(err), exitSettings)
	}
	p.config = filepath.Join(data, "forewarn.yaml")
	if _, err := p.serviceSetup(); exitCode(err) != exitSettings || !strings.Contains(err.Error(), "create it") {
		t.Errorf("without settings where they were said to be: %v, exit code %d; want %d", err, exitCode(err), exitSettings)
	}
	if err := os.WriteFile(p.config, []byte("state: '"+data+"'\nsinks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := service.Setup{Config: p.config, State: data, Own: data + `\forewarn`, LogFormat: "json", LogLevel: "info"}
	if got, err := p.serviceSetup(); err != nil || got != want {
		t.Errorf("the service is set up as %+v, %v; want %+v", got, err, want)
	}
	if err := os.WriteFile(p.config, []byte("nats: {url: 'nats://127.0.0.1'}\nsinks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.serviceSetup(); exitCode(err) != exitSettings || !errors.Is(err, settings.ErrIsRelay) {
		t.Errorf("with the settings of a relay: %v, exit code %d; want %d", err, exitCode(err), exitSettings)
	}
}

// Each unexpected state of the service has its exit code. A service that ended gives its own, if it is one of ours.
func TestServiceErrorsHaveTheirExitCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{service.ErrNotInstalled, exitUnavailable},
		{fmt.Errorf("stop: %w", service.ErrNotInstalled), exitUnavailable},
		{&service.NotRunningError{State: service.Stopped}, exitUnavailable},
		{&service.SlowError{State: service.StopPending}, exitTryAgain},
		{service.ErrBeingRemoved, exitTryAgain},
		{&service.EndedError{ExitCode: exitSettings}, exitSettings},
		{&service.EndedError{ExitCode: 1067}, exitFailed},
		{errors.New("access denied"), exitFailed},
	} {
		if got := exitCode(serviceExit(tt.err)); got != tt.want {
			t.Errorf("%v means exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

// A failed run ends the service with the exit code of the command. A run that was asked to stop ends it with 0.
func TestServiceEndsWithTheExitCodeOfTheRun(t *testing.T) {
	broken := fmt.Errorf("outbox: %w", exit(exitTryAgain, errors.New("locked")))
	for _, tt := range []struct {
		err  error
		want int
	}{
		{exit(exitSettings, errors.New("settings: no")), exitSettings},
		{broken, exitTryAgain},
		{errors.New("something else"), exitFailed},
		{&service.StoppedError{Err: broken}, exitOK},
		{nil, exitOK},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v ends it with exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

// service status prints text or JSON, and its exit code says whether the service runs.
func TestServiceStatusIsData(t *testing.T) {
	var out bytes.Buffer
	p := &program{environment: environment{out: &out}}
	made := service.Status{State: service.Stopped, ExitCode: 78, Command: `"x"`, Account: `NT SERVICE\forewarn`,
		Start: "automatic"}
	runs := made
	runs.State, runs.PID = service.Running, 42
	for _, tt := range []struct {
		status     service.Status
		err        error
		code       int
		text, json string
	}{
		{service.Status{}, service.ErrNotInstalled, exitUnavailable, "", `{"installed":false}`},
		{
			made, nil, exitUnavailable,
			"state    stopped, last exit code 78\nstart    automatic\naccount  NT SERVICE\\forewarn\ncommand  \"x\"\n",
			`{"account":"NT SERVICE\\forewarn","command":"\"x\"","exitCode":78,"installed":true,"start":"automatic","state":"stopped"}`,
		},
		{
			runs, nil, exitOK,
			"state    running, process 42\nstart    automatic\naccount  NT SERVICE\\forewarn\ncommand  \"x\"\n",
			`{"account":"NT SERVICE\\forewarn","command":"\"x\"","installed":true,"pid":42,"start":"automatic","state":"running"}`,
		},
	} {
		for form, want := range map[string]string{"text": tt.text, "json": tt.json} {
			p.output = form
			out.Reset()
			if err := serviceExit(p.printServiceStatus(tt.status, tt.err)); exitCode(err) != tt.code {
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
