package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

const pageTokenMember = "nextPageToken"

var errNotRows = errors.New("the answer is not a list alone")

// RowsOf takes a list's answer apart: its one repeated member and the token of
// the next page. An answer that says more than that is refused: it would be lost.
func RowsOf(page []byte) (rows []json.RawMessage, next string, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(page, &members); err != nil {
		return nil, "", fmt.Errorf("read a page: %w", err)
	}
	if token, ok := members[pageTokenMember]; ok {
		if err := json.Unmarshal(token, &next); err != nil {
			return nil, "", fmt.Errorf("read a page: %w", err)
		}
		delete(members, pageTokenMember)
	}
	if len(members) != 1 {
		return nil, "", errNotRows
	}
	for _, member := range members {
		if err := json.Unmarshal(member, &rows); err != nil || rows == nil {
			return nil, "", errNotRows
		}
	}
	return rows, next, nil
}

// LinesOf writes rows one a line.
func LinesOf(rows []json.RawMessage) ([]byte, error) {
	var text bytes.Buffer
	for _, row := range rows {
		if err := json.Compact(&text, row); err != nil {
			return nil, fmt.Errorf("write a row: %w", err)
		}
		text.WriteByte('\n')
	}
	return text.Bytes(), nil
}
