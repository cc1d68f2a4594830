package document

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"lockstep.dev/pkg/protocol"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

// The contracts' enum names are the protocol's words behind a prefix.
const (
	scopePrefix    = "SCOPE_"
	modePrefix     = "MODE_"
	statePrefix    = "TASK_STATE_"
	phasePrefix    = "PHASE_"
	verifiedPrefix = "VERIFIED_"
)

// word gives the protocol's word for an enum value; "" for UNSPECIFIED and for
// a number this version does not know.
func word(e protoreflect.Enum, prefix string) string {
	d := e.Descriptor().Values().ByNumber(e.Number())
	if d == nil || d.Number() == 0 {
		return ""
	}
	return strings.TrimPrefix(string(d.Name()), prefix)
}

// closed is word for a field that must say something.
func closed(e protoreflect.Enum, prefix, field string) (string, error) {
	w := word(e, prefix)
	if w == "" {
		return "", fmt.Errorf("%w: %s is not one of the known values", ErrMalformed, field)
	}
	return w, nil
}

// ScopeToProto gives the contract's value.
func ScopeToProto(s protocol.Scope) evidencev1.Scope {
	return evidencev1.Scope(evidencev1.Scope_value[scopePrefix+string(s)])
}

// ScopeFromProto gives "" for UNSPECIFIED.
func ScopeFromProto(s evidencev1.Scope) protocol.Scope { return protocol.Scope(word(s, scopePrefix)) }

// ModeToProto gives the contract's value.
func ModeToProto(m protocol.Mode) evidencev1.Mode {
	return evidencev1.Mode(evidencev1.Mode_value[modePrefix+string(m)])
}

// ModeFromProto gives "" for UNSPECIFIED.
func ModeFromProto(m evidencev1.Mode) protocol.Mode { return protocol.Mode(word(m, modePrefix)) }

// StateToProto gives the contract's value.
func StateToProto(s protocol.State) evidencev1.TaskState {
	return evidencev1.TaskState(evidencev1.TaskState_value[statePrefix+string(s)])
}

// StateFromProto gives "" for UNSPECIFIED.
func StateFromProto(s evidencev1.TaskState) protocol.State {
	return protocol.State(word(s, statePrefix))
}

// PhaseToProto gives the contract's value.
func PhaseToProto(p protocol.Phase) evidencev1.Phase {
	return evidencev1.Phase(evidencev1.Phase_value[phasePrefix+string(p)])
}

// PhaseFromProto gives "" for UNSPECIFIED.
func PhaseFromProto(p evidencev1.Phase) protocol.Phase { return protocol.Phase(word(p, phasePrefix)) }

// VerifiedToProto gives the contract's value.
func VerifiedToProto(v protocol.Verified) evidencev1.Verified {
	return evidencev1.Verified(evidencev1.Verified_value[verifiedPrefix+string(v)])
}

// VerifiedFromProto gives "" for UNSPECIFIED.
func VerifiedFromProto(v evidencev1.Verified) protocol.Verified {
	return protocol.Verified(word(v, verifiedPrefix))
}
