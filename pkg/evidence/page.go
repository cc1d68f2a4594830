package evidence

import (
	"encoding/binary"
	"fmt"
	"slices"

	"lockstep.dev/pkg/canon"
)

// PageRow is a row with what rides along in a page. Schema version and sequence are information:
// they are outside the tree, so no root vouches for them.
type PageRow struct {
	Row
	SchemaVersion int64
	Sequence      int64
}

const (
	pageVersion = 1

	// MaxPageBytes bounds a body; a page call receives at most this much.
	MaxPageBytes = 4 << 20
	// MaxKeyBytes bounds a key, above what a B-tree index of PostgreSQL can hold (about 2 700 bytes).
	MaxKeyBytes = 4096

	flagDeleted = 0x01

	// minRowBytes is the shortest row: an empty key, three numbers of one byte, flags, hash. It bounds
	// what a count can make the decoder set aside.
	minRowBytes = 1 + 1 + 1 + 1 + 1 + len(canon.Hash{})
)

// AppendPage appends the packed page of rows, which must be strictly ascending by key. It writes
// what it is given: a page that breaks a rule is refused by DecodePage.
func AppendPage(dst []byte, rows []PageRow) []byte {
	dst = append(dst, pageVersion)
	dst = binary.AppendUvarint(dst, uint64(len(rows)))
	for i := range rows {
		r := &rows[i]
		dst = binary.AppendUvarint(dst, uint64(len(r.Key)))
		dst = append(dst, r.Key...)
		dst = binary.AppendVarint(dst, r.Revision)
		flags := byte(0)
		if r.Deleted {
			flags = flagDeleted
		}
		dst = append(dst, flags)
		dst = binary.AppendVarint(dst, r.SchemaVersion)
		dst = binary.AppendVarint(dst, r.Sequence)
		dst = append(dst, r.Hash[:]...)
	}
	return dst
}

// DecodePage appends the rows of a packed page to dst, which on an error keeps its old length. It
// accepts exactly the bodies that AppendPage writes for valid rows: ErrPageRows above maxRows,
// ErrOrder where keys do not ascend, ErrPage for everything else. The keys share one copy of body.
func DecodePage(body []byte, dst []PageRow, maxRows int) ([]PageRow, error) {
	if len(body) > MaxPageBytes {
		return dst, fmt.Errorf("%w: longer than %d bytes", ErrPage, MaxPageBytes)
	}
	d := pageDecoder{rest: body}
	if version := d.byte(); d.failed || version != pageVersion {
		return dst, fmt.Errorf("%w: unknown version", ErrPage)
	}
	count := d.uvarint()
	if d.failed || count > uint64(len(d.rest)/minRowBytes) {
		return dst, fmt.Errorf("%w: cut off", ErrPage)
	}
	if maxRows < 0 || count > uint64(maxRows) {
		return dst, fmt.Errorf("%w: %d, allowed %d", ErrPageRows, count, maxRows)
	}
	d.keys = string(d.rest)
	first := len(dst)
	out := slices.Grow(dst, int(count)) //nolint:gosec // at most maxRows
	for range count {
		row := d.row()
		if d.failed {
			return dst, fmt.Errorf("%w: row %d", ErrPage, len(out)-first)
		}
		if n := len(out); n > first && out[n-1].Key >= row.Key {
			return dst, fmt.Errorf("%w: row %d of a page", ErrOrder, n-first)
		}
		out = append(out, row)
	}
	if len(d.rest) != 0 {
		return dst, fmt.Errorf("%w: bytes behind the last row", ErrPage)
	}
	return out, nil
}

// pageDecoder reads from rest; after a failure every read gives zeros and failed stays set.
type pageDecoder struct {
	rest   []byte
	keys   string // what rest was when the rows began, as a string for keys to be cut from
	failed bool
}

func (d *pageDecoder) row() PageRow {
	var r PageRow
	r.Key = d.key()
	r.Revision = d.varint()
	flags := d.byte()
	if flags&^flagDeleted != 0 {
		d.failed = true
	}
	r.Deleted = flags&flagDeleted != 0
	r.SchemaVersion = d.varint()
	r.Sequence = d.varint()
	copy(r.Hash[:], d.take(len(r.Hash)))
	return r
}

func (d *pageDecoder) key() string {
	size := d.uvarint()
	if size > MaxKeyBytes {
		d.failed = true
		return ""
	}
	at := len(d.keys) - len(d.rest)
	return d.keys[at : at+len(d.take(int(size)))]
}

// take gives the next n bytes, or nothing if there are fewer.
func (d *pageDecoder) take(n int) []byte {
	if d.failed || n > len(d.rest) {
		d.failed = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *pageDecoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// uvarint reads a varint in its shortest spelling; a number that fits more than one would give one
// page more than one body.
func (d *pageDecoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.failed || n <= 0 || (n > 1 && d.rest[n-1] == 0) {
		d.failed = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// varint reads a zigzag varint.
func (d *pageDecoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// PageRowsRoot is PageRoot for rows as they come from a page.
func PageRowsRoot(rows []PageRow) Node {
	var b Builder
	for i := range rows {
		b.Add(LeafHash(&rows[i].Row))
	}
	return b.Root()
}

// Rows gives the rows of a page as the tree sees them, for a PageRef.
func Rows(page []PageRow) []Row {
	rows := make([]Row, len(page))
	for i := range page {
		rows[i] = page[i].Row
	}
	return rows
}
