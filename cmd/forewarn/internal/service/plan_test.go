package service

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The service starts with Windows under its own account, and again after every failure. A shutdown of Windows waits
// longer than the service takes to stop.
func TestPlanStartsAndRestartsTheService(t *testing.T) {
	p := newPlan(`C:\f w\forewarn.exe`, arguments(`C:\s t\forewarn.yaml`, "json", "debug"))
	want := []string{`C:\f w\forewarn.exe`, "service", "run", "--config", `C:\s t\forewarn.yaml`, "--log-format", "json",
		"--log-level", "debug"}
	if !slices.Equal(p.Command, want) {
		t.Errorf("it runs %q, want %q", p.Command, want)
	}
	if got := arguments("x", "text", "info"); !slices.Equal(got, []string{"service", "run", "--config", "x"}) {
		t.Errorf("with the default log flags it runs with %q", got)
	}
	if p.Account != `NT SERVICE\`+p.Name {
		t.Errorf("service %s runs as %s, want the virtual account of that name", p.Name, p.Account)
	}
	if want := []time.Duration{5 * time.Second, 30 * time.Second, time.Minute}; !slices.Equal(p.Restarts, want) {
		t.Errorf("it starts again after %v, want %v", p.Restarts, want)
	}
	if p.Preshutdown <= stopLimit {
		t.Errorf("a shutdown waits %v, and a stop may take %v", p.Preshutdown, stopLimit)
	}
}

// The SID of a service is the one that Windows derives from its name, in any case.
func TestServiceSIDMatchesWindows(t *testing.T) {
	for name, want := range map[string]string{ // those of every Windows
		"TrustedInstaller": "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",
		"trustedinstaller": "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",
		"WinDefend":        "S-1-5-80-1913148863-3492339771-4165695881-2087618961-4109116736",
	} {
		if got := serviceSID(name); got != want {
			t.Errorf("serviceSID(%s) = %s, want %s", name, got, want)
		}
	}
}

// The state directory inherits no rights. Only Windows, administrators, the service, which cannot change the access
// list, and an explicitly named user have access.
func TestStateDirectoryIsClosedToOthers(t *testing.T) {
	service := serviceSID("forewarn")
	common := "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1301bf;;;" + service + ")"
	for user, want := range map[string]string{
		"":                   "O:BA" + common,
		"S-1-5-21-1-2-3-500": common + "(A;OICI;FA;;;S-1-5-21-1-2-3-500)",
		service:              common,
	} {
		if got := directoryAccess(user); got != want {
			t.Errorf("directoryAccess(%q) = %s, want %s", user, got, want)
		}
	}
	const changeList, changeOwner = 0x40000, 0x80000
	if rights := 0x1301bf; rights&(changeList|changeOwner) != 0 {
		t.Errorf("the service may change the access list: %#x", rights)
	}
}

// A file or directory that a non-administrator created is refused. The error says how to fix that.
func TestPathOfAnotherUserIsRefused(t *testing.T) {
	const path = `C:\ProgramData\forewarn`
	for _, tt := range []struct {
		place place
		want  placeType
		says  string
	}{
		{place{}, aDirectory, ""},
		{place{Type: aDirectory, Owner: "S-1-5-18"}, aDirectory, ""},
		{place{Type: aDirectory, Owner: "S-1-5-32-544"}, aDirectory, ""},
		{place{Type: aFile, Owner: serviceSID("forewarn")}, aFile, ""},
		{place{Type: aFile, Owner: "S-1-5-21-1-2-3-1000"}, aFile, ""}, // whoever installs it
		{place{Type: aFile, Owner: "S-1-5-32-544"}, aDirectory, "is a file, expected a directory"},
		{place{Type: aLink, Owner: "S-1-5-32-544"}, aDirectory, "is a link, expected a directory"},
		{
			place{Type: aDirectory, Owner: "S-1-5-21-1-2-3-1001", OwnerName: `VM\mallory`}, aDirectory,
			`belongs to VM\mallory, who may not be an administrator but could control the service with it; check it, ` +
				`then give it to the administrators: icacls "C:\ProgramData\forewarn" /setowner *S-1-5-32-544 /T`,
		},
	} {
		err := checkPlace(path, tt.place, tt.want, "S-1-5-21-1-2-3-1000")
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("checkPlace(%+v) = %v, want %q", tt.place, err, tt.says)
		}
	}
}

// A program that the service could not start, or that its user could replace, is not installed.
func TestUnsuitableServiceProgramIsRefused(t *testing.T) {
	for exe, ok := range map[string]bool{
		`C:\Program Files\forewarn\forewarn.exe`:   true,
		`D:\tools\forewarn.exe`:                    true,
		`\\?\C:\forewarn\forewarn.exe`:             true,
		`C:\Users\alice2\forewarn.exe`:             true, // not alice's
		`c:\users\ALICE\Downloads\forewarn.exe`:    false,
		`\\fileserver\tools\forewarn\forewarn.exe`: false,
	} {
		err := checkExecutable(exe, `C:\Users\alice`)
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), `C:\Program Files\forewarn`) {
			t.Errorf("checkExecutable(%s) = %v, want ok %v and a remedy", exe, err, ok)
		}
	}
	if err := checkExecutable(`C:\forewarn.exe`, ""); err != nil {
		t.Errorf("without a profile: %v", err)
	}
}
