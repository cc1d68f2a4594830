package document

import (
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

// fields reads a message field by field and keeps the first error.
type fields struct{ err error }

func (p *fields) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *fields) word(e protoreflect.Enum, prefix, field string) string {
	w, err := closed(e, prefix, field)
	p.keep(err)
	return w
}

func (p *fields) time(ts *timestamppb.Timestamp) time.Time {
	t, err := timeFromProto(ts)
	p.keep(err)
	return t
}

func (p *fields) node(field string, b []byte) evidence.Node {
	n, err := nodeFromProto(field, b)
	p.keep(err)
	return n
}

func (p *fields) hash(field string, b []byte) canon.Hash { return canon.Hash(p.node(field, b)) }
