package pgtest_test

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.dev/migrations"
	"lockstep.dev/pkg/pg"
	"lockstep.dev/pkg/pglocal"
	"lockstep.dev/pkg/pgtest"
)

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	first, second := connect(t, pgtest.Center(t)), connect(t, pgtest.Center(t))
	if _, err := first.Exec(t.Context(), `UPDATE lockstep.center SET center_epoch = 7`); err != nil {
		t.Fatal(err)
	}
	var epoch int
	if err := second.QueryRow(t.Context(), `SELECT center_epoch FROM lockstep.center`).Scan(&epoch); err != nil {
		t.Fatal(err)
	}
	if epoch != 1 {
		t.Errorf("the second database has epoch %d, want its own 1", epoch)
	}
}

func TestTheExampleTablesAreThere(t *testing.T) {
	for table, dsn := range map[string]string{"answers.answer": pgtest.Center(t), "hall.answer_projection": pgtest.Consumer(t)} {
		var found bool
		if err := connect(t, dsn).QueryRow(t.Context(), `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&found); err != nil {
			t.Fatal(err)
		}
		if !found {
			t.Errorf("%s is missing", table)
		}
	}
}

// schema lists every object of the schemas that migrations make, in words.
func schema(t *testing.T, dsn string) string {
	t.Helper()
	const catalogue = `
SELECT string_agg(line, E'\n' ORDER BY line) FROM (
  SELECT 'schema ' || nspname AS line FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
  UNION ALL
  SELECT format('column %s.%s %s %s %s %s', n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
   WHERE c.relname NOT LIKE 'migrations%'
  UNION ALL
  SELECT format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
   WHERE connamespace IN (SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema') AND conname NOT LIKE 'migrations%'
  UNION ALL
  SELECT indexdef FROM pg_indexes WHERE schemaname !~ '^pg_' AND tablename NOT LIKE 'migrations%'
  UNION ALL
  SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL
  SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
) AS lines`
	var text string
	if err := connect(t, dsn).QueryRow(t.Context(), catalogue).Scan(&text); err != nil {
		t.Fatalf("read the schema: %v", err)
	}
	return text
}

func TestMigrationsGoUpAndDownAndUp(t *testing.T) {
	for dir, files := range map[string]fs.FS{
		"center": migrations.Center, "consumer": migrations.Consumer,
		"answers_center": migrations.AnswersCenter, "answers_consumer": migrations.AnswersConsumer,
		"bills": migrations.Bills, "scores": migrations.Scores,
	} {
		t.Run(dir, func(t *testing.T) {
			dsn := pgtest.Empty(t)
			steps := []func(context.Context, string, fs.FS, string, string) error{pg.Migrate, pg.MigrateDown, pg.Migrate}
			var schemas []string
			for _, step := range steps {
				if err := step(t.Context(), dsn, files, dir, "migrations_"+dir); err != nil {
					t.Fatal(err)
				}
				schemas = append(schemas, schema(t, dsn))
			}
			if schemas[0] != schemas[2] {
				t.Errorf("after up, down, up the schema is\n%s\nwant\n%s", schemas[2], schemas[0])
			}
			if want := "schema public"; schemas[1] != want {
				t.Errorf("after down there is\n%s\nwant nothing but %q", schemas[1], want)
			}
			if err := pg.Migrate(t.Context(), dsn, files, dir, "migrations_"+dir); err != nil {
				t.Errorf("up again where nothing is to do: %v", err)
			}
		})
	}
}

func TestClusterSurvivesAnImmediateRestart(t *testing.T) {
	dir, err := pgtest.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := pgtest.Start(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	conn := connect(t, cluster.TCPDSN("postgres"))
	if _, err := conn.Exec(t.Context(), `CREATE TABLE kept AS SELECT 42 AS n; SET synchronous_commit = on; INSERT INTO kept VALUES (43)`); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Restart(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlived the restart")
	}
	var rows int
	if err := connect(t, cluster.TCPDSN("postgres")).QueryRow(t.Context(), `SELECT count(*) FROM kept`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if rows != 2 {
		t.Errorf("%d rows after the restart, want 2", rows)
	}
}

func TestTheLoopbackPortWantsThePassword(t *testing.T) {
	dir, err := pgtest.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := pgtest.Start(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.StopImmediate() })
	config, err := pgx.ParseConfig(cluster.TCPDSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.Password = "guessed"
	_, err = pgx.ConnectConfig(t.Context(), config)
	if got := pg.Code(err); got != "28P01" {
		t.Errorf("a wrong password gives %q (%v), want 28P01", got, err)
	}
}

func TestAMissingServerIsToldClearly(t *testing.T) {
	_, err := pglocal.Start(t.Context(), pglocal.Options{Dir: t.TempDir(), BinDir: "/nonexistent"})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("got %v, want an error that names the folder", err)
	}
}

const childVariable = "LOCKSTEP_PGTEST_CHILD"

// TestChild is the process that TestNothingIsLeftBehind kills.
func TestChild(t *testing.T) {
	if os.Getenv(childVariable) == "" {
		return
	}
	pgtest.Center(t)
	if _, err := os.Stdout.WriteString("socket " + pgtest.SocketFile(t) + "\n"); err != nil {
		t.Fatal(err)
	}
	if os.Getenv(childVariable) == "stay" {
		select {}
	}
}

// startChild runs this test binary once more and returns its cluster's socket.
func startChild(t *testing.T, how string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), childVariable+"="+how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if socket, ok := strings.CutPrefix(lines.Text(), "socket "); ok {
			return cmd, socket
		}
	}
	t.Fatal("the child did not start its cluster")
	return nil, ""
}

func TestNothingIsLeftBehind(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd) error{
		"after_an_orderly_end": nil,
		"after_SIGKILL":        func(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGKILL) },
		"after_SIGTERM":        func(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			how := "stay"
			if end == nil {
				how = "end"
			}
			cmd, socket := startChild(t, how)
			if end != nil {
				if err := end(cmd); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait()
			dir := socket[:strings.LastIndex(socket, "/")]
			awaitGone(t, dir)
			if conn, err := net.Dial("unix", socket); err == nil {
				_ = conn.Close()
				t.Error("the server still answers")
			}
		})
	}
}

func awaitGone(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s is still there", dir)
		}
	}
}

func BenchmarkDatabase(b *testing.B) {
	pgtest.Center(b) // the cluster and its template
	for b.Loop() {
		pgtest.Center(b)
	}
}
