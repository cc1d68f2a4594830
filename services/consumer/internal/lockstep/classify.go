package lockstep

import (
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

// Difference is one key on which the sides disagree. A side that has no row is nil.
type Difference struct {
	Class  protocol.Class
	Center *evidence.PageRow
	Local  *evidence.Row
}

// Key is the raw key both sides are compared under.
func (d *Difference) Key() string {
	if d.Center != nil {
		return d.Center.Key
	}
	return d.Local.Key
}

// Classify compares the two rows of one key; at least one is not nil. The first
// matching class wins. An all-zero center hash stands for content that has no
// hash: such a row can't be compared at all, so it always differs.
func Classify(center *evidence.PageRow, local *evidence.Row) (class protocol.Class, differs bool) {
	if center == nil {
		return protocol.ExtraRow, true
	}
	if center.Hash.IsZero() {
		return protocol.ClassQuarantined, true
	}
	if local != nil && equal(&center.Row, local) {
		return "", false
	}
	switch {
	case center.Revision == 0:
		return protocol.RevisionZero, true
	case local == nil:
		return protocol.Missing, true
	case local.Revision > center.Revision:
		return protocol.LocalAhead, true
	case local.Deleted != center.Deleted:
		return protocol.Tombstone, true
	case local.Revision < center.Revision:
		return protocol.Stale, true
	default:
		return protocol.HashConflict, true
	}
}

func equal(a, b *evidence.Row) bool {
	return a.Revision == b.Revision && a.Deleted == b.Deleted && a.Hash == b.Hash
}
