package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a peer compares: the records of both sides as plain tables with stored
// hashes, peer.record. The copy saves peers the conditions on tenant and
// collection, and the center's side the hashing. The hash is text: pg_comparator
// writes no bytea, and postgres_fdw sends it as text in any case.
const peerTable = `CREATE SCHEMA peer;
	CREATE TABLE peer.record (key uuid PRIMARY KEY, revision bigint NOT NULL, content_hash text NOT NULL, deleted boolean NOT NULL, content jsonb)`

const peerRows = `SELECT answer_id, revision, encode(content_hash, 'hex'), deleted, "values" FROM hall.answer_projection WHERE retired_at IS NULL`

// FillPeers makes and fills the peers' tables on both sides, from a projection
// that equals the center, and joins the consumer's database to the center's.
func FillPeers(ctx context.Context, center, consumer Pool) error {
	for _, side := range []Pool{center, consumer} {
		if _, err := side.Exec(ctx, peerTable); err != nil {
			return fmt.Errorf("make the peers' table: %w", err)
		}
	}
	if err := consumer.RefillPeer(ctx); err != nil {
		return err
	}
	err := pipe(ctx, consumer, center, `COPY peer.record TO STDOUT (FORMAT binary)`, `COPY peer.record FROM STDIN (FORMAT binary)`)
	if err != nil {
		return fmt.Errorf("fill the peers' table: %w", err)
	}
	if err := center.Analyze(ctx, pgx.Identifier{"peer", "record"}); err != nil {
		return err
	}
	return consumer.join(ctx, center)
}

// RefillPeer makes the consumer's side what the projection is now.
func (p Pool) RefillPeer(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on; TRUNCATE peer.record; INSERT INTO peer.record `+peerRows)
		return err
	})
	if err != nil {
		return fmt.Errorf("fill the peers' table: %w", err)
	}
	return p.Analyze(ctx, pgx.Identifier{"peer", "record"})
}

// join lets SQL of the consumer's database read the center's peer table.
func (p Pool) join(ctx context.Context, center Pool) error {
	at := center.Config().ConnConfig
	text := func(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` }
	// The more rows a round trip brings, the better for the peer; 100 is the default.
	_, err := p.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS postgres_fdw;
		CREATE SERVER center FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host `+text(at.Host)+`, port `+text(strconv.Itoa(int(at.Port)))+
		`, dbname `+text(at.Database)+`, fetch_size '10000');
		CREATE USER MAPPING FOR CURRENT_USER SERVER center OPTIONS (user `+text(at.User)+`, password `+text(at.Password)+`);
		CREATE SCHEMA remote;
		IMPORT FOREIGN SCHEMA peer FROM SERVER center INTO remote;
		ANALYZE remote.record`)
	if err != nil {
		return fmt.Errorf("join the databases by postgres_fdw: %w", err)
	}
	return nil
}

// JoinDifferences counts the differences by a full join over postgres_fdw, of
// the contents too if asked to.
func (p Pool) JoinDifferences(ctx context.Context, content bool, now func() time.Time) (differences int, took time.Duration, err error) {
	left, right := "l.revision, l.content_hash, l.deleted", "r.revision, r.content_hash, r.deleted"
	if content {
		left, right = left+", l.content", right+", r.content"
	}
	begin := now()
	err = p.QueryRow(ctx, `SELECT count(*) FROM peer.record l FULL JOIN remote.record r ON l.key = r.key
		WHERE l.key IS NULL OR r.key IS NULL OR (`+left+`) IS DISTINCT FROM (`+right+`)`).Scan(&differences)
	if err != nil {
		return 0, 0, fmt.Errorf("compare by a full join: %w", err)
	}
	return differences, now().Sub(begin), nil
}

// JoinRepair makes the consumer's side equal by joins over postgres_fdw, in one transaction.
func (p Pool) JoinRepair(ctx context.Context, now func() time.Time) (changed int, took time.Duration, err error) {
	begin := now()
	err = pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`UPDATE peer.record l SET revision = r.revision, content_hash = r.content_hash, deleted = r.deleted, content = r.content
				FROM remote.record r WHERE l.key = r.key
					AND (l.revision, l.content_hash, l.deleted) IS DISTINCT FROM (r.revision, r.content_hash, r.deleted)`,
			`INSERT INTO peer.record SELECT r.* FROM remote.record r LEFT JOIN peer.record l ON l.key = r.key WHERE l.key IS NULL`,
			// OFFSET keeps a join that is deleted by from fetching whole rows.
			`DELETE FROM peer.record WHERE key IN (
				SELECT l.key FROM peer.record l LEFT JOIN (SELECT key FROM remote.record OFFSET 0) r ON r.key = l.key WHERE r.key IS NULL)`,
		} {
			tag, err := tx.Exec(ctx, sql)
			if err != nil {
				return err
			}
			changed += int(tag.RowsAffected())
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("repair by joins: %w", err)
	}
	return changed, now().Sub(begin), nil
}

// PrepareComparator loads what pg_comparator needs in both databases.
func PrepareComparator(ctx context.Context, center, consumer Pool) error {
	for _, side := range []Pool{center, consumer} {
		if _, err := side.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pgcmp`); err != nil {
			return fmt.Errorf("load pg_comparator's functions: %w", err)
		}
	}
	return nil
}

// ComparatorURL names the peers' table in pg_comparator's way, without the
// password, which it returns apart.
func (p Pool) ComparatorURL(columns string) (url, password string) {
	at := p.Config().ConnConfig
	return fmt.Sprintf("pgsql://%s@%s:%d/%s/peer.record?key:%s", at.User, at.Host, at.Port, at.Database, columns), at.Password
}

// KeepPeer keeps a copy of the consumer's side, RestorePeer brings it back.
func (p Pool) KeepPeer(ctx context.Context) error {
	if _, err := p.Exec(ctx, `CREATE TABLE peer.kept AS SELECT * FROM peer.record`); err != nil {
		return fmt.Errorf("keep the peers' table: %w", err)
	}
	return nil
}

// RestorePeer undoes a peer's repair.
func (p Pool) RestorePeer(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL synchronous_commit = on; TRUNCATE peer.record; INSERT INTO peer.record SELECT * FROM peer.kept`)
		return err
	})
	if err != nil {
		return fmt.Errorf("restore the peers' table: %w", err)
	}
	return p.Analyze(ctx, pgx.Identifier{"peer", "record"})
}
