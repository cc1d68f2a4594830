package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.dev/pkg/pg"
	"lockstep.dev/services/lockstep/internal/world"
)

// CopyAnswers gives the center every row that the projection has, byte for
// byte, in the projection's heap order.
func CopyAnswers(ctx context.Context, consumer, center Pool) error {
	err := pipe(ctx, consumer, center,
		`COPY (SELECT tenant_id, answer_id, form_id, form_version::int, seq_no, revision, deleted, "values" FROM hall.answer_projection) TO STDOUT (FORMAT binary)`,
		`COPY answers.answer (tenant_id, answer_id, form_id, version, seq_no, revision, deleted, "values") FROM STDIN (FORMAT binary)`)
	if err != nil {
		return fmt.Errorf("load the answers: %w", err)
	}
	return center.Analyze(ctx, AnswerTable())
}

// pipe copies rows from one database into another without keeping them.
func pipe(ctx context.Context, from, to Pool, read, write string) error {
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	copying := func(pool Pool, copy func(*pgconn.PgConn) (pgconn.CommandTag, error)) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, loading); err != nil {
				return err
			}
			_, err := copy(tx.Conn().PgConn())
			return err
		})
	}
	go func() {
		err := copying(from, func(c *pgconn.PgConn) (pgconn.CommandTag, error) { return c.CopyTo(ctx, writer, read) })
		done <- errors.Join(err, writer.CloseWithError(err))
	}()
	err := copying(to, func(c *pgconn.PgConn) (pgconn.CommandTag, error) { return c.CopyFrom(ctx, reader, write) })
	return errors.Join(err, reader.CloseWithError(err), <-done)
}

// Classes is how many rows of each class the damage of a measurement makes: as
// equal as may be.
type Classes struct{ Missing, Stale, Conflict, Tombstone, Extra int }

// SplitDamage shares differences out.
func SplitDamage(differences int) Classes {
	share := func(i int) int { return (differences + 4 - i) / 5 }
	return Classes{Missing: share(0), Stale: share(1), Conflict: share(2), Tombstone: share(3), Extra: share(4)}
}

func (c Classes) onCenter() int { return c.Missing + c.Stale + c.Conflict + c.Tombstone }

// DamageEvenly damages rows of the uniform projection that lie evenly in the
// heap and at random in key order. Extra rows were created a month ago.
func (p Pool) DamageEvenly(ctx context.Context, rows int, c Classes, now time.Time) error {
	if c.onCenter() == 0 {
		return nil
	}
	step := rows / c.onCenter()
	err := pg.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		// Kinds take turns, in the order of the classes that share the remainder.
		_, err := tx.Exec(ctx, `CREATE TEMPORARY TABLE chosen ON COMMIT DROP AS
			SELECT answer_id, seq_no / $1 % 4 AS kind FROM hall.answer_projection WHERE seq_no % $1 = 0 AND seq_no / $1 < $2`, step, c.onCenter())
		if err != nil {
			return fmt.Errorf("choose rows: %w", err)
		}
		for _, change := range []struct {
			sql  string
			args []any
			rows int
		}{
			{`INSERT INTO hall.answer_projection (tenant_id, answer_id, form_id, form_version, seq_no, revision, content_hash, "values", created_at)
				SELECT tenant_id, md5(answer_id::text)::uuid, form_id, form_version, seq_no, revision, content_hash, "values", $2
				FROM hall.answer_projection JOIN chosen USING (answer_id) ORDER BY seq_no LIMIT $1`, []any{c.Extra, now.AddDate(0, -1, 0)}, c.Extra},
			{`DELETE FROM hall.answer_projection USING chosen c WHERE answer_projection.answer_id = c.answer_id AND c.kind = 0`, nil, c.Missing},
			{changeChosen(`revision = revision - 1, content_hash = sha256(content_hash), "values" = jsonb_set("values", '{form}', '"older"')`, 1), nil, c.Stale},
			{changeChosen(`content_hash = sha256(content_hash), "values" = jsonb_set("values", '{form}', '"other"')`, 2), nil, c.Conflict},
			{changeChosen(`deleted = true`, 3), nil, c.Tombstone},
		} {
			tag, err := tx.Exec(ctx, change.sql, change.args...)
			if err != nil {
				return err
			}
			if tag.RowsAffected() != int64(change.rows) {
				return fmt.Errorf("%d rows changed, not %d, by %s", tag.RowsAffected(), change.rows, change.sql)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("damage the projection: %w", err)
	}
	return p.Analyze(ctx, ProjectionTable())
}

// ScatterWrites changes a column of the host's own in every fiftieth row of the
// projection: what both sides compare stays, and the visibility map that an
// index-only scan needs is stale for a good part of the heap. It says how many
// rows that were.
func (p Pool) ScatterWrites(ctx context.Context) (int64, error) {
	tag, err := p.Exec(ctx, `UPDATE hall.answer_projection SET link_state = 'seen' WHERE seq_no % 50 = 0`)
	if err != nil {
		return 0, fmt.Errorf("scatter writes: %w", err)
	}
	return tag.RowsAffected(), nil
}

func changeChosen(set string, kind int) string {
	return fmt.Sprintf(`UPDATE hall.answer_projection SET %s FROM chosen c WHERE answer_projection.answer_id = c.answer_id AND c.kind = %d`, set, kind)
}

// TaskTimes are a task's, by the clock of the center's database.
type TaskTimes struct{ Created, Materialised, Ended time.Time }

// TaskTimes reads when a task was made, when its manifest was frozen (the event
// MATERIALISED), and when the report that ended it was accepted.
func (p Pool) TaskTimes(ctx context.Context, id string) (t TaskTimes, err error) {
	err = p.QueryRow(ctx, `SELECT created_at, (SELECT max(at) FROM lockstep.task_event e WHERE e.task_id = t.task_id AND event = 'MATERIALISED'), ended_at
		FROM lockstep.task t WHERE task_id = $1::uuid`, id).Scan(&t.Created, &t.Materialised, &t.Ended)
	if err != nil {
		return TaskTimes{}, fmt.Errorf("read the times of task %s: %w", id, err)
	}
	return t, nil
}

// Setup says what is measured on: PostgreSQL's version, the settings that count,
// and whether its shared memory lies in huge pages (on, off, unknown).
func (p Pool) Setup(ctx context.Context) (map[string]string, error) {
	rows, err := p.Query(ctx, `SELECT name, current_setting(name) FROM pg_settings WHERE name IN
		('server_version', 'shared_buffers', 'work_mem', 'fsync', 'full_page_writes', 'jit', 'max_parallel_workers_per_gather')`)
	if err != nil {
		return nil, fmt.Errorf("read the server's settings: %w", err)
	}
	settings := map[string]string{}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { settings[name] = value; return nil }); err != nil {
		return nil, fmt.Errorf("read the server's settings: %w", err)
	}
	// huge_pages is only what was asked for; where the system doesn't show the memory, nobody knows.
	err = p.QueryRow(ctx, `SELECT CASE WHEN maps LIKE '%/anon_hugepage%' THEN 'on' WHEN maps <> '' THEN 'off' ELSE 'unknown' END
		FROM pg_read_file('/proc/self/smaps', 0, 1048576, true) AS maps`).Scan(&name)
	if err != nil {
		return nil, fmt.Errorf("read how the server's memory is mapped: %w", err)
	}
	settings["huge_pages"] = name
	return settings, nil
}

// Warm brings the measured tables and their indexes into shared buffers, where
// the server has pg_prewarm: loading and VACUUM leave them outside.
func (p Pool) Warm(ctx context.Context) error {
	var available bool
	if err := p.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_prewarm')`).Scan(&available); err != nil {
		return fmt.Errorf("warm the database: %w", err)
	}
	if !available {
		return nil
	}
	if _, err := p.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_prewarm;
		SELECT pg_prewarm(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname IN ('answers', 'hall', 'peer', 'bills') AND c.relkind IN ('r', 'i')`); err != nil {
		return fmt.Errorf("warm the database: %w", err)
	}
	return nil
}

// FillUniform loads the rows that are measured, equal on both sides.
func FillUniform(ctx context.Context, center, consumer Pool, rows int, seed uint64, now time.Time) error {
	if err := consumer.FillProjection(ctx, world.Uniform(rows, seed), now); err != nil {
		return err
	}
	return CopyAnswers(ctx, consumer, center)
}
