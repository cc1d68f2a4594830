// Package fault is the one error that crosses the wire: a stable code, a
// sentence for people, and facts for programs.
//
// An error without a code reaches a caller as INTERNAL and without its text;
// the text goes to the log, once, where the call is answered.
package fault

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Domain is the ErrorInfo domain of every code.
const Domain = "lockstep"

// Field names a request's field and what is wrong with it.
type Field struct {
	Name    string
	Message string
}

// Error is a refusal or a failure with a code. Message and Meta reach the
// caller: no content, key material or token may be in them.
type Error struct {
	Reason  Reason
	Message string
	Meta    map[string]string
	Fields  []Field

	code  codes.Code // OK: the reason's own
	cause error
}

// New makes an error with a code.
func New(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Wrap gives err a code. The cause stays on this side: callers see only the message.
func Wrap(err error, reason Reason, format string, args ...any) *Error {
	e := New(reason, format, args...)
	e.cause = err
	return e
}

// With adds a fact.
func (e *Error) With(key, value string) *Error {
	if e.Meta == nil {
		e.Meta = map[string]string{}
	}
	e.Meta[key] = value
	return e
}

// WithField adds a field of the request and what is wrong with it.
func (e *Error) WithField(name, format string, args ...any) *Error {
	e.Fields = append(e.Fields, Field{Name: name, Message: fmt.Sprintf(format, args...)})
	return e
}

// WithCode replaces the gRPC code that fits the reason in general.
func (e *Error) WithCode(code codes.Code) *Error {
	e.code = code
	return e
}

// Code is the gRPC code the error travels under.
func (e *Error) Code() codes.Code {
	if e.code != codes.OK {
		return e.code
	}
	return codeOf(e.Reason)
}

func (e *Error) Error() string {
	text := string(e.Reason)
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.cause }

// ReasonOf returns the code of an error, made here or received from a peer.
// A peer that could not be reached in time is Unavailable; an error without a
// code gives None.
func ReasonOf(err error) Reason {
	if fault, ok := errors.AsType[*Error](err); ok {
		return fault.Reason
	}
	if info := errorInfo(err); info != nil {
		return Reason(info.GetReason())
	}
	switch remoteCode(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return Unavailable
	default:
		return None
	}
}

// MetaOf returns the facts of an error, nil if it has none.
func MetaOf(err error) map[string]string {
	if fault, ok := errors.AsType[*Error](err); ok {
		return maps.Clone(fault.Meta)
	}
	return maps.Clone(errorInfo(err).GetMetadata())
}

// FieldsOf returns the request's fields that an error names, made here or received.
func FieldsOf(err error) []Field {
	if fault, ok := errors.AsType[*Error](err); ok {
		return slices.Clone(fault.Fields)
	}
	received, ok := status.FromError(err)
	if err == nil || !ok {
		return nil
	}
	var fields []Field
	for _, detail := range received.Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, violation := range bad.GetFieldViolations() {
				fields = append(fields, Field{Name: violation.GetField(), Message: violation.GetDescription()})
			}
		}
	}
	return fields
}

// errorInfo finds our ErrorInfo in a gRPC status error, nil if there is none.
func errorInfo(err error) *errdetails.ErrorInfo {
	if err == nil {
		return nil
	}
	received, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, detail := range received.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

func remoteCode(err error) codes.Code {
	if received, ok := status.FromError(err); ok {
		return received.Code()
	}
	return codes.Unknown
}
