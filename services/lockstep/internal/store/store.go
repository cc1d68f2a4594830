// Package store is the CLI's SQL: it fills and damages the example's tables,
// compares the two sides afterwards, and asks the catalogue what doctor needs
// to know. It is used on databases of the demo and, by doctor, only to read.
package store

import (
	"context"
	"embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/migrations"
	"lockstep.dev/pkg/pg"
)

// versions is the table that remembers how far a folder of migrations was
// applied; the services' own "migrate" uses the same.
func versions(dir string) string { return "migrations_" + dir }

// schemas are all that the migrations make, on either side.
var schemas = []string{"lockstep", "answers", "hall", "bills", "scores"}

// A whole table is loaded or compared in one statement.
const statementTimeout = 10 * time.Minute

// Pool is a connection to one side's database.
type Pool struct{ *pgxpool.Pool }

// Open connects and makes sure that the database answers.
func Open(ctx context.Context, dsn string) (Pool, error) {
	pool, err := pg.Open(ctx, pg.PoolConfig{
		DSN: dsn, MaxConns: 2, StatementTimeout: statementTimeout, IdleInTxTimeout: statementTimeout, AppName: "lockstep",
	})
	if err != nil {
		return Pool{}, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return Pool{}, fmt.Errorf("reach the database: %w", err)
	}
	return Pool{pool}, nil
}

// MigrateCenter gives a database the center's tables and the example's.
func MigrateCenter(ctx context.Context, dsn string) error {
	if err := migrate(ctx, dsn, migrations.Center, "center"); err != nil {
		return err
	}
	return MigrateAnswers(ctx, dsn)
}

// MigrateAnswers gives a database the example's system of record.
func MigrateAnswers(ctx context.Context, dsn string) error {
	return migrate(ctx, dsn, migrations.AnswersCenter, "answers_center")
}

// MigrateConsumer gives a database the consumer's tables, the example's, and
// those of the bills and scores that the consumer refreshes.
func MigrateConsumer(ctx context.Context, dsn string) error {
	if err := migrate(ctx, dsn, migrations.Consumer, "consumer"); err != nil {
		return err
	}
	if err := MigrateProjection(ctx, dsn); err != nil {
		return err
	}
	if err := migrate(ctx, dsn, migrations.Bills, "bills"); err != nil {
		return err
	}
	return migrate(ctx, dsn, migrations.Scores, "scores")
}

// MigrateProjection gives a database the example's projection.
func MigrateProjection(ctx context.Context, dsn string) error {
	return migrate(ctx, dsn, migrations.AnswersConsumer, "answers_consumer")
}

func migrate(ctx context.Context, dsn string, files embed.FS, dir string) error {
	return pg.Migrate(ctx, dsn, files, dir, versions(dir))
}

// Used says what a database given by the user holds already that the demo
// would mix with its own: "" if nothing.
func (p Pool) Used(ctx context.Context) (string, error) {
	var found *string
	err := p.QueryRow(ctx, `SELECT string_agg(nspname, ', ' ORDER BY nspname) FROM pg_namespace
		WHERE nspname = ANY ($1)`, schemas).Scan(&found)
	if err != nil {
		return "", fmt.Errorf("look at the database: %w", err)
	}
	if found == nil {
		return "", nil
	}
	return *found, nil
}

// HasRows says whether a table holds any.
func (p Pool) HasRows(ctx context.Context, table pgx.Identifier) (some bool, err error) {
	if err := p.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table.Sanitize()+")").Scan(&some); err != nil {
		return false, fmt.Errorf("look into %s: %w", table.Sanitize(), err)
	}
	return some, nil
}

// Drop takes away everything that the demo made in a database given by the user.
func (p Pool) Drop(ctx context.Context) error {
	drop := ""
	for _, schema := range schemas {
		drop += "DROP SCHEMA IF EXISTS " + pgx.Identifier{schema}.Sanitize() + " CASCADE;"
	}
	for _, dir := range []string{"center", "answers_center", "consumer", "answers_consumer", "bills", "scores"} {
		drop += "DROP TABLE IF EXISTS " + pgx.Identifier{"public", versions(dir)}.Sanitize() + ";"
	}
	if _, err := p.Exec(ctx, drop); err != nil {
		return fmt.Errorf("take the example's tables away: %w", err)
	}
	return nil
}

// Analyze gives the planner figures and the visibility map of what was just loaded.
func (p Pool) Analyze(ctx context.Context, table pgx.Identifier) error {
	if _, err := p.Exec(ctx, "VACUUM (ANALYZE) "+table.Sanitize()); err != nil {
		return fmt.Errorf("analyze %s: %w", table.Sanitize(), err)
	}
	return nil
}
