// Package refresh turns requests into tasks, tasks into generations of scopes,
// and runs them under claims.
package refresh
