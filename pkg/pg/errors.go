package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs this package acts on.
const (
	codeUniqueViolation      = "23505"
	codeSerializationFailure = "40001"
	codeDeadlockDetected     = "40P01"
	codeCompletionUnknown    = "40003"
)

// ErrUnknownCommit: the transaction may or may not have committed; read back by
// operation id, never blindly redo.
var ErrUnknownCommit = errors.New("commit outcome unknown")

// UnknownCommitError carries why the answer to COMMIT was lost.
type UnknownCommitError struct{ cause error }

func (e *UnknownCommitError) Error() string { return ErrUnknownCommit.Error() + ": " + e.cause.Error() }

// Is makes errors.Is(err, ErrUnknownCommit) hold.
func (e *UnknownCommitError) Is(target error) bool { return target == ErrUnknownCommit }

func (e *UnknownCommitError) Unwrap() error { return e.cause }

// Code returns the SQLSTATE the server gave, "" if it gave none.
func Code(err error) string {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code
	}
	return ""
}

// IsUniqueViolation reports whether a unique constraint refused the statement, and which.
func IsUniqueViolation(err error) (constraint string, ok bool) {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Code != codeUniqueViolation {
		return "", false
	}
	return refused.ConstraintName, true
}
