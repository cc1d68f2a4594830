package audit

import (
	"fmt"
	"time"

	"lockstep.dev/pkg/evidence"
)

// BrokenError names the first seal that does not hold, and why.
type BrokenError struct {
	Seal int64
	Why  string
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("audit seal %d is broken: %s", e.Seal, e.Why)
}

// Verifier follows a chain seal by seal.
type Verifier struct {
	// AppKey is the service whose log it is.
	AppKey string
	// Keys gives the keys whose signatures made at a moment count.
	Keys func(at time.Time) []evidence.Key

	last Head
}

// Head is the newest seal that held; the zero Head before the first.
func (v *Verifier) Head() Head { return v.last }

// Next verifies the seal that follows: its place in the chain, its signed head,
// and the hash over exactly the rows of its range, which rows yields in the
// order of their ids. A BrokenError says that the seal does not hold; another
// error is one of rows.
func (v *Verifier) Next(s Seal, rows func(first, last int64, add func(Row) error) error) error {
	if why := v.misplaced(s.Head); why != "" {
		return &BrokenError{s.Seal, why}
	}
	if why := v.unsigned(s); why != "" {
		return &BrokenError{s.Seal, why}
	}
	h := NewHasher(s.Previous, s.FirstID, s.LastID)
	before := s.FirstID - 1
	err := rows(s.FirstID, s.LastID, func(r Row) error {
		if r.ID <= before || r.ID > s.LastID {
			return fmt.Errorf("row %d came out of order", r.ID)
		}
		before = r.ID
		h.Add(r)
		return nil
	})
	switch {
	case err != nil:
		return err
	case h.Rows() != s.Rows:
		return &BrokenError{s.Seal, fmt.Sprintf("it sealed %d rows, and ids %d to %d hold %d", s.Rows, s.FirstID, s.LastID, h.Rows())}
	case h.Sum() != s.Hash:
		return &BrokenError{s.Seal, fmt.Sprintf("the rows %d to %d are not those that were sealed", s.FirstID, s.LastID)}
	}
	v.last = s.Head
	return nil
}

func (v *Verifier) misplaced(h Head) string {
	switch {
	case h.Seal != v.last.Seal+1:
		return fmt.Sprintf("seal %d should follow seal %d", v.last.Seal+1, v.last.Seal)
	case h.FirstID != v.last.LastID+1 || h.LastID < h.FirstID:
		return fmt.Sprintf("it covers ids %d to %d, and the seals before end at %d", h.FirstID, h.LastID, v.last.LastID)
	case h.Previous != v.last.Hash:
		return "it does not name the hash of the seal before"
	case h.SealedAt.Before(v.last.SealedAt):
		return "it was sealed before the seal before"
	}
	return ""
}

// unsigned says what is wrong with the signed head. The moment it states
// chooses the keys: a key that was revoked signs nothing after its revocation.
func (v *Verifier) unsigned(s Seal) string {
	stated, err := parseHead(s.Envelope.Payload)
	if err != nil {
		return "its signed head can't be read"
	}
	if _, _, err := evidence.Verify(s.Envelope, TypeSealHead, v.Keys(stated.SealedAt)); err != nil {
		return fmt.Sprintf("its head is not signed by a key of %s that was valid at %s", v.AppKey, stated.SealedAt.UTC().Format(time.RFC3339))
	}
	switch {
	case stated.AppKey != v.AppKey:
		return fmt.Sprintf("its head is of %s, not of %s", stated.AppKey, v.AppKey)
	case !stated.SealedAt.Equal(s.SealedAt):
		return "its time is not the signed one"
	}
	stated.SealedAt = s.SealedAt
	want := s.Head
	want.AppKey = v.AppKey
	if stated != want {
		return "its figures are not the signed ones"
	}
	return ""
}
