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
	d, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return place{}, denied("owner of "+path, err)
	}
	owner, _, err := d.Owner()
	if err != nil {
		return place{}, fmt.Errorf("owner of %s: %w", path, err)
	}
	found.Owner = owner.String()
	found.OwnerName = found.Owner
	if account, domain, _, err := owner.LookupAccount(""); err == nil {
		found.OwnerName = domain + `\` + account
	}
	return found, nil
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
