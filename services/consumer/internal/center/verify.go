package center

import (
	"errors"

	"lockstep.dev/pkg/document"
	"lockstep.dev/pkg/evidence"
	"lockstep.dev/pkg/fault"
)

// Refusal is the stable code for a document that did not open.
func Refusal(err error) fault.Reason {
	switch {
	case errors.Is(err, evidence.ErrDocumentType):
		return fault.DocumentType
	case errors.Is(err, evidence.ErrSignature):
		return fault.SignatureInvalid
	case errors.Is(err, document.ErrUnknownField):
		return fault.DocumentUnknownField
	default:
		return fault.InvalidArgument
	}
}
