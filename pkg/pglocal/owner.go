package pglocal

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the user the server runs as. PostgreSQL refuses root.
type owner struct {
	credential *syscall.Credential // nil: this process's own user
}

func findOwner() (*owner, error) {
	if os.Geteuid() != 0 {
		return &owner{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &owner{credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
}

// ServerUID is the user that a cluster started by this process runs as, and who
// owns its files.
func ServerUID() (int, error) {
	o, err := findOwner()
	if err != nil {
		return 0, err
	}
	if o.credential == nil {
		return os.Geteuid(), nil
	}
	return int(o.credential.Uid), nil
}

func (o *owner) makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return o.take(dir)
}

func (o *owner) writeFile(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return o.take(path)
}

func (o *owner) take(path string) error {
	if o.credential == nil {
		return nil
	}
	return os.Chown(path, int(o.credential.Uid), int(o.credential.Gid))
}
