package document

import (
	"bytes"

	"lockstep.dev/pkg/protocol"
)

// Mismatch compares the coordinates a document states with the expected ones
// and gives the stable code of the first that differs, "" when all agree. A
// valid signature is no licence for any coordinates.
func Mismatch(got, want protocol.Coordinates) string {
	switch {
	case got.Source != want.Source, got.Consumer != want.Consumer:
		return "AUDIENCE_MISMATCH"
	case got.TaskID != want.TaskID:
		return "TASK_MISMATCH"
	case got.TenantID != want.TenantID:
		return "TENANT_MISMATCH"
	case got.CollectionID != want.CollectionID:
		return "COLLECTION_MISMATCH"
	case got.GrantEpoch != want.GrantEpoch:
		return "GRANT_EPOCH_MISMATCH"
	}
	return ""
}

// NonceMismatch compares the echoed nonce with the one asked with.
func NonceMismatch(got, want []byte) string {
	if len(want) == 0 || !bytes.Equal(got, want) {
		return "NONCE_MISMATCH"
	}
	return ""
}
