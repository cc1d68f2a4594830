package manifest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tmpfs keeps its files in memory, which is what a file is to spare.
const tmpfs = 0x01021994

// reserve takes room for a file, on disk or anywhere.
func reserve(file *os.File, inMemory bool, size int64) error {
	var at syscall.Statfs_t
	fd := int(file.Fd())
	if err := syscall.Fstatfs(fd, &at); err != nil {
		return err
	}
	if at.Type == tmpfs && !inMemory {
		return errors.New("the folder is in memory")
	}
	// Others write to that disk too; a database that finds it full stops.
	if free := int64(at.Bavail) * at.Bsize; size > free/2 { //nolint:gosec // a disk has fewer bytes than 2^63
		return fmt.Errorf("%d bytes are more than half of the %d that are free", size, free)
	}
	for {
		err := syscall.Fallocate(fd, 0, 0, size)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EOPNOTSUPP):
			return nil // some file systems can't; there was twice the room a moment ago
		default:
			return err
		}
	}
}
