package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Migrate applies every migration in dir of files that the database does not
// have yet. table remembers the version; two sets in one database need two
// tables. Several processes may call it at once: an advisory lock lets one work.
func Migrate(ctx context.Context, dsn string, files fs.FS, dir, table string) error {
	return migrateWith(ctx, dsn, files, dir, table, (*migrate.Migrate).Up)
}

// MigrateDown takes every migration of the set back, newest first, with all data.
func MigrateDown(ctx context.Context, dsn string, files fs.FS, dir, table string) error {
	return migrateWith(ctx, dsn, files, dir, table, (*migrate.Migrate).Down)
}

func migrateWith(ctx context.Context, dsn string, files fs.FS, dir, table string, run func(*migrate.Migrate) error) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("parse database DSN: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	db := stdlib.OpenDB(*config)
	if err := db.PingContext(ctx); err != nil {
		return errors.Join(fmt.Errorf("migrate %s: %w", dir, err), db.Close())
	}
	m, err := migrator(db, files, dir, table)
	if err != nil {
		return errors.Join(fmt.Errorf("migrate %s: %w", dir, err), db.Close())
	}
	// It stops between two migrations; one that runs is never cut.
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	err = run(m)
	stop()
	if errors.Is(err, migrate.ErrNoChange) {
		err = nil
	}
	sourceErr, dbErr := m.Close()
	if err := errors.Join(err, sourceErr, dbErr, ctx.Err()); err != nil {
		return fmt.Errorf("migrate %s: %w", dir, err)
	}
	return nil
}

func migrator(db *sql.DB, files fs.FS, dir, table string) (*migrate.Migrate, error) {
	source, err := iofs.New(files, dir)
	if err != nil {
		return nil, err
	}
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{MigrationsTable: table, SchemaName: "public"})
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	m, err := migrate.NewWithInstance(dir, source, "pgx5", driver)
	if err != nil {
		return nil, errors.Join(err, source.Close(), driver.Close())
	}
	return m, nil
}
