package create

import (
	"unicode/utf8"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/protocol"
)

// Lengths that a request may have; beyond them somebody is testing us.
const (
	maxName   = 200
	maxReason = 500
)

// check refuses a malformed request by its fields.
func check(r Request) error {
	bad := fault.New(fault.InvalidArgument, "the request is malformed")
	name := func(field, value string) {
		switch {
		case value == "":
			bad = bad.WithField(field, "is required")
		case len(value) > maxName || !utf8.ValidString(value):
			bad = bad.WithField(field, "is text of at most %d bytes", maxName)
		}
	}
	name("consumer", r.Consumer)
	switch r.What {
	case protocol.Collection, protocol.Record:
		name("collection_id", r.CollectionID)
		if r.TenantID == 0 {
			bad = bad.WithField("tenant_id", "is required")
		}
	case protocol.All:
		if r.TenantID != 0 || r.CollectionID != "" {
			bad = bad.WithField("scope", "ALL names no tenant and no collection")
		}
	default:
		bad = bad.WithField("scope", "is ALL, COLLECTION or RECORD")
	}
	if _, err := protocol.ParseKey(r.Key); r.What == protocol.Record && err != nil {
		bad = bad.WithField("key", "%s", err)
	}
	if r.What != protocol.Record && r.Key != "" {
		bad = bad.WithField("key", "only RECORD names a record")
	}
	if r.Mode != protocol.Repair && r.Mode != protocol.DryRun {
		bad = bad.WithField("mode", "is REPAIR or DRY_RUN")
	}
	checkOverride(r, bad)
	if len(bad.Fields) > 0 {
		return bad
	}
	return nil
}

func checkOverride(r Request, bad *fault.Error) {
	if r.BreakerOverride && r.OverrideReason == "" {
		_ = bad.WithField("override_reason", "an override needs one")
	}
	if len(r.OverrideReason) > maxReason {
		_ = bad.WithField("override_reason", "is at most %d bytes", maxReason)
	}
	if !r.BreakerOverride && r.OverrideReason != "" {
		_ = bad.WithField("override_reason", "there is no override")
	}
}
