package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"lockstep.dev/pkg/dataset"
	"lockstep.dev/pkg/pgtest"
	"lockstep.dev/services/lockstep/internal/dev"
	"lockstep.dev/services/lockstep/internal/store"
	"lockstep.dev/services/lockstep/internal/world"
)

// patient is one side's table with its configuration file.
type patient struct {
	side   dataset.Side
	pool   store.Pool
	config map[string]any
}

func center(t *testing.T) *patient {
	t.Helper()
	dsn := pgtest.Center(t)
	p := newPatient(t, dataset.Center, dsn, map[string]any{"source": map[string]any{"dsn": dsn}, "dataset": dev.AnswersCenter()})
	if err := p.pool.FillCenter(t.Context(), world.Forms(), data(t).Answers()); err != nil {
		t.Fatal(err)
	}
	return p
}

func consumer(t *testing.T) *patient {
	t.Helper()
	dsn := pgtest.Consumer(t)
	p := newPatient(t, dataset.Consumer, dsn, map[string]any{"store": map[string]any{"dsn": dsn, "max_conns": 4}, "dataset": dev.AnswersConsumer()})
	if err := p.pool.FillProjection(t.Context(), data(t).Projection(), time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	return p
}

func newPatient(t *testing.T, side dataset.Side, dsn string, config map[string]any) *patient {
	t.Helper()
	config["app_key"] = "something of the service's own"
	pool, err := store.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &patient{side: side, pool: pool, config: config}
}

func data(t *testing.T) *world.World {
	t.Helper()
	w, err := world.New(world.MinRows, 7)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (p *patient) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := p.pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func (p *patient) examine(t *testing.T, ctx context.Context) *Report { //nolint:revive // t comes first in tests
	t.Helper()
	text, err := yaml.Marshal(p.config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := Run(ctx, path, p.side)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// find returns the findings of a level that is not OK, as "name: detail".
func find(r *Report, level Level) []string {
	var out []string
	for _, c := range r.Checks {
		if c.Level == level {
			out = append(out, c.Name+": "+c.Detail)
		}
	}
	return out
}

func TestAFitTable(t *testing.T) {
	for name, make := range map[string]func(*testing.T) *patient{"center": center, "consumer": consumer} {
		t.Run(name, func(t *testing.T) {
			r := make(t).examine(t, t.Context())
			if fails := find(r, Fail); !r.OK || len(fails) > 0 {
				t.Errorf("unfit: %q", fails)
			}
			// The tests' role is a superuser, which is said.
			warnings := find(r, Warn)
			for _, w := range warnings {
				if !strings.HasPrefix(w, "server: ") && !strings.HasPrefix(w, "privileges: ") {
					t.Errorf("warned: %s", w)
				}
			}
		})
	}
}

func TestWhatIsFound(t *testing.T) {
	for _, c := range []struct {
		name    string
		patient func(*testing.T) *patient
		break_  func(*testing.T, *patient)
		level   Level
		want    string
	}{
		{"a_missing_column", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE hall.answer_projection RENAME COLUMN seq_no TO number`)
		}, Fail, `columns: dataset.columns.sequence: hall.answer_projection has no column "seq_no"`},
		{"a_wrong_type", center, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE answers.answer ALTER COLUMN deleted DROP DEFAULT, ALTER COLUMN deleted TYPE text`)
		}, Fail, `columns: dataset.columns.deleted: column "deleted" is text`},
		{"a_missing_table", center, func(t *testing.T, p *patient) {
			p.exec(t, `DROP TABLE answers.answer`)
		}, Fail, "columns: dataset.table: there is no table answers.answer"},
		{"no_index_for_the_walk", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `DROP INDEX hall.answer_projection_image`)
		}, Fail, `walk index: no index gives a collection in key order; CREATE INDEX ON "hall"."answer_projection" ("tenant_id", "form_id", "answer_id") INCLUDE ("revision", "content_hash", "deleted") WHERE "retired_at" IS NULL`},
		{"an_index_that_covers_nothing", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `DROP INDEX hall.answer_projection_image; CREATE INDEX plain ON hall.answer_projection (form_id, tenant_id, answer_id)`)
		}, Warn, "walk index: plain gives the order and not the values"},
		{"no_index_for_a_key", center, func(t *testing.T, p *patient) {
			p.exec(t, `DROP INDEX answers.answer_key`)
		}, Warn, "key index: no index begins with answer_id"},
		{"no_unique_key", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE hall.answer_projection DROP CONSTRAINT answer_projection_pkey`)
		}, Fail, "unique key: no unique index on exactly (tenant_id, answer_id)"},
		{"a_host_column_that_wants_a_value", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE hall.answer_projection ALTER COLUMN flow_id SET NOT NULL`)
		}, Fail, "inserts: a missing record can't be inserted: flow_id must have a value"},
		{"a_column_too_short_for_a_contradiction", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE hall.answer_projection ALTER COLUMN conflict_detail TYPE varchar(180)`)
		}, Warn, "lengths: conflict_detail holds 180 characters and needs 193: "},
		{"a_column_too_short_for_a_proof", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE hall.answer_projection ALTER COLUMN proof_id TYPE char(31), ALTER COLUMN last_event_id TYPE varchar(32)`)
		}, Fail, "lengths: proof_id holds 31 characters and needs 32: no row can be retired"},
		{"a_foreign_hash", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `UPDATE hall.answer_projection SET content_hash = sha256(convert_to("values"::text, 'UTF8')) WHERE "values" IS NOT NULL`)
		}, Fail, "hash: of "},
		{"content_without_a_form", center, func(t *testing.T, p *patient) {
			p.exec(t, `UPDATE answers.answer SET "values" = (repeat('[', 80) || repeat(']', 80))::jsonb`)
		}, Warn, "hash: of "},
		{"an_empty_value", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `ALTER TABLE hall.answer_projection ALTER COLUMN revision DROP NOT NULL; UPDATE hall.answer_projection SET revision = NULL`)
		}, Fail, "values: row "},
		{"an_old_visibility_map", consumer, func(t *testing.T, p *patient) {
			p.exec(t, `UPDATE hall.answer_projection SET seq_no = seq_no + 1`)
			p.exec(t, `ANALYZE hall.answer_projection`)
		}, Warn, "visibility: 0 %"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.patient(t)
			c.break_(t, p)
			r := p.examine(t, t.Context())
			found := find(r, c.level)
			for _, finding := range found {
				if strings.HasPrefix(finding, c.want) {
					if r.OK != (c.level != Fail) {
						t.Errorf("ok is %t", r.OK)
					}
					return
				}
			}
			t.Errorf("got %q, want %q", found, c.want)
		})
	}
}

func TestPrivilegesOfAPlainRole(t *testing.T) {
	for _, c := range []struct {
		name   string
		side   func(*testing.T) *patient
		grants string
		level  Level
		want   string
	}{
		{"center_reads", center, `GRANT USAGE ON SCHEMA answers TO %r; GRANT SELECT ON answers.answer TO %r`, OK, "privileges: SELECT, and no more"},
		{"center_may_write", center, `GRANT USAGE ON SCHEMA answers TO %r; GRANT SELECT, UPDATE ON answers.answer TO %r`, Warn, "privileges: the role may change the table"},
		{"consumer_writes", consumer, `GRANT USAGE ON SCHEMA hall TO %r; GRANT SELECT, INSERT, UPDATE ON hall.answer_projection TO %r`, OK, "privileges: SELECT, INSERT, UPDATE, and no more"},
		{"consumer_only_reads", consumer, `GRANT USAGE ON SCHEMA hall TO %r; GRANT SELECT ON hall.answer_projection TO %r`, Fail, "privileges: the role lacks INSERT on answer_id, "},
		{
			"consumer_lacks_a_column", consumer, `GRANT USAGE ON SCHEMA hall TO %r; GRANT SELECT, INSERT ON hall.answer_projection TO %r;
			GRANT UPDATE (tenant_id, answer_id, form_id, form_version, seq_no, revision, content_hash, deleted, "values", projection_version, created_at, retired_at, retire_hold, last_event_id, conflict_detail) ON hall.answer_projection TO %r`,
			Fail, "privileges: the role lacks UPDATE on proof_id",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.side(t)
			role := "doctor_" + c.name
			p.exec(t, "CREATE ROLE "+role+" LOGIN; "+strings.ReplaceAll(c.grants, "%r", role))
			t.Cleanup(func() {
				if _, err := p.pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
					t.Error(err)
				}
			})
			p.become(role)
			r := p.examine(t, t.Context())
			for _, finding := range find(r, c.level) {
				if strings.HasPrefix(finding, c.want) {
					return
				}
			}
			t.Errorf("got %+v, want %q", r.Checks, c.want)
		})
	}
}

// become makes the configuration name another role.
func (p *patient) become(role string) {
	for _, key := range []string{"source", "store"} {
		if database, ok := p.config[key].(map[string]any); ok {
			database["dsn"] = strings.Replace(database["dsn"].(string), "postgres@", role+"@", 1)
		}
	}
}
