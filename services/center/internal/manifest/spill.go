package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync/atomic"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/services/center/internal/source"
)

const (
	// spilledKey is the length of every key that there is.
	spilledKey = 16
	// spilledRow is a row in the file: key, hash, revision, schema version, sequence, deleted.
	spilledRow = spilledKey + len(canon.Hash{}) + 3*8 + 1
	// trayBytes are held by each reader, of all parts together.
	trayBytes = 4 << 20
	// mostHeld are held of one part, and leastHeld where there are very many parts.
	mostHeld, leastHeld = 224, 8
)

// errNoSpill: the folder is no place for a file of that size.
var errNoSpill = errors.New("no folder on disk with room")

// spill keeps rows without their contents in a file until all have been read:
// each part has its place in it, which is as large as the part. The file has no
// name, so it is gone with the process, however that ends.
type spill struct {
	file   *os.File
	parts  []source.Part
	starts []int64        // of each part, in rows
	filled []atomic.Int64 // rows of each part so far
}

// newSpill makes the file with all the room that it needs, in dir or the
// system's temporary folder; errNoSpill where that can't be, or where the folder
// is in memory and that is not wanted.
func newSpill(dir string, inMemory bool, plan source.Plan) (*spill, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	file, err := os.CreateTemp(dir, "lockstep-manifest-")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSpill, err)
	}
	s := &spill{file: file, parts: plan.Parts, starts: make([]int64, len(plan.Parts)), filled: make([]atomic.Int64, len(plan.Parts))}
	// Taken beforehand: a disk that is full shows before anything was read.
	if err := errors.Join(os.Remove(file.Name()), reserve(file, inMemory, plan.Rows*int64(spilledRow))); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoSpill, err), file.Close())
	}
	var rows int64
	for i, p := range plan.Parts {
		s.starts[i] = rows
		rows += p.Rows
	}
	return s, nil
}

func (s *spill) close() { _ = s.file.Close() } // what was written is not wanted any more

// part is the number of the part that has a key.
func (s *spill) part(key string) int {
	last := len(s.parts) - 1 // it has no upper end
	return sort.Search(last, func(i int) bool { return key <= s.parts[i].UpTo })
}

// write appends rows to a part; more than the part has is errCount.
func (s *spill) write(part int, rows []byte) error {
	n := int64(len(rows) / spilledRow)
	end := s.filled[part].Add(n)
	if end > s.parts[part].Rows {
		return errCount()
	}
	if _, err := s.file.WriteAt(rows, (s.starts[part]+end-n)*int64(spilledRow)); err != nil {
		return fmt.Errorf("keep rows until they are in order: %w", err)
	}
	return nil
}

// read gives a part's rows, in no order, and buf to be used again.
func (s *spill) read(part int, dst []evidence.PageRow, buf []byte) ([]evidence.PageRow, []byte, error) {
	rows := s.parts[part].Rows
	if s.filled[part].Load() != rows {
		return dst, buf, errCount()
	}
	if need := int(rows) * spilledRow; cap(buf) < need {
		buf = make([]byte, need)
	} else {
		buf = buf[:need]
	}
	if _, err := s.file.ReadAt(buf, s.starts[part]*int64(spilledRow)); err != nil {
		return dst, buf, fmt.Errorf("read rows that were kept: %w", err)
	}
	keys := make([]byte, 0, int(rows)*spilledKey)
	for at := 0; at < len(buf); at += spilledRow {
		keys = append(keys, buf[at:at+spilledKey]...)
	}
	all := string(keys) // one piece of memory for all keys of the part
	for i := range int(rows) {
		b := buf[i*spilledRow+spilledKey : (i+1)*spilledRow]
		row := evidence.PageRow{Row: evidence.Row{Key: all[i*spilledKey : (i+1)*spilledKey]}}
		b = b[copy(row.Hash[:], b):]
		row.Revision, row.SchemaVersion, row.Sequence = number(b), number(b[8:]), number(b[16:])
		row.Deleted = b[24] == 1
		dst = append(dst, row)
	}
	return dst, buf, nil
}

func number(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) } //nolint:gosec // as it was put

// tray is what one reader holds of each part, to write many rows at a time.
type tray struct {
	s    *spill
	held [][]byte
	most int
}

func (s *spill) tray() *tray {
	rows := max(leastHeld, min(mostHeld, trayBytes/spilledRow/len(s.parts)))
	return &tray{s: s, held: make([][]byte, len(s.parts)), most: rows * spilledRow}
}

func (t *tray) add(row *evidence.PageRow) error {
	if len(row.Key) != spilledKey {
		return fmt.Errorf("a key has %d bytes instead of %d", len(row.Key), spilledKey)
	}
	part := t.s.part(row.Key)
	b := t.held[part]
	if b == nil {
		b = make([]byte, 0, t.most)
	}
	b = append(b, row.Key...)
	b = append(b, row.Hash[:]...)
	for _, n := range []int64{row.Revision, row.SchemaVersion, row.Sequence} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n)) //nolint:gosec // number takes it back
	}
	deleted := byte(0)
	if row.Deleted {
		deleted = 1
	}
	t.held[part] = append(b, deleted)
	if len(t.held[part]) < t.most {
		return nil
	}
	return t.flush(part)
}

func (t *tray) flush(part int) error {
	err := t.s.write(part, t.held[part])
	t.held[part] = t.held[part][:0]
	return err
}

// finish writes what is held of any part.
func (t *tray) finish() error {
	for part := range t.held {
		if len(t.held[part]) == 0 {
			continue
		}
		if err := t.flush(part); err != nil {
			return err
		}
	}
	return nil
}
