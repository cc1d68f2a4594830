//go:build !failpoints

package failpoint

// Enabled says whether this binary has fail points.
const Enabled = false

// Hit does nothing in this build.
func Hit(Name) {}
