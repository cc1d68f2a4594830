// Package bundle is a file of evidence about one task, and its verification
// without the services, their databases or a network.
//
// Export makes it of what the services answer: the one way for the command line
// and both consoles. What a consumer gives alone has no manifest header; there
// the center's signed instruction stands in for it.
//
// A bundle is JSON Lines: a line that names the task, then one signed envelope
// a line, each as it was signed, and a line that ends it. It promises that what
// it calls proven follows from signatures under keys of the trust store that
// were valid when they signed, and from hashes; and that it says what does not.
// It never trusts a line for what it says beside its envelope. One line is held
// at a time.
package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/protocol"
)

// Kind says what a line is. The order of the kinds is the order of the lines.
type Kind string

// The kinds.
const (
	Begin       Kind = "bundle"
	Header      Kind = "header"      // the center's, of the manifest
	Report      Kind = "report"      // the consumer's, as the center stored it, by attempt
	Membership  Kind = "membership"  // a record's place in the manifest
	Instruction Kind = "instruction" // the center's, as the consumer stored it
	Result      Kind = "result"      // the consumer's report as it keeps it
	Word        Kind = "word"        // the center's, about one record, by key
	End         Kind = "end"
)

// order of the lines.
var order = map[Kind]int{Begin: 1, Header: 2, Report: 3, Membership: 4, Instruction: 5, Result: 6, Word: 7, End: 8}

const (
	version = 1
	// maxLine bounds a line: an envelope around the largest content.
	maxLine = 16 << 20
)

// Line is one line. What is beside the envelope is a hint that nothing rests on.
type Line struct {
	Kind     Kind               `json:"kind"`
	Version  int                `json:"version,omitempty"`
	TaskID   string             `json:"task_id,omitempty"`
	Key      string             `json:"key,omitempty"`
	Outcome  string             `json:"outcome,omitempty"`
	Envelope *evidence.Envelope `json:"envelope,omitempty"`
	Included *Neighbour         `json:"included,omitempty"`
	Absent   *Absent            `json:"absent,omitempty"`
	Lines    int                `json:"lines,omitempty"`
	SHA256   string             `json:"sha256,omitempty"`
}

// Neighbour is a row with its path to the root, in hex.
type Neighbour struct {
	Key         string   `json:"key"`
	Revision    int64    `json:"revision"`
	ContentHash string   `json:"content_hash"`
	Deleted     bool     `json:"deleted"`
	Index       uint64   `json:"index"`
	Path        []string `json:"path"`
}

// Absent is the two neighbours that leave no place for a key.
type Absent struct {
	Left  *Neighbour `json:"left,omitempty"`
	Right *Neighbour `json:"right,omitempty"`
}

// NeighbourOf gives the bundle's form; nil for none.
func NeighbourOf(n *evidence.Neighbour) *Neighbour {
	if n == nil {
		return nil
	}
	out := &Neighbour{
		Key: protocol.FormatKey(n.Row.Key), Revision: n.Row.Revision, ContentHash: n.Row.Hash.String(), Deleted: n.Row.Deleted,
		Index: n.Index, Path: make([]string, len(n.Path)),
	}
	for i := range n.Path {
		out.Path[i] = hex.EncodeToString(n.Path[i][:])
	}
	return out
}

func (n *Neighbour) read() (*evidence.Neighbour, error) {
	if n == nil {
		return nil, nil
	}
	key, err := protocol.ParseKey(n.Key)
	if err != nil {
		return nil, err
	}
	sum, err := canon.ParseHash(n.ContentHash)
	if err != nil {
		return nil, fmt.Errorf("content_hash: %w", err)
	}
	out := &evidence.Neighbour{Row: evidence.Row{Key: key, Revision: n.Revision, Hash: sum, Deleted: n.Deleted}, Index: n.Index}
	for _, text := range n.Path {
		node, err := hex.DecodeString(text)
		if err != nil || len(node) != len(evidence.Node{}) {
			return nil, fmt.Errorf("path: %q is no hash", text)
		}
		out.Path = append(out.Path, evidence.Node(node))
	}
	return out, nil
}

// Writer writes a bundle.
type Writer struct {
	out   io.Writer
	sum   hash.Hash
	lines int
}

// NewWriter begins a bundle about a task.
func NewWriter(out io.Writer, taskID string) (*Writer, error) {
	w := &Writer{out: out, sum: sha256.New()}
	return w, w.Add(Line{Kind: Begin, Version: version, TaskID: taskID})
}

// Add writes one line.
func (w *Writer) Add(line Line) error {
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("write a bundle: %w", err)
	}
	text = append(text, '\n')
	w.sum.Write(text)
	w.lines++
	if _, err := w.out.Write(text); err != nil {
		return fmt.Errorf("write a bundle: %w", err)
	}
	return nil
}

// Close writes the line that ends the bundle. Without it the bundle is cut off.
func (w *Writer) Close() error {
	return w.Add(Line{Kind: End, Lines: w.lines, SHA256: hex.EncodeToString(w.sum.Sum(nil))})
}
