//go:build !linux

package manifest

import (
	"errors"
	"os"
)

// reserve is not known for other systems, which read range by range.
func reserve(*os.File, bool, int64) error { return errors.ErrUnsupported }
