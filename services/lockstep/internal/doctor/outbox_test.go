package doctor

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestOutbox(t *testing.T) {
	p := center(t)
	says := func(level Level, want string) {
		t.Helper()
		if found := find(p.examine(t, t.Context()), level); !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, "outbox: ") && strings.Contains(f, want) }) {
			t.Errorf("%s has %q, want %q", level, found, want)
		}
	}
	says(OK, "ordinary delivery is off")

	mapped, ok := p.config["dataset"].(map[string]any)
	if !ok {
		t.Fatal("the dataset is a map")
	}
	mapped = maps.Clone(mapped)
	mapped["outbox"] = map[string]any{
		"table": "answers.answer_outbox", "id": "id", "xid": "xid", "tenant": "tenant_id", "collection": "form_id", "key": "answer_id",
	}
	p.config["dataset"] = mapped
	says(Warn, "the role may change answers.answer_outbox")
	p.exec(t, `CREATE ROLE doctor_outbox LOGIN; GRANT USAGE ON SCHEMA answers TO doctor_outbox; GRANT SELECT ON answers.answer TO doctor_outbox`)
	t.Cleanup(func() {
		if _, err := p.pool.Exec(context.Background(), `DROP OWNED BY doctor_outbox; DROP ROLE doctor_outbox`); err != nil {
			t.Error(err)
		}
	})
	p.become("doctor_outbox")
	says(Fail, `GRANT SELECT ON "answers"."answer_outbox"`)
	p.exec(t, `GRANT SELECT ON answers.answer_outbox TO doctor_outbox`)
	says(OK, "in the order of its transactions")
	p.exec(t, `ALTER INDEX answers.answer_outbox_order RENAME TO another_name`)
	says(OK, "in the order of its transactions")
	p.exec(t, `DROP INDEX answers.another_name`)
	says(Warn, "no index begins with (xid, id)")
	p.exec(t, `UPDATE answers.answer_outbox SET xid = '99999999999' WHERE id = (SELECT min(id) FROM answers.answer_outbox)`)
	says(Fail, "are never delivered")
}
