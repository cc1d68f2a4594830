package audit

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/evidence"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
)

// ErrHead: the signed bytes are no head that this version can read.
var ErrHead = errors.New("malformed seal head")

// Sign makes the envelope of a head.
func Sign(s *evidence.Signer, h Head) (evidence.Envelope, error) {
	payload, err := proto.Marshal(&auditv1.SealHead{
		AppKey: h.AppKey, SealId: h.Seal, FirstId: h.FirstID, LastId: h.LastID, RowCount: int32(h.Rows), //nolint:gosec // a seal's batch is bounded
		Previous: h.Previous[:], Hash: h.Hash[:], SealedAt: timestamppb.New(h.SealedAt),
	})
	if err != nil {
		return evidence.Envelope{}, fmt.Errorf("serialise the head of audit seal %d: %w", h.Seal, err)
	}
	return s.Sign(TypeSealHead, payload), nil
}

// parseHead reads a head's bytes. They are believed only once they are verified.
func parseHead(payload []byte) (Head, error) {
	var m auditv1.SealHead
	if err := proto.Unmarshal(payload, &m); err != nil {
		return Head{}, fmt.Errorf("%w: %w", ErrHead, err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 || len(m.GetPrevious()) != len(Hash{}) || len(m.GetHash()) != len(Hash{}) || m.GetSealedAt().CheckValid() != nil {
		return Head{}, ErrHead
	}
	return Head{
		AppKey: m.GetAppKey(), Seal: m.GetSealId(), FirstID: m.GetFirstId(), LastID: m.GetLastId(), Rows: int(m.GetRowCount()),
		Previous: Hash(m.GetPrevious()), Hash: Hash(m.GetHash()), SealedAt: m.GetSealedAt().AsTime(),
	}, nil
}
