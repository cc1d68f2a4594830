package pg

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestWhichErrorsAtCommitAreKnownRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		known bool
	}{
		"answered_rollback":             {fmt.Errorf("commit: %w", pgx.ErrTxCommitRollback), true},
		"an_error_of_the_statement":     {&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"}, true},
		"serialization_failure":         {&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40001"}, true},
		"completion_unknown":            {&pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "40003"}, false},
		"a_shutdown_after_it":           {&pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, false},
		"a_crash_after_it":              {&pgconn.PgError{SeverityUnlocalized: "PANIC", Code: "53100"}, false},
		"a_severity_from_an_old_server": {&pgconn.PgError{Code: "40001"}, false},
		"a_cut_connection":              {io.ErrUnexpectedEOF, false},
		"no_answer_in_time":             {context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := refusedCommit(test.err); got != test.known {
				t.Errorf("known refusal: %v, want %v", got, test.known)
			}
		})
	}
}

func TestAnUnknownCommitIsNeverAConflict(t *testing.T) {
	if isConflict(&UnknownCommitError{cause: &pgconn.PgError{Code: "40001"}}) {
		t.Error("an unknown outcome would be redone")
	}
}
