package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/dataset"
)

// Server is what the server says about itself and this role.
type Server struct {
	Version   int // such as 150004
	Role      string
	Superuser bool
	Standby   bool
}

// Server asks the server about itself.
func (p Pool) Server(ctx context.Context) (s Server, err error) {
	err = p.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_user::text,
		(SELECT rolsuper FROM pg_roles WHERE rolname = current_user), pg_is_in_recovery()`).Scan(&s.Version, &s.Role, &s.Superuser, &s.Standby)
	if err != nil {
		return s, fmt.Errorf("ask the server about itself: %w", err)
	}
	return s, nil
}

// Resolve checks a mapping against the live table.
func (p Pool) Resolve(ctx context.Context, cfg dataset.Config, side dataset.Side) (*dataset.Table, error) {
	return dataset.Resolve(ctx, p.Pool, cfg, side)
}

// Privileges are what this role may do with a table.
type Privileges struct{ Select, Insert, Update, Delete bool }

// Privileges asks what this role may do with every column of a table.
func (p Pool) Privileges(ctx context.Context, t *dataset.Table) (v Privileges, err error) {
	err = p.QueryRow(ctx, `SELECT has_table_privilege($1, 'SELECT'), has_table_privilege($1, 'INSERT'),
		has_table_privilege($1, 'UPDATE'), has_table_privilege($1, 'DELETE')`, t.Ident).Scan(&v.Select, &v.Insert, &v.Update, &v.Delete)
	if err != nil {
		return v, fmt.Errorf("read the privileges on %s: %w", t.Table, err)
	}
	return v, nil
}

// MayUse says whether this role may select and, if writing, insert or update each of the columns.
func (p Pool) MayUse(ctx context.Context, t *dataset.Table, column, privilege string) (may bool, err error) {
	err = p.QueryRow(ctx, `SELECT has_column_privilege($1, $2, $3)`, t.Ident, column, privilege).Scan(&may)
	if err != nil {
		return false, fmt.Errorf("read the privileges on %s.%s: %w", t.Table, column, err)
	}
	return may, nil
}

// Index is one index of a table that can be used.
type Index struct {
	Name string
	// Keys are the indexed columns in order; "" where one is an expression.
	Keys     []string
	Included []string
	Unique   bool
	// Where is the condition of a partial index, "" for a whole one.
	Where string
	// ByBytes: no key column sorts by a collation other than "C".
	ByBytes bool
}

// Indexes lists the valid B-tree indexes of a table.
func (p Pool) Indexes(ctx context.Context, t *dataset.Table) ([]Index, error) {
	rows, err := p.Query(ctx, `SELECT c.relname::text AS name,
			ARRAY(SELECT coalesce(a.attname::text, '') FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
				LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
				WHERE k.n <= i.indnkeyatts ORDER BY k.n) AS keys,
			ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
				JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
				WHERE k.n > i.indnkeyatts ORDER BY k.n) AS included,
			i.indisunique AS "unique", coalesce(pg_get_expr(i.indpred, i.indrelid), '') AS "where",
			NOT EXISTS (SELECT FROM unnest(i.indcollation::oid[]) o (oid) JOIN pg_collation l ON l.oid = o.oid
				WHERE o.oid <> 0 AND l.collname <> 'C' AND NOT (l.collname = 'default' AND
					(SELECT datcollate IN ('C', 'POSIX') FROM pg_database WHERE datname = current_database()))) AS by_bytes
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
		WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND m.amname = 'btree' ORDER BY c.relname`, t.Ident)
	if err != nil {
		return nil, fmt.Errorf("read the indexes of %s: %w", t.Table, err)
	}
	indexes, err := pgx.CollectRows(rows, pgx.RowToStructByName[Index])
	if err != nil {
		return nil, fmt.Errorf("read the indexes of %s: %w", t.Table, err)
	}
	return indexes, nil
}

// Demanding lists the columns that an insert has to give a value.
func (p Pool) Demanding(ctx context.Context, t *dataset.Table) ([]string, error) {
	rows, err := p.Query(ctx, `SELECT attname::text FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
			AND attnotnull AND NOT atthasdef AND attidentity = '' ORDER BY attnum`, t.Ident)
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", t.Table, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", t.Table, err)
	}
	return names, nil
}

// Length is how many characters a text column holds at most, 0 for any number.
func (p Pool) Length(ctx context.Context, t *dataset.Table, column string) (n int, err error) {
	// The type modifier of varchar and bpchar counts its own header of four bytes.
	err = p.QueryRow(ctx, `SELECT greatest(atttypmod - 4, 0) FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped`, t.Ident, column).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("read the length of %s.%s: %w", t.Table, column, err)
	}
	return n, nil
}

// Visibility says how much of a table an index-only scan need not look up.
type Visibility struct {
	Pages, VisiblePages int64
	Analyzed            bool
}

// Visibility reads the catalogue's figures of a table and its partitions.
func (p Pool) Visibility(ctx context.Context, t *dataset.Table) (v Visibility, err error) {
	err = p.QueryRow(ctx, `SELECT coalesce(sum(greatest(c.relpages, 0)), 0)::bigint, coalesce(sum(c.relallvisible), 0)::bigint, coalesce(bool_and(c.reltuples >= 0), false)
		FROM pg_class c WHERE c.oid = to_regclass($1) OR c.oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1)) WHERE isleaf)`,
		t.Ident).Scan(&v.Pages, &v.VisiblePages, &v.Analyzed)
	if err != nil {
		return v, fmt.Errorf("read the figures of %s: %w", t.Table, err)
	}
	return v, nil
}

// Sampled is one row of a sample.
type Sampled struct {
	Key     string // the text of the host's key column
	Raw     []byte // as it came over the wire, for dataset.Table.DecodeKey
	Content []byte // JSON text; nil for SQL NULL
	Hash    []byte // the stored hash; nil at the center
	// Null names the first mapped column that must hold a value and holds none.
	Null string
}

// Sample reads rows of one collection in key order: the order of the keys, the
// content and the hashes are then for the caller to judge.
func (p Pool) Sample(ctx context.Context, t *dataset.Table, limit int) ([]Sampled, error) {
	hash, live := "NULL::bytea", "true"
	if t.ContentHash != "" {
		hash, live = "t."+t.ContentHash, "t."+t.Retired+" IS NULL"
	}
	null := "CASE"
	for _, name := range []string{t.Tenant, t.Collection, t.Revision, t.Deleted, t.SchemaVersion, t.Sequence} {
		null += " WHEN t." + name + " IS NULL THEN " + quoteLiteral(name)
	}
	null += " ELSE '' END"
	// Quoted identifiers of a resolved mapping; values are parameters.
	rows, err := p.Query(ctx, `SELECT t.`+t.Key+`, t.`+t.Key+`::text, (`+t.Content+`)::text, `+hash+`, `+null+`
		FROM `+t.Ident+` AS t
		WHERE (t.`+t.Tenant+`, t.`+t.Collection+`) = (SELECT t.`+t.Tenant+`, t.`+t.Collection+` FROM `+t.Ident+` AS t WHERE `+live+` LIMIT 1)
			AND `+live+` ORDER BY `+t.KeyOrder+` LIMIT $1`, limit)
	if err != nil {
		return nil, fmt.Errorf("read a sample of %s: %w", t.Table, err)
	}
	defer rows.Close()
	var out []Sampled
	for rows.Next() {
		var s Sampled
		var content *string
		s.Raw = append(s.Raw, rows.RawValues()[0]...)
		if err := rows.Scan(nil, &s.Key, &content, &s.Hash, &s.Null); err != nil {
			return nil, fmt.Errorf("read a sample of %s: %w", t.Table, err)
		}
		if content != nil {
			s.Content = []byte(*content)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read a sample of %s: %w", t.Table, err)
	}
	return out, nil
}

// quoteLiteral makes a text constant of an identifier that is quoted already.
func quoteLiteral(identifier string) string {
	out := "'"
	for _, c := range identifier {
		if c == '\'' {
			out += "'"
		}
		out += string(c)
	}
	return out + "'"
}
