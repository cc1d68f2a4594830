package source

import (
	"encoding/binary"
	"fmt"

	"lockstep.dev/pkg/fault"
)

// The columns that every statement for rows begins with, in their order.
const (
	keyColumn = iota
	revisionColumn
	deletedColumn
	schemaVersionColumn
	sequenceColumn
	contentColumn // of the read; the current rows have two flags here and the content behind them
)

// scanRow reads one row from its binary wire form. Scanning a million rows by
// reflection would cost as much as hashing them.
func (s *Source) scanRow(row *Row, raw [][]byte, content []byte) error {
	key, err := s.decodeKey(raw[keyColumn])
	if err != nil {
		return err
	}
	row.Key = key
	if len(raw[revisionColumn]) != 8 || len(raw[deletedColumn]) != 1 || len(raw[schemaVersionColumn]) != 8 || len(raw[sequenceColumn]) != 8 {
		return fmt.Errorf("read the source: the server did not answer in binary form")
	}
	row.Revision = int64From(raw[revisionColumn])
	row.Deleted = raw[deletedColumn][0] != 0
	row.SchemaVersion = int64From(raw[schemaVersionColumn])
	row.Sequence = int64From(raw[sequenceColumn])
	row.Content = content
	return nil
}

// TooLong says that the content of a row was longer than canon.MaxBytes and
// was not read.
func (r *Row) TooLong() bool { return string(r.Content) == tooLong }

func (s *Source) decodeKey(wire []byte) (string, error) {
	key, err := s.table.DecodeKey(wire)
	if err != nil {
		return "", fault.Wrap(err, fault.OrderViolation, "the source holds a key in a spelling that is not accepted")
	}
	return key, nil
}

func int64From(b []byte) int64 {
	return int64(binary.BigEndian.Uint64(b)) //nolint:gosec // the wire form is two's complement
}
