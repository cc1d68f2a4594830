// Package e2e tests Lockstep as it is run: real binaries, real databases, real
// sockets, real kills. It holds nothing but tests and what they stand on.
package e2e
