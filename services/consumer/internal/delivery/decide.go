package delivery

import (
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
	"lockstep.dev/services/consumer/internal/store"
)

// known is what this side holds of a record.
type known struct {
	// local is the row, nil for none; retired says that it is out of the image.
	local   *evidence.Row
	retired bool
	// mark is the highest word before, nil for none.
	mark *store.Mark
}

// decide is delivery's own rule, and pure. A word without a nonce may be as old
// as the network likes, so it changes a row only where it is above everything
// that was stated before; otherwise it is ignored, recorded or refused.
//
//	row      word is                      then
//	any      of an older center epoch     ROLLBACK_DETECTED
//	live     of a newer epoch than that   applied, unless it is the same value: DUPLICATE
//	         which stated so much of it
//	live     lower                        OLDER, ignored
//	live     equal, the same value        DUPLICATE
//	live     equal, another value         CONFLICT, recorded, not overwritten
//	live     higher                       applied, unless below what was stated: ROLLBACK_DETECTED
//	retired  not above the floor          RETIRED, ignored
//	retired  above the floor              applied: the record is back
//	none     below what was stated        ROLLBACK_DETECTED
//	none     otherwise                    applied
func decide(k known, w word) (store.Received, fault.Reason) {
	if k.mark != nil && w.epoch < k.mark.CenterEpoch {
		return "", fault.RollbackDetected
	}
	if k.local != nil && !k.retired {
		same := w.row.Revision == k.local.Revision && w.row.Hash == k.local.Hash && w.row.Deleted == k.local.Deleted
		switch {
		case same:
			return store.Duplicate, ""
		case k.mark != nil && w.epoch > k.mark.CenterEpoch && k.local.Revision <= k.mark.Revision:
			return store.Applied, "" // the center stated the row's value, or a later one, under an older epoch
		case w.row.Revision < k.local.Revision:
			return store.Older, ""
		case w.row.Revision == k.local.Revision:
			return store.Conflict, ""
		}
	}
	switch {
	case k.retired && k.mark == nil:
		// Retired by the host itself, or before floors were kept.
		if w.row.Revision <= k.local.Revision {
			return store.Retired, ""
		}
	case k.mark == nil:
	case k.retired || k.mark.Retired:
		if w.epoch == k.mark.CenterEpoch && w.row.Revision <= k.mark.Revision {
			return store.Retired, ""
		}
	case w.epoch == k.mark.CenterEpoch && w.row.Revision < k.mark.Revision:
		return "", fault.RollbackDetected
	}
	return store.Applied, ""
}

// word is a verified snapshot as far as the decision needs it.
type word struct {
	epoch int64
	row   evidence.Row
}
