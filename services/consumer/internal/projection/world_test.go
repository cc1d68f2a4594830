package projection

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
)

// variant is a host's table and its mapping.
type variant struct {
	name string
	// ddl makes the table where the example's own is not used.
	ddl string
	// at is the scope under test, other a second collection of the same tenant.
	at, other Scope
	mapping   dataset.Config
	// insert takes tenant, collection, key in hex, revision, hash, deleted and content.
	insert string
	// extensions are the host's own columns, as one text of t.
	extensions string
}

var bundled = variant{
	name:  "bundled",
	at:    Scope{TenantID: 1, CollectionID: "form-1"},
	other: Scope{TenantID: 1, CollectionID: "form-2"},
	mapping: dataset.Config{
		Name: "answers", Table: "hall.answer_projection", KeyKind: protocol.KeyKindUUID,
		Columns: dataset.Columns{
			Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
			SchemaVersion: "form_version", Sequence: "seq_no", Content: "values", ContentHash: "content_hash",
			ProjectionVersion: "projection_version", CreateTime: "created_at", Retired: "retired_at",
			RetireHold: "retire_hold", LastEventID: "last_event_id", ConflictDetail: "conflict_detail", ProofID: "proof_id",
		},
	},
	insert: `INSERT INTO hall.answer_projection (tenant_id, form_id, answer_id, revision, content_hash, deleted, "values", seq_no,
			created_at, biz_ext, apply_id, flow_id, link_state)
		VALUES ($1, $2, $3::text::uuid, $4, $5, $6, $7::text::jsonb, 7, '2026-01-01Z', '{"a": 1.50, "b": [null]}', 'apply ä', NULL, '')`,
	extensions: `jsonb_build_array(t.biz_ext, t.apply_id, t.flow_id, t.link_state)::text`,
}

// A key of type text, a collection that is a number, narrow numbers, a create
// time without a zone, and no evidence columns.
var textKey = variant{
	name: "text key",
	ddl: `CREATE TABLE hall.plain (tenant integer NOT NULL, grp integer NOT NULL, id text NOT NULL, rev integer, hash bytea,
			gone boolean, schema_no smallint NOT NULL, seq integer NOT NULL, body jsonb, version integer, made timestamp,
			retired timestamptz, note text DEFAULT 'host''s own', UNIQUE (tenant, id))`,
	at:    Scope{TenantID: 1, CollectionID: "42"},
	other: Scope{TenantID: 1, CollectionID: "43"},
	mapping: dataset.Config{
		Name: "plain", Table: "hall.plain", KeyKind: protocol.KeyKindUUID,
		Columns: dataset.Columns{
			Key: "id", Tenant: "tenant", Collection: "grp", Revision: "rev", Deleted: "gone", SchemaVersion: "schema_no",
			Sequence: "seq", Content: "body", ContentHash: "hash", ProjectionVersion: "version", CreateTime: "made", Retired: "retired",
		},
	},
	insert: `INSERT INTO hall.plain (tenant, grp, id, rev, hash, gone, body, schema_no, seq, version, made)
		VALUES ($1::int8, $2::text::int, $3::text, $4::int8, $5, $6, $7::text::jsonb, 1, 7, 1, '2026-01-01')`,
	extensions: `t.note`,
}

// Content in columns of its own, a collection that is a uuid, and names that need quoting.
var columns = variant{
	name: "content columns",
	ddl: `CREATE TABLE hall."Wide Rows" (tenant bigint NOT NULL, "group" uuid NOT NULL, id uuid NOT NULL, revision bigint NOT NULL,
			hash bytea, deleted boolean NOT NULL, schema_no bigint NOT NULL, seq bigint NOT NULL, "the ""title""" text, score numeric,
			version bigint NOT NULL DEFAULT 1, made timestamptz, retired timestamptz, hold boolean, note text DEFAULT 'mine',
			PRIMARY KEY (tenant, id))`,
	at:    Scope{TenantID: 1, CollectionID: "000000000000000000000000000000aa"},
	other: Scope{TenantID: 1, CollectionID: "000000000000000000000000000000bb"},
	mapping: dataset.Config{
		Name: "wide", Table: "hall.Wide Rows", KeyKind: protocol.KeyKindUUID,
		Columns: dataset.Columns{
			Key: "id", Tenant: "tenant", Collection: "group", Revision: "revision", Deleted: "deleted", SchemaVersion: "schema_no",
			Sequence: "seq", ContentColumns: []string{`the "title"`, "score"}, ContentHash: "hash", ProjectionVersion: "version",
			CreateTime: "made", Retired: "retired", RetireHold: "hold",
		},
	},
	insert: `INSERT INTO hall."Wide Rows" (tenant, "group", id, revision, hash, deleted, "the ""title""", score, schema_no, seq, made)
		SELECT $1, $2::text::uuid, $3::text::uuid, $4, $5, $6, c->>'the "title"', (c->>'score')::numeric, 1, 7, '2026-01-01Z'
		FROM (SELECT $7::text::jsonb) AS v(c)`,
	extensions: `t.note`,
}

var variants = []variant{bundled, textKey, columns}

// eachVariant runs a test against every kind of table.
func eachVariant(t *testing.T, test func(t *testing.T, w *world)) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { test(t, setup(t, v)) })
	}
}

// world is a host's database with the mapped table in it.
type world struct {
	*Projection
	variant
	pool *pgxpool.Pool
	// host is a connection of the host application.
	host *pgx.Conn
}

func setup(t testing.TB, v variant) *world {
	t.Helper()
	dsn := pgtest.Consumer(t)
	pool, err := pg.Open(t.Context(), pg.PoolConfig{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &world{variant: v, pool: pool, host: connect(t, dsn)}
	if v.ddl != "" {
		w.exec(t, v.ddl)
	}
	table, err := dataset.Resolve(t.Context(), pool, v.mapping, dataset.Consumer)
	if err != nil {
		t.Fatal(err)
	}
	w.Projection = New(pool, pool, table)
	return w
}

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (w *world) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := w.host.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// set changes a column of one row, as the host would.
func (w *world) set(t testing.TB, key, assignment string) {
	t.Helper()
	w.exec(t, "UPDATE "+w.table.Ident+" AS t SET "+assignment+" WHERE t."+w.table.Key+" = $1", w.table.KeyArg(key))
}

// key is a raw key; the order of n is the order of the keys.
func key(n uint64) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[8:], n)
	return string(raw[:])
}

// body is content that every variant can hold.
func body(title string) string { return `{"score": 1.50, "the \"title\"": "` + title + `"}` }

func hashOf(t testing.TB, content string) canon.Hash {
	t.Helper()
	hash, err := canon.Sum([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// put puts a row into the host's table, with the hash of its content.
func (w *world) put(t testing.TB, at Scope, n uint64, revision int64, title string) evidence.Row {
	t.Helper()
	row := evidence.Row{Key: key(n), Revision: revision, Hash: hashOf(t, body(title))}
	w.putRow(t, at, row, body(title))
	return row
}

func (w *world) putRow(t testing.TB, at Scope, row evidence.Row, content string) {
	t.Helper()
	w.exec(t, w.insert, at.TenantID, at.CollectionID, protocol.FormatKey(row.Key), row.Revision, row.Hash[:], row.Deleted, content)
}

func snapshot(t testing.TB, n uint64, revision int64, content string) *protocol.Snapshot {
	t.Helper()
	return &protocol.Snapshot{
		Key: protocol.FormatKey(key(n)), Revision: revision, Hash: hashOf(t, content),
		SchemaVersion: 3, Sequence: 9, Content: []byte(content), EventID: "event-1",
	}
}

// repair runs Repair in a transaction of its own.
func (w *world) repair(t testing.TB, items ...Item) []string {
	t.Helper()
	written, err := w.tryRepair(t.Context(), items...)
	if err != nil {
		t.Fatalf("repair: %v", err)
	}
	return written
}

func (w *world) tryRepair(ctx context.Context, items ...Item) (written []string, err error) {
	err = pg.InTx(ctx, w.pool, func(tx pgx.Tx) (err error) {
		written, err = w.Repair(ctx, tx, w.at, items)
		return err
	})
	slices.Sort(written)
	return written, err
}

// row reads one row as it is stored.
func (w *world) row(t testing.TB, n uint64) (LocalRow, bool) {
	t.Helper()
	rows, err := w.Rows(t.Context(), w.at.TenantID, []string{key(n)}, true)
	if err != nil {
		t.Fatal(err)
	}
	row, ok := rows[key(n)]
	return row, ok
}

// image reads the whole image.
func (w *world) image(t testing.TB) []evidence.Row {
	t.Helper()
	rows, err := w.Image(t.Context(), Chunk{Scope: w.at, Limit: 1000}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// dump is the whole table as text, a row by its key.
func (w *world) dump(t testing.TB, expr string) map[string]string {
	t.Helper()
	rows, err := w.host.Query(t.Context(), "SELECT t."+w.table.Tenant+"::text || t."+w.table.Key+"::text, "+expr+" FROM "+w.table.Ident+" AS t")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var k string
	var text *string
	if _, err := pgx.ForEachRow(rows, []any{&k, &text}, func() error {
		out[k] = "NULL"
		if text != nil {
			out[k] = *text
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// unchanged fails the test if deed changes any row of the table.
func (w *world) unchanged(t testing.TB, deed func()) {
	t.Helper()
	before := w.dump(t, "t::text")
	deed()
	if after := w.dump(t, "t::text"); !maps.Equal(before, after) {
		t.Errorf("the table changed:\n%v\n%v", before, after)
	}
}

// keepsExtensions fails the test if deed changes a byte of the host's own columns.
func (w *world) keepsExtensions(t testing.TB, deed func()) {
	t.Helper()
	before := w.dump(t, w.extensions)
	deed()
	after := w.dump(t, w.extensions)
	for k, text := range before {
		if after[k] != text {
			t.Errorf("row %s: extension columns were %s, are %s", k, text, after[k])
		}
	}
}

func keys(ns ...uint64) []string {
	out := make([]string, len(ns))
	for i, n := range ns {
		out[i] = key(n)
	}
	return out
}

var january = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// session gives every session of the projection a setting.
func (w *world) session(t testing.TB, name, value string) {
	t.Helper()
	config := w.pool.Config()
	config.ConnConfig.RuntimeParams[name] = value
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w.pool, w.Projection = pool, New(pool, pool, w.table)
}

// longText is content whose one value compresses to more than an index entry holds.
func longText() string {
	var b strings.Builder
	for i := range 600 {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		b.WriteString(hex.EncodeToString(sum[:]))
	}
	return `{"b": "` + b.String() + `"}`
}
