package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// TestRollingUpgrade replaces two centers and two consumers one by one, twice,
// while an operator makes tasks and both work: a new process first, then SIGTERM
// for the old one. The first ones are of the release before, on this one's
// schema. Every call is answered, every process ends in order, every task ends
// once, every row is repaired once.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	s := setup(t)
	const forms, rows, rolls = 48, 60, 2
	done := damage{missing: 3, stale: 3, conflict: 2, tombstone: 1}
	for i := range forms {
		collection := fmt.Sprintf("form-%d", i)
		s.fill(collection, rows)
		s.damageAll(collection, done)
	}
	young := s.bin
	s.bin = previous(t, young)
	several := settings{"max_in_flight_per_consumer": 4, "max_tasks_per_run": forms}
	centers := &fleet{balance(t, s.centerAddr), func(address string) *node { return s.startCenterAt(address, "", several) }, nil}
	consumers := &fleet{balance(t, s.consumerAddr), func(address string) *node { return s.startConsumerAt(address, "", nil) }, nil}
	for range 2 {
		consumers.add(s)
		centers.add(s)
	}

	// The operator: few tasks are open at once, so that there are some from the first to the last stop.
	made := make(chan error, 1)
	open := make(chan struct{}, 8)
	client := s.centerAdmin()
	ctx := s.operator()
	go func() {
		for i := range forms {
			open <- struct{}{}
			if _, err := client.CreateTask(ctx, &centerv1.CreateTaskRequest{
				Consumer: consumerApp, TenantId: tenant, CollectionId: fmt.Sprintf("form-%d", i), Scope: evidencev1.Scope_SCOPE_COLLECTION,
			}); err != nil {
				made <- fmt.Errorf("create task %d of %d: %w", i, forms, err)
				return
			}
		}
		made <- nil
	}()
	count := func(center bool, sql string) (n int) {
		pool := s.consumer
		if center {
			pool = s.center
		}
		s.must(pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	const ended = `SELECT count(*) FROM lockstep.task WHERE ended_at IS NOT NULL`
	released := 0
	// release lets the operator make one more task for each that has ended.
	release := func() {
		for n := count(true, ended); released < n; released++ {
			<-open
		}
	}

	s.bin = young
	for range rolls {
		for range 2 {
			for _, f := range []*fleet{consumers, centers} {
				s.await("a task at work", func() bool {
					release()
					return count(false, `SELECT count(*) FROM lockstep.work WHERE state = 'RUNNING'`) > 0
				})
				f.add(s)
				f.retire(s)
			}
		}
	}
	if n := count(true, ended); n == forms {
		t.Error("every task had ended before the last stop: nothing was at work")
	}
	s.await("the end of every task", func() bool {
		release()
		return count(true, ended) == forms && count(false, `SELECT count(*) FROM lockstep.work WHERE ended_at IS NULL`) == 0
	})
	s.must(<-made)
	for what, c := range map[string]struct{ got, want int }{
		"tasks":            {count(true, `SELECT count(*) FROM lockstep.task`), forms},
		"completed tasks":  {count(true, `SELECT count(*) FROM lockstep.task WHERE state = 'COMPLETED'`), forms},
		"results":          {count(true, `SELECT count(*) FROM lockstep.task_result`), forms},
		"completed work":   {count(false, `SELECT count(*) FROM lockstep.work WHERE state = 'COMPLETED'`), forms},
		"repairs by class": {count(false, `SELECT count(*) FROM lockstep.outcome WHERE outcome = 'REPAIRED'`), int(done.repaired()) * forms},
		"outcomes":         {count(false, `SELECT count(*) FROM lockstep.outcome`), int(done.repaired()) * forms},
		// Each repair raised the version of its row by one, and a new row has 1.
		"repairs done": {count(false, `SELECT sum(projection_version) - count(*) FROM hall.answer_projection`), (done.stale + done.conflict + done.tombstone) * forms},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", what, c.got, c.want)
		}
	}
	for i := range forms {
		if n := s.differences(fmt.Sprintf("form-%d", i)); n != 0 {
			t.Errorf("form-%d: %d rows still differ", i, n)
		}
	}
	s.fsck()
}

// fleet is the processes of one service behind one address.
type fleet struct {
	*balancer

	start func(address string) *node
	nodes []*node
}

// add starts one more, which gets connections once it is ready.
func (f *fleet) add(s *stack) {
	s.t.Helper()
	n := f.start(fmt.Sprintf("unix:%s", s.file(fmt.Sprintf("r%d.sock", s.serial+1))))
	f.nodes = append(f.nodes, n)
	f.balancer.add(n.at.GRPC)
}

// retire asks the oldest to end, as an orchestrator does, and wants status 0.
func (f *fleet) retire(s *stack) {
	s.t.Helper()
	old := f.nodes[0]
	f.nodes = f.nodes[1:]
	f.balancer.remove(old.at.GRPC)
	s.must(old.Signal(syscall.SIGTERM))
	s.await("the end of a process", func() bool {
		select {
		case <-old.Ended():
			return true
		default:
			return false
		}
	})
	if old.ExitError() != nil {
		s.t.Errorf("a process that was asked to end: %v", old.Death())
	}
}

// balancer gives each new connection to the next process that takes it, as a
// cluster's address of a service does.
type balancer struct {
	mu   sync.Mutex
	open []string
	next int
}

func balance(t *testing.T, address string) *balancer {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", strings.TrimPrefix(address, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	b := &balancer{}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.join(t.Context(), conn)
		}
	}()
	return b
}

func (b *balancer) add(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = append(b.open, strings.TrimPrefix(address, "unix:"))
}

func (b *balancer) remove(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, open := range b.open {
		if "unix:"+open == address {
			b.open = append(b.open[:i:i], b.open[i+1:]...)
			return
		}
	}
}

// pick dials the next one; one that is just ending is passed over.
func (b *balancer) pick(ctx context.Context) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := errors.New("no process is ready")
	for range b.open {
		b.next++
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "unix", b.open[b.next%len(b.open)]); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (b *balancer) join(ctx context.Context, in net.Conn) {
	defer in.Close() //nolint:errcheck // the other end sees it closed, which is the message
	out, err := b.pick(ctx)
	if err != nil {
		return
	}
	defer out.Close() //nolint:errcheck // likewise
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			ended <- struct{}{}
		}()
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// previous builds the services of the release before: the newest tag v*, or,
// where there is none, the commit before the newest migration. Where the history
// is not at hand (a shallow clone, an unpacked archive) the present ones stand in
// for them: then the roll is tested, and the schema under old programs is not.
func previous(t *testing.T, present string) string {
	t.Helper()
	commit, err := releaseBefore(t.Context())
	if err != nil {
		t.Logf("the release before this one is not at hand (%v): the first processes are of this one", err)
		return present
	}
	dir := t.TempDir()
	source, bin := filepath.Join(dir, "source"), filepath.Join(dir, "bin")
	for _, folder := range []string{source, bin} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	archive := filepath.Join(dir, "source.tar")
	for _, step := range []struct {
		dir  string
		args []string
	}{
		{"../..", []string{"git", "archive", "--output", archive, commit}},
		{source, []string{"tar", "-xf", archive}},
		{source, []string{"go", "build", "-buildvcs=false", "-o", bin + "/", "./services/center", "./services/consumer"}},
	} {
		cmd := exec.CommandContext(t.Context(), step.args[0], step.args[1:]...)
		cmd.Dir = step.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the services of %s: %s: %v\n%s", commit, strings.Join(step.args, " "), err, out)
		}
	}
	t.Logf("the first processes are of %s", commit)
	return bin
}

func releaseBefore(ctx context.Context) (string, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = "../.."
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	if tag, err := git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"); err == nil {
		return tag, nil
	}
	newest, err := git("log", "-1", "--format=%H", "--diff-filter=A", "HEAD", "--", "migrations/*.up.sql")
	if err != nil || newest == "" {
		return "", errors.New("no history")
	}
	before, err := git("rev-parse", "--verify", "--quiet", newest+"^{commit}~1")
	if err != nil {
		return "", errors.New("the history ends at the newest migration")
	}
	return before, nil
}
