package pgtest_test

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"

	"lockstep.dev/migrations"
)

// expands are the services' own sets and the last file of each that the first
// release is made of. What comes later only adds, so that the release before
// goes on working on the new schema.
var expands = map[string]struct {
	files fs.FS
	first string
}{
	"center":   {migrations.Center, "0004"},
	"consumer": {migrations.Consumer, "0006"},
	"bills":    {migrations.Bills, "0001"},
	"scores":   {migrations.Scores, "0001"},
}

// contracts are what an older program may stumble over. A migration that takes
// away what no release reads any more says so: "-- contract: " and since when.
var contracts = regexp.MustCompile(`(?i)\b(DROP\s+(TABLE|COLUMN|SCHEMA|VIEW|FUNCTION|TRIGGER|TYPE|IDENTITY)|RENAME|SET\s+NOT\s+NULL|ALTER\s+COLUMN\s+\S+\s+(SET\s+DATA\s+)?TYPE|ADD\s+(CONSTRAINT|CHECK|UNIQUE|PRIMARY|FOREIGN)|CREATE\s+UNIQUE\s+INDEX)\b`)

// required is a new column that an older program's INSERT does not name.
var required = regexp.MustCompile(`(?i)\bADD\s+COLUMN\b[^,;]*\bNOT\s+NULL\b[^,;]*`)

func TestLaterMigrationsOnlyAdd(t *testing.T) {
	for dir, set := range expands {
		files, err := fs.Glob(set.files, dir+"/*.up.sql")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			if path.Base(file)[:len(set.first)] <= set.first {
				continue
			}
			text, err := fs.ReadFile(set.files, file)
			if err != nil {
				t.Fatal(err)
			}
			if why := contracted(string(text)); why != "" {
				t.Errorf("%s: %q: the release before may not work on it", file, why)
			}
		}
	}
}

// contracted is the first statement that does not only add, "" for none.
func contracted(sql string) string {
	if strings.Contains(sql, "-- contract: ") {
		return ""
	}
	if found := contracts.FindString(sql); found != "" {
		return found
	}
	for _, column := range required.FindAllString(sql, -1) {
		if !regexp.MustCompile(`(?i)\bDEFAULT\b`).MatchString(column) {
			return column
		}
	}
	return ""
}

func TestContracted(t *testing.T) {
	for sql, want := range map[string]string{
		"CREATE TABLE lockstep.x (a int NOT NULL);":                                    "",
		"ALTER TABLE lockstep.task ADD COLUMN a int;":                                  "",
		"ALTER TABLE lockstep.task ADD COLUMN a int NOT NULL DEFAULT 0;":               "",
		"DROP INDEX lockstep.outcome_op; CREATE INDEX outcome_op ON lockstep.outcome;": "",
		"-- contract: unread since v1.4\nALTER TABLE lockstep.task DROP COLUMN a;":     "",
		"ALTER TABLE lockstep.task ADD COLUMN a int NOT NULL;":                         "ADD COLUMN a int NOT NULL",
		"ALTER TABLE lockstep.task DROP COLUMN a;":                                     "DROP COLUMN",
		"ALTER TABLE lockstep.task RENAME COLUMN a TO b;":                              "RENAME",
		"ALTER TABLE lockstep.task ALTER COLUMN a TYPE bigint;":                        "ALTER COLUMN a TYPE",
		"ALTER TABLE lockstep.task ALTER COLUMN a SET NOT NULL;":                       "SET NOT NULL",
		"CREATE UNIQUE INDEX i ON lockstep.task (a);":                                  "CREATE UNIQUE INDEX",
	} {
		if got := contracted(sql); got != want {
			t.Errorf("%s: got %q, want %q", sql, got, want)
		}
	}
}
