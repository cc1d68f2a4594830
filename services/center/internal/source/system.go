package source

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/pg"
)

// The identity of a database: the cluster's identifier, its timeline as the
// write-ahead log says it, and the database in the cluster. A restored or
// promoted copy differs in one of them. A standby has no timeline to write to
// and answers with none.
const (
	// FullSystemSQL gives (is a standby, identity).
	FullSystemSQL = `SELECT pg_is_in_recovery(), concat_ws('/', (SELECT system_identifier FROM pg_control_system()), ` + timelineAndDatabase + `)`
	// partSystemSQL is for roles that may not read the control file.
	partSystemSQL = `SELECT pg_is_in_recovery(), concat_ws('/', '-', ` + timelineAndDatabase + `)`

	timelineAndDatabase = `CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
		(SELECT oid FROM pg_database WHERE datname = current_database())`

	codeInsufficientPrivilege = "42501"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// SystemSQL is the statement by which this role can read the identity of the
// database behind db: FullSystemSQL, or less where privileges are missing.
func SystemSQL(ctx context.Context, db Querier) (string, error) {
	for _, sql := range []string{FullSystemSQL, partSystemSQL} {
		var standby bool
		var identity string
		err := db.QueryRow(ctx, sql).Scan(&standby, &identity)
		if err == nil {
			return sql, nil
		}
		if pg.Code(err) != codeInsufficientPrivilege {
			return "", err
		}
	}
	return "", fmt.Errorf("the role may not read which database it speaks to")
}

// System is the identity of the source; the error says UNAVAILABLE for a standby.
func (s *Source) System(ctx context.Context) (string, error) {
	return System(ctx, s.pool, s.sql.system)
}

// System is the identity of the primary behind db, read by sql of SystemSQL.
func System(ctx context.Context, db Querier, sql string) (string, error) {
	var standby bool
	var identity string
	if err := db.QueryRow(ctx, sql).Scan(&standby, &identity); err != nil {
		return "", fmt.Errorf("read the identity of a database: %w", err)
	}
	if standby {
		return "", errStandby()
	}
	return identity, nil
}
