package manifest

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"lockstep.dev/pkg/evidence"
	"lockstep.dev/services/center/internal/store/frozen"
	"lockstep.dev/services/center/internal/task"
)

// levels is a tree by its levels, the leaves first. A node without a sibling
// is passed up as it is, which gives the tree of RFC 6962.
type levels [][]evidence.Node

func newLevels(nodes []evidence.Node) levels {
	l := levels{nodes}
	for len(nodes) > 1 {
		up := make([]evidence.Node, 0, (len(nodes)+1)/2)
		for i := 0; i+1 < len(nodes); i += 2 {
			up = append(up, evidence.HashChildren(nodes[i], nodes[i+1]))
		}
		if len(nodes)%2 == 1 {
			up = append(up, nodes[len(nodes)-1])
		}
		l, nodes = append(l, up), up
	}
	return l
}

// root of at least one leaf.
func (l levels) root() evidence.Node { return l[len(l)-1][0] }

// path appends the siblings from leaf i to the root, the lowest first.
func (l levels) path(path []evidence.Node, i int) []evidence.Node {
	for _, level := range l {
		if sibling := i ^ 1; sibling < len(level) {
			path = append(path, level[sibling])
		}
		i >>= 1
	}
	return path
}

// index is what finds and proves rows of one manifest without its pages.
type index struct {
	lastKeys []string
	pages    levels // over the page roots
}

const (
	// Evidence is asked for in bursts, of one or two tasks at a time.
	maxIndexes = 4
	// maxIndexPages bounds what is kept: about 120 bytes a page, so 20 MB.
	maxIndexPages = 160_000
	// An index this small is read faster than it is worth keeping.
	minIndexPages = 8
)

// indexes keeps the last few indexes in use. The zero value is ready.
type indexes struct {
	mu   sync.Mutex
	list []keptIndex // the one used last first
}

type keptIndex struct {
	id  uuid.UUID
	idx *index
}

func (x *indexes) get(id uuid.UUID) *index {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, k := range x.list {
		if k.id == id {
			copy(x.list[1:i+1], x.list[:i])
			x.list[0] = k
			return k.idx
		}
	}
	return nil
}

func (x *indexes) put(id uuid.UUID, idx *index) {
	if n := len(idx.lastKeys); n < minIndexPages || n > maxIndexPages {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	list := []keptIndex{{id, idx}}
	pages := len(idx.lastKeys)
	for _, k := range x.list {
		pages += len(k.idx.lastKeys)
		if k.id != id && pages <= maxIndexPages && len(list) < maxIndexes {
			list = append(list, k)
		}
	}
	x.list = list
}

// index gives the task's index, checked against the task's root.
func (r *Reader) index(ctx context.Context, tk *task.Task, set frozen.Set) (*index, error) {
	if idx := r.indexes.get(set.ID); idx != nil {
		return idx, nil
	}
	idx := &index{lastKeys: make([]string, 0, tk.PageCount)}
	roots := make([]evidence.Node, 0, tk.PageCount)
	for len(roots) < tk.PageCount {
		entries, err := r.frozen.Index(ctx, set, len(roots), MaxIndexEntries)
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			return nil, damaged(tk)
		}
		for _, e := range entries {
			idx.lastKeys = append(idx.lastKeys, e.LastKey)
			roots = append(roots, e.Root)
		}
	}
	idx.pages = newLevels(roots)
	if len(roots) != tk.PageCount || idx.pages.root() != tk.ManifestRoot {
		return nil, damaged(tk)
	}
	r.indexes.put(set.ID, idx)
	return idx, nil
}
