package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

func (windowsMachine) place(path string) (place, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return place{}, nil
	} else if err != nil {
		return place{}, err
	}
	found := place{Type: aLink}
	switch info.Mode().Type() {
	case fs.ModeDir:
		found.Type = aDirectory
	case 0:
		found.Type = aFile
	}
	d, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return place{}, denied("owner of "+path, err)
	}
	owner, _, err := d.Owner()
	if err != nil {
		return place{}, fmt.Errorf("owner of %s: %w", path, err)
	}
	found.Owner, found.OwnerName = owner.String(), accountName(owner)
	found.Grants, err = grants(d)
	if err != nil {
		return place{}, fmt.Errorf("access list of %s: %w", path, err)
	}
	return found, nil
}

// accountName returns the name of an account, or its SID if it has none.
func accountName(sid *windows.SID) string {
	account, domain, _, err := sid.LookupAccount("")
	switch {
	case err != nil:
		return sid.String()
	case domain == "":
		return account
	}
	return domain + `\` + account
}

// grants returns what an access list allows at its place. Without a list everybody may do anything.
func grants(d *windows.SECURITY_DESCRIPTOR) (list []grant, err error) {
	acl, _, err := d.DACL()
	switch {
	case errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND), err == nil && acl == nil:
		everyone, err := windows.CreateWellKnownSid(windows.WinWorldSid)
		if err != nil {
			return nil, err
		}
		return []grant{{everyone.String(), accountName(everyone), windows.GENERIC_ALL}}, nil
	case err != nil:
		return nil, err
	}
	for i := range uint32(acl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &ace); err != nil {
			return nil, err
		}
		if ace.Header.AceType == windows.ACCESS_ALLOWED_ACE_TYPE && ace.Header.AceFlags&windows.INHERIT_ONLY_ACE == 0 {
			sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart))
			list = append(list, grant{sid.String(), accountName(sid), uint32(ace.Mask)})
		}
	}
	return list, nil
}

func (windowsMachine) installer() (string, error) {
	u, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return "", err
	}
	return u.User.Sid.String(), nil
}

func (windowsMachine) secure(path, access string) error {
	err := makeDirectory(path, access)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := windows.SecurityDescriptorFromString(access)
	if err != nil {
		return err
	}
	owner, _, err := d.Owner()
	if err != nil {
		return err
	}
	list, _, err := d.DACL()
	if err != nil {
		return err
	}
	return windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION,
		owner, nil, list, nil)
}

// makeDirectory creates a directory with this access list, so that it never has another. Missing parents are created
// with the default list.
func makeDirectory(path, access string) error {
	d, err := windows.SecurityDescriptorFromString(access)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	attributes := &windows.SecurityAttributes{SecurityDescriptor: d}
	attributes.Length = uint32(unsafe.Sizeof(*attributes))
	if err := windows.CreateDirectory(name, attributes); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

func (windowsMachine) executable() (path, home string, err error) {
	path, err = os.Executable()
	return path, os.Getenv("USERPROFILE"), err
}

// MakeState creates the state directory if it is missing, with access for administrators, the service and the current
// user only. Windows ignores modes, and below %ProgramData% every user could read the directory.
func MakeState(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	u, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return err
	}
	return makeDirectory(path, directoryAccess(u.User.Sid.String()))
}
