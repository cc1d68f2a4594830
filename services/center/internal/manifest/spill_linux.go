package manifest

import (
	"errors"
	"os"
	"syscall"
)

// tmpfs keeps its files in memory, which is what a file is to spare.
const tmpfs = 0x01021994

// reserve takes room for a file on disk.
func reserve(file *os.File, size int64) error {
	var at syscall.Statfs_t
	fd := int(file.Fd())
	if err := syscall.Fstatfs(fd, &at); err != nil {
		return err
	}
	if at.Type == tmpfs {
		return errors.New("the folder is in memory")
	}
	return syscall.Fallocate(fd, 0, 0, size)
}
