package fault

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
)

// ToStatus turns err into what a caller sees: a gRPC status with the fitting
// code, ErrorInfo, and BadRequest for named fields. It is the identity on nil.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	fault := classify(err)
	answer := status.New(fault.Code(), fault.Message)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: string(fault.Reason), Domain: Domain, Metadata: fault.Meta}}
	if len(fault.Fields) > 0 {
		bad := &errdetails.BadRequest{}
		for _, field := range fault.Fields {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: field.Name, Description: field.Message})
		}
		details = append(details, bad)
	}
	detailed, detailErr := answer.WithDetails(details...)
	if detailErr != nil { // a text that is no UTF-8; the code still says what matters
		return status.Error(fault.Code(), string(fault.Reason))
	}
	return detailed.Err()
}

// classify gives every error a code.
func classify(err error) *Error {
	if fault, ok := errors.AsType[*Error](err); ok {
		return fault
	}
	switch {
	case errors.Is(err, context.Canceled):
		return New(Unavailable, "the call was cancelled").WithCode(codes.Canceled)
	case errors.Is(err, context.DeadlineExceeded):
		return New(Unavailable, "the deadline passed").WithCode(codes.DeadlineExceeded)
	case unreachable(err):
		return New(Unavailable, "a database or a peer is unavailable; try again")
	}
	return fromFramework(err)
}

// fromFramework keeps the status of a refusal that gRPC itself made, such as a
// message over the size limit. A peer's status is not passed on: it answers us.
func fromFramework(err error) *Error {
	if received, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // not errors.As: a wrapped one comes from a peer
		switch code := received.GRPCStatus().Code(); code { //nolint:exhaustive // the rest is ours to explain
		case codes.Unimplemented:
			return New(NotFound, "no such method").WithCode(code)
		case codes.ResourceExhausted:
			return New(ResourceLimit, "a message is too large").WithCode(code)
		case codes.InvalidArgument:
			return New(InvalidArgument, "the request could not be read").WithCode(code)
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
			return New(Unavailable, "the call was ended").WithCode(code)
		}
	}
	return Wrap(err, Internal, "something broke inside; the log has it")
}

// unreachable reports a database that is away, full, or out of time, or a
// connection that was lost.
func unreachable(err error) bool {
	if refused, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		switch state := refused.SQLState(); {
		case len(state) != 5:
			return false
		case state[:2] == "08", state[:2] == "53": // connection; out of disk, memory, connections
			return true
		case state == "57014", state[:3] == "57P", state == "55P03", state == "25P03": // time-outs, shutdown
			return true
		default: // 40001 and 40P01: the retries are used up
			return state[:2] == "40"
		}
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// codeOf is the gRPC code that fits a reason.
func codeOf(reason Reason) codes.Code {
	switch reason {
	case InvalidArgument, CursorInvalid, KeyMismatch, CanonRefused, DocumentType, DocumentUnknownField,
		TaskMismatch, TenantMismatch, CollectionMismatch, AttemptMismatch, NonceMismatch, HashMismatch,
		GrantEpochMismatch, RevisionMismatch, ManifestMismatch, ResultInconsistent, FormatMismatch, EvidenceNotProven, KeyNotValid, BundleIncomplete:
		return codes.InvalidArgument
	case TaskNotFound, NotFound, LocatorMissing, TargetNotRegistered, RowGone:
		return codes.NotFound
	case SignatureInvalid, AudienceMismatch:
		return codes.Unauthenticated
	case PermissionDenied, IdentityMismatch, GrantRevoked, ScopeMismatch:
		return codes.PermissionDenied
	case RateLimited, ResourceLimit, ExtrasLimit:
		return codes.ResourceExhausted
	case KeyRangeMismatch:
		return codes.AlreadyExists
	case Unavailable:
		return codes.Unavailable
	case Internal, None:
		return codes.Internal
	case EpochMoved, MaterialiseFailed, ManifestNotReady, ManifestIncomplete, PageNotProven, OrderViolation,
		TaskTerminal, DispatchFailed, LeaseExpired, AttemptUnknown, DocumentStale, RollbackDetected, RetireBreaker,
		Quarantined, LocatorAmbiguous, RevisionZero, Missing, ExtraRow, LocalAhead, Tombstone, Stale, HashConflict,
		CancelledByOperator, RetriesExhausted, RollbackSuspected, NotRetirable, GivenUp, Paused, ExecutionDisabled, BehindAnother, LoadGuard:
		return codes.FailedPrecondition
	}
	return codes.Internal
}
