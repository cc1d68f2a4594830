package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"lockstep.dev/services/lockstep/internal/store"
)

// Peer is what another way took for the same on the same data.
type Peer struct {
	EqualSeconds float64 `json:"equal_seconds"`
	// ContentSeconds is EqualSeconds with the contents compared too.
	ContentSeconds float64 `json:"content_seconds"`
	FindSeconds    float64 `json:"find_seconds"`
	RepairSeconds  float64 `json:"repair_seconds"`
	// Skipped says why it was not measured; the seconds mean nothing then.
	Skipped string `json:"skipped,omitempty"`
}

// contender is a peer at work. It compares peer.record of both sides.
type contender interface {
	name() string
	// find counts the differences of what is stored beside the content, content
	// those of the content too, and repair makes the consumer's side equal.
	find(ctx context.Context) (int, time.Duration, error)
	content(ctx context.Context) (int, time.Duration, error)
	repair(ctx context.Context) (int, time.Duration, error)
}

// peers are those that take part in a run.
type peers struct {
	*reconciler

	contenders []contender
}

// preparePeers gives the peers their tables, while both sides are equal.
func (m *reconciler) preparePeers(ctx context.Context) (*peers, error) {
	p := &peers{reconciler: m}
	if len(m.options.Peers) == 0 {
		return p, nil
	}
	m.result.Peers = map[string]Peer{}
	m.options.Note("peers: copies of both sides with stored hashes")
	if err := store.FillPeers(ctx, m.center, m.consumer); err != nil {
		return nil, err
	}
	if slices.Contains(m.options.Peers, PeerFDW) {
		p.contenders = append(p.contenders, &fullJoin{consumer: m.consumer, now: m.options.Now})
	}
	if slices.Contains(m.options.Peers, PeerComparator) {
		c, missing := newComparator(ctx, m)
		if missing != nil {
			m.options.Note("%s is skipped: %v", PeerComparator, missing)
			m.result.Peers[PeerComparator] = Peer{Skipped: missing.Error()}
			return p, nil
		}
		p.contenders = append(p.contenders, c)
	}
	return p, nil
}

// damaged brings the damage of the projection to the peers' copy.
func (p *peers) damaged(ctx context.Context) error {
	if len(p.contenders) == 0 {
		return nil
	}
	return p.consumer.RefillPeer(ctx)
}

// find lets every peer compare, as often as the tasks do.
func (p *peers) find(ctx context.Context, differences int) error {
	for _, c := range p.contenders {
		var times []float64
		for range p.options.Repeat {
			found, took, err := c.find(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			p.result.expect(c.name()+", differences", differences, found)
			times = append(times, seconds(took))
		}
		peer := p.result.Peers[c.name()]
		if differences == 0 {
			peer.EqualSeconds = median(times)
		} else {
			peer.FindSeconds = median(times)
		}
		p.result.Peers[c.name()] = peer
		p.options.Note("%s: %d differences in %.2f s", c.name(), differences, median(times))
	}
	return nil
}

// content lets every peer compare equal contents, once.
func (p *peers) content(ctx context.Context) error {
	for _, c := range p.contenders {
		found, took, err := c.content(ctx)
		if err != nil {
			return fmt.Errorf("%s, content: %w", c.name(), err)
		}
		p.result.expect(c.name()+", differences of content", 0, found)
		peer := p.result.Peers[c.name()]
		peer.ContentSeconds = seconds(took)
		p.result.Peers[c.name()] = peer
		p.options.Note("%s: contents compared in %.2f s", c.name(), seconds(took))
	}
	return nil
}

// repair lets every peer repair the same damage. The projection is repaired by
// then, so the copy of the damage is made anew from the copy of before.
func (p *peers) repair(ctx context.Context) error {
	for i, c := range p.contenders {
		if i == 0 && len(p.contenders) > 1 {
			if err := p.consumer.KeepPeer(ctx); err != nil {
				return err
			}
		} else if i > 0 {
			if err := p.consumer.RestorePeer(ctx); err != nil {
				return err
			}
		}
		changed, took, err := c.repair(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		p.result.expect(c.name()+", repaired", p.options.Diff, changed)
		peer := p.result.Peers[c.name()]
		peer.RepairSeconds = seconds(took)
		p.result.Peers[c.name()] = peer
		p.options.Note("%s: %d repaired in %.2f s", c.name(), changed, seconds(took))
	}
	return nil
}

// fullJoin is plain SQL over postgres_fdw.
type fullJoin struct {
	consumer store.Pool
	now      func() time.Time
}

func (f *fullJoin) name() string { return PeerFDW }

func (f *fullJoin) find(ctx context.Context) (int, time.Duration, error) {
	return f.consumer.JoinDifferences(ctx, false, f.now)
}

func (f *fullJoin) content(ctx context.Context) (int, time.Duration, error) {
	return f.consumer.JoinDifferences(ctx, true, f.now)
}

func (f *fullJoin) repair(ctx context.Context) (int, time.Duration, error) {
	return f.consumer.JoinRepair(ctx, f.now)
}

// comparator is pg_comparator.
type comparator struct {
	*reconciler

	program string
}

// newComparator finds it; the error says why it can't take part.
func newComparator(ctx context.Context, m *reconciler) (*comparator, error) {
	program, err := exec.LookPath("pg_comparator")
	if err != nil {
		return nil, errors.New("it is not installed; tools/setup.sh peers does that")
	}
	if err := store.PrepareComparator(ctx, m.center, m.consumer); err != nil {
		return nil, err
	}
	return &comparator{reconciler: m, program: program}, nil
}

func (c *comparator) name() string { return PeerComparator }

const metadata = "revision,content_hash,deleted"

func (c *comparator) find(ctx context.Context) (int, time.Duration, error) {
	return c.run(ctx, metadata)
}

func (c *comparator) content(ctx context.Context) (int, time.Duration, error) {
	return c.run(ctx, metadata+",content")
}

// repair has to name the content among the compared columns: it writes no others.
func (c *comparator) repair(ctx context.Context) (int, time.Duration, error) {
	return c.run(ctx, metadata+",content", "--synchronize", "--do-it")
}

// run counts the lines of the report, one a difference: of kinds UPDATE, INSERT, DELETE.
func (c *comparator) run(ctx context.Context, columns string, options ...string) (int, time.Duration, error) {
	center, password := c.center.ComparatorURL(columns)
	consumer, _ := c.consumer.ComparatorURL(columns)
	const everything = "--max-ratio=2.0" // it gives up beyond a tenth otherwise
	args := append(slices.Clone(options), everything, "--env-pass=LOCKSTEP_BENCH_PASSWORD", center, consumer)
	cmd := exec.CommandContext(ctx, c.program, args...) //nolint:gosec // the peer's program and this run's databases
	cmd.Env = append(os.Environ(), "LOCKSTEP_BENCH_PASSWORD="+password)
	var said strings.Builder
	cmd.Stderr = &said
	begin := c.options.Now()
	out, err := cmd.Output()
	took := c.options.Now().Sub(begin)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		if kind, _, _ := strings.Cut(line, " "); kind == "UPDATE" || kind == "INSERT" || kind == "DELETE" {
			found++
		}
	}
	return found, took, nil
}
