//go:build tools

// Package tools pins what `make generate` needs and no tool directive can say: the Go module that carries
// google/api/annotations.proto. It is never compiled.
package tools

import _ "github.com/gogo/googleapis/google/api"
