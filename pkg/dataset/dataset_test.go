package dataset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/pkg/protocol"
)

func centerMapping() dataset.Config {
	return dataset.Config{Name: "answers", Table: "answers.answer", KeyKind: "uuid", Columns: dataset.Columns{
		Key: "answer_id", Tenant: "tenant_id", Collection: "form_id", Revision: "revision", Deleted: "deleted",
		SchemaVersion: "version", Sequence: "seq_no", Content: "values",
	}}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func TestValidate(t *testing.T) {
	cases := []struct {
		name   string
		change func(*dataset.Config)
		side   dataset.Side
		wants  []string
	}{
		{"a full mapping is fine", func(*dataset.Config) {}, dataset.Center, nil},
		{
			"every mistake is named at once",
			func(c *dataset.Config) {
				c.Table, c.KeyKind, c.Columns.Revision, c.Columns.Deleted = "answers", "int", "", "answer_id"
			},
			dataset.Center,
			[]string{`"answers" is not schema.table`, `"int" is not supported`, "columns.revision: name a column", `"answer_id" is mapped to key already`},
		},
		{"content in two ways", func(c *dataset.Config) { c.Columns.ContentColumns = []string{"title"} }, dataset.Center, []string{"not both"}},
		{"content in no way", func(c *dataset.Config) { c.Columns.Content = "" }, dataset.Center, []string{"columns.content: name a column"}},
		{
			"a consumer needs its own columns", func(*dataset.Config) {}, dataset.Consumer,
			[]string{"content_hash", "projection_version", "create_time", "retired"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := centerMapping()
			c.change(&cfg)
			err := cfg.Validate(c.side)
			if (err == nil) != (len(c.wants) == 0) {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestResolve(t *testing.T) {
	conn := connect(t, pgtest.Center(t))

	t.Run("quotes what it was given", func(t *testing.T) {
		table, err := dataset.Resolve(t.Context(), conn, centerMapping(), dataset.Center)
		if err != nil {
			t.Fatal(err)
		}
		for got, want := range map[string]string{
			table.Ident: `"answers"."answer"`, table.Key: `"answer_id"`, table.KeyOrder: `t."answer_id"`,
			table.Content: `t."values"`, table.KeyType(): "uuid", table.CollectionType(): "text",
		} {
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})

	refusals := map[string]struct {
		change func(*dataset.Config)
		want   string
	}{
		"a table that is not there":  {func(c *dataset.Config) { c.Table = "answers.nothing" }, "there is no table answers.nothing"},
		"a column that is not there": {func(c *dataset.Config) { c.Columns.Sequence = "number" }, `answers.answer has no column "number"`},
		"a column of another type":   {func(c *dataset.Config) { c.Columns.Deleted = "updated_at" }, `column "updated_at" is timestamptz; it must be one of bool`},
		"a name that is an attack":   {func(c *dataset.Config) { c.Columns.Key = `x"; DROP TABLE answers.answer; --` }, "has no column"},
	}
	for name, r := range refusals {
		t.Run(name+" is refused", func(t *testing.T) {
			cfg := centerMapping()
			r.change(&cfg)
			_, err := dataset.Resolve(t.Context(), conn, cfg, dataset.Center)
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Fatalf("got %v, want it to say %q", err, r.want)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	conn := connect(t, pgtest.Empty(t))
	_, err := conn.Exec(t.Context(), `CREATE SCHEMA host; CREATE TABLE host.doc (id text PRIMARY KEY, tenant int, coll uuid, rev int, del bool,
		ver int, seq int, title text, "odd ""name" numeric)`)
	if err != nil {
		t.Fatal(err)
	}
	table, err := dataset.Resolve(t.Context(), conn, dataset.Config{Name: "docs", Table: "host.doc", KeyKind: "uuid", Columns: dataset.Columns{
		Key: "id", Tenant: "tenant", Collection: "coll", Revision: "rev", Deleted: "del", SchemaVersion: "ver", Sequence: "seq",
		ContentColumns: []string{"title", `odd "name`},
	}}, dataset.Center)
	if err != nil {
		t.Fatal(err)
	}
	const spelled = "00ff00ff00ff00ff00ff00ff00ff00ff"
	raw, err := protocol.ParseKey(spelled)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("a text column sorts by bytes", func(t *testing.T) {
		if table.KeyOrder != `t."id" COLLATE "C"` {
			t.Fatal(table.KeyOrder)
		}
	})
	t.Run("a text column holds the one spelling", func(t *testing.T) {
		if got, err := table.DecodeKey([]byte(spelled)); err != nil || got != raw {
			t.Fatalf("%q, %v", got, err)
		}
		for _, bad := range []string{strings.ToUpper(spelled), "00ff00ff-00ff-00ff-00ff-00ff00ff00ff", spelled[1:], ""} {
			if _, err := table.DecodeKey([]byte(bad)); err == nil {
				t.Errorf("%q was taken for a key", bad)
			}
		}
	})
	t.Run("columns become one object that PostgreSQL can read and write", func(t *testing.T) {
		var content string
		sql := "SELECT (" + table.Content + ")::text FROM (VALUES ('x', 1.50)) AS t(title, \"odd \"\"name\")"
		if err := conn.QueryRow(t.Context(), sql).Scan(&content); err != nil {
			t.Fatal(err)
		}
		if content != `{"title": "x", "odd \"name": 1.50}` {
			t.Fatal(content)
		}
		values := table.ContentValues("$1::jsonb")
		var title, odd string
		if err := conn.QueryRow(t.Context(), "SELECT "+strings.Join([]string{values[0], values[1] + "::text"}, ", "), content).Scan(&title, &odd); err != nil {
			t.Fatal(err)
		}
		if got := []string{title, odd}; !slices.Equal(got, []string{"x", "1.50"}) {
			t.Fatal(got)
		}
	})
}

func TestConsumerMappingOfTheExample(t *testing.T) {
	conn := connect(t, pgtest.Consumer(t))
	cfg := centerMapping()
	cfg.Table = "hall.answer_projection"
	cfg.Columns.SchemaVersion = "form_version"
	cfg.Columns.ContentHash, cfg.Columns.ProjectionVersion = "content_hash", "projection_version"
	cfg.Columns.CreateTime, cfg.Columns.Retired, cfg.Columns.RetireHold = "created_at", "retired_at", "retire_hold"
	cfg.Columns.LastEventID, cfg.Columns.ConflictDetail, cfg.Columns.ProofID = "last_event_id", "conflict_detail", "proof_id"
	if _, err := dataset.Resolve(t.Context(), conn, cfg, dataset.Consumer); err != nil {
		t.Fatal(err)
	}
}

func TestOutbox(t *testing.T) {
	mapped := func(change func(*dataset.Outbox)) dataset.Config {
		c := centerMapping()
		c.Outbox = dataset.Outbox{Table: "answers.answer_outbox", ID: "id", XID: "xid", Tenant: "tenant_id", Collection: "form_id", Key: "answer_id"}
		change(&c.Outbox)
		return c
	}
	conn := connect(t, pgtest.Center(t))
	t.Run("of the example", func(t *testing.T) {
		table, err := dataset.Resolve(t.Context(), conn, mapped(func(*dataset.Outbox) {}), dataset.Center)
		if err != nil {
			t.Fatal(err)
		}
		c := table.Changes
		if c.Name != "answers.answer_outbox" || c.Ident != `"answers"."answer_outbox"` || c.Key != `replace(o."answer_id"::text, '-', '')` || c.Collection != `o."form_id"::text` {
			t.Errorf("%+v", c)
		}
	})
	t.Run("none is none", func(t *testing.T) {
		table, err := dataset.Resolve(t.Context(), conn, centerMapping(), dataset.Center)
		if err != nil || table.Changes != nil {
			t.Errorf("%+v, %v", table, err)
		}
	})
	t.Run("a consumer has none", func(t *testing.T) {
		if err := mapped(func(*dataset.Outbox) {}).Validate(dataset.Consumer); err == nil || !strings.Contains(err.Error(), "only the center's side has one") {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		change func(*dataset.Outbox)
		want   string
	}{
		"a table that is not there":  {func(o *dataset.Outbox) { o.Table = "answers.nothing" }, "there is no table answers.nothing"},
		"a table without a schema":   {func(o *dataset.Outbox) { o.Table = "outbox" }, `"outbox" is not schema.table`},
		"a column that is not named": {func(o *dataset.Outbox) { o.XID = "" }, "dataset.outbox.xid: name a column"},
		"a column that is not there": {func(o *dataset.Outbox) { o.Key = "record" }, `answers.answer_outbox has no column "record"`},
		"an xid that wraps around":   {func(o *dataset.Outbox) { o.XID = "id" }, `dataset.outbox.xid: column "id" is int8; it must be one of xid8`},
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			_, err := dataset.Resolve(t.Context(), conn, mapped(c.change), dataset.Center)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
