package source_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/center/internal/source"
)

// TestAStandbyIsNotRead: a function of the same name, found first, makes the
// primary look like a standby.
func TestAStandbyIsNotRead(t *testing.T) {
	w := setup(t)
	w.item(key("1"), 1)
	w.exec(`CREATE SCHEMA fake; CREATE FUNCTION fake.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	config, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = "fake, pg_catalog"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	src := w.source(pool)
	if _, err := src.Begin(t.Context(), w.rng); fault.ReasonOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if _, err := src.Current(t.Context(), w.rng, []string{"0123456789abcdef"}, 1); fault.ReasonOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if _, err := src.System(t.Context()); fault.ReasonOf(err) != fault.Unavailable {
		t.Error(err)
	}
}

func TestSystem(t *testing.T) {
	w := setup(t)
	full, err := w.src.System(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("is the same every time and another in another database", func(t *testing.T) {
		if again, err := w.src.System(t.Context()); err != nil || again != full {
			t.Error(again, err)
		}
		other := setup(t)
		if elsewhere, err := other.src.System(t.Context()); err != nil || elsewhere == full {
			t.Error(elsewhere, err)
		}
	})
	// As an ordinary role that may only read.
	as := func(t *testing.T, prepare string) (string, string) {
		t.Helper()
		conn, err := w.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_, err := conn.Exec(context.WithoutCancel(t.Context()), `RESET ROLE; DROP ROLE lockstep_source_test`)
			if err != nil {
				t.Error(err)
			}
			conn.Release()
		}()
		if _, err := conn.Exec(t.Context(), `CREATE ROLE lockstep_source_test; `+prepare+`; SET ROLE lockstep_source_test`); err != nil {
			t.Fatal(err)
		}
		return identify(t, conn.Conn())
	}
	t.Run("is readable by an ordinary role", func(t *testing.T) {
		if sql, identity := as(t, `SELECT 1`); sql != source.FullSystemSQL || identity != full {
			t.Errorf("%s by %s", identity, sql)
		}
	})
	t.Run("is less where the control file may not be read", func(t *testing.T) {
		if sql, identity := as(t, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`); sql == source.FullSystemSQL || identity == full || identity == "" {
			t.Errorf("%s by %s", identity, sql)
		}
	})
}

func identify(t *testing.T, conn *pgx.Conn) (sql, identity string) {
	t.Helper()
	sql, err := source.SystemSQL(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	if identity, err = source.System(t.Context(), conn, sql); err != nil {
		t.Fatal(err)
	}
	return sql, identity
}
