// Package version says which build this is. It holds one value and decides nothing.
package version

// Version is set by the linker: a tag, a commit, or both, with -dirty where the tree had changes. "dev" otherwise.
var Version = "dev"
