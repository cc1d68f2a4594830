//go:build !linux

package process

import "syscall"

// No other kernel ends a child with its parent; a killed demo leaves its
// services to be ended by hand there.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
