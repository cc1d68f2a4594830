package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
)

func TestTheConstantsAreTheContract(t *testing.T) {
	contract := map[fault.Reason]bool{}
	for number, name := range evidencev1.Reason_name {
		if number != 0 {
			contract[fault.Reason(strings.TrimPrefix(name, "REASON_"))] = true
		}
	}
	for _, reason := range fault.All() {
		if !contract[reason] {
			t.Errorf("%s is not in the contract, or here twice", reason)
		}
		delete(contract, reason)
	}
	for reason := range contract {
		t.Errorf("%s of the contract has no constant", reason)
	}
}

func TestEveryReasonHasAFittingCode(t *testing.T) {
	for _, reason := range fault.All() {
		code := fault.New(reason, "text").Code()
		if code == codes.OK || code == codes.Unknown || (code == codes.Internal) != (reason == fault.Internal) {
			t.Errorf("%s travels as %s", reason, code)
		}
	}
}

func TestARoundTripKeepsReasonMetaAndFields(t *testing.T) {
	sent := fault.New(fault.TaskTerminal, "task %d has ended", 7).With("task_state", "FAILED").WithField("task_id", "has ended")
	received := fault.ToStatus(fmt.Errorf("report: %w", sent))
	if got := status.Code(received); got != codes.FailedPrecondition {
		t.Errorf("code %s, want FailedPrecondition", got)
	}
	if got := fault.ReasonOf(fmt.Errorf("call: %w", received)); got != fault.TaskTerminal {
		t.Errorf("reason %q, want TASK_TERMINAL", got)
	}
	if got := fault.MetaOf(received)["task_state"]; got != "FAILED" {
		t.Errorf("task_state %q, want FAILED", got)
	}
	if got := fault.FieldsOf(received); len(got) != 1 || got[0] != (fault.Field{Name: "task_id", Message: "has ended"}) {
		t.Errorf("fields %v", got)
	}
	if got := status.Convert(received).Message(); got != "task 7 has ended" {
		t.Errorf("message %q", got)
	}
}

func TestNoTextOfAnUnknownErrorReachesTheCaller(t *testing.T) {
	for name, err := range map[string]error{
		"an_unknown_error":  errors.New("secret"),
		"a_wrapped_cause":   fault.Wrap(errors.New("secret"), fault.Unavailable, "try later"),
		"a_database_error":  &pgconn.PgError{Code: "22P02", Message: "secret"},
		"a_peer's_answer":   fmt.Errorf("call: %w", status.Error(codes.NotFound, "secret")),
		"text_without_UTF8": fault.New(fault.NotFound, "secret \xff"),
	} {
		t.Run(name, func(t *testing.T) {
			if got := fault.ToStatus(err); strings.Contains(got.Error(), "secret") && name != "text_without_UTF8" {
				t.Errorf("the caller reads %v", got)
			}
			if fault.ToStatus(err) == nil {
				t.Error("an error became none")
			}
		})
	}
	if fault.ToStatus(nil) != nil || fault.ReasonOf(nil) != fault.None || fault.MetaOf(nil) != nil || fault.FieldsOf(nil) != nil {
		t.Error("no error became one")
	}
}

func TestToStatus(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		code   codes.Code
		reason fault.Reason
	}{
		"unknown":                  {errors.New("x"), codes.Internal, fault.Internal},
		"cancelled":                {fmt.Errorf("q: %w", context.Canceled), codes.Canceled, fault.Unavailable},
		"deadline":                 {context.DeadlineExceeded, codes.DeadlineExceeded, fault.Unavailable},
		"disk_full":                {&pgconn.PgError{Code: "53100"}, codes.Unavailable, fault.Unavailable},
		"too_many_connections":     {&pgconn.PgError{Code: "53300"}, codes.Unavailable, fault.Unavailable},
		"statement_timeout":        {&pgconn.PgError{Code: "57014"}, codes.Unavailable, fault.Unavailable},
		"lock_timeout":             {&pgconn.PgError{Code: "55P03"}, codes.Unavailable, fault.Unavailable},
		"database_shuts_down":      {&pgconn.PgError{Code: "57P01"}, codes.Unavailable, fault.Unavailable},
		"conflict_retries_used":    {&pgconn.PgError{Code: "40001"}, codes.Unavailable, fault.Unavailable},
		"constraint":               {&pgconn.PgError{Code: "23505"}, codes.Internal, fault.Internal},
		"connection_refused":       {&net.OpError{Op: "dial", Err: errors.New("refused")}, codes.Unavailable, fault.Unavailable},
		"connection_cut":           {fmt.Errorf("commit: %w", io.ErrUnexpectedEOF), codes.Unavailable, fault.Unavailable},
		"unimplemented":            {status.Error(codes.Unimplemented, "x"), codes.Unimplemented, fault.NotFound},
		"message_too_large":        {status.Error(codes.ResourceExhausted, "x"), codes.ResourceExhausted, fault.ResourceLimit},
		"with_a_code_of_its_own":   {fault.New(fault.PermissionDenied, "x").WithCode(codes.Unauthenticated), codes.Unauthenticated, fault.PermissionDenied},
		"a_peer_that_is_not_there": {fmt.Errorf("c: %w", status.Error(codes.Unavailable, "x")), codes.Internal, fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			got := fault.ToStatus(test.err)
			if status.Code(got) != test.code || fault.ReasonOf(got) != test.reason {
				t.Errorf("%s %s, want %s %s", status.Code(got), fault.ReasonOf(got), test.code, test.reason)
			}
		})
	}
}

func TestReasonOfAPeerThatDidNotAnswerIsUnavailable(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded} {
		if got := fault.ReasonOf(fmt.Errorf("dispatch: %w", status.Error(code, "x"))); got != fault.Unavailable {
			t.Errorf("%s gives %q, want UNAVAILABLE", code, got)
		}
	}
	if got := fault.ReasonOf(errors.New("x")); got != fault.None {
		t.Errorf("an error without a code has %q", got)
	}
}

func TestInternalErrorsAreLoggedOnceAndOthersNever(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		logs int
	}{
		"internal": {errors.New("broken"), 1}, "refusal": {fault.New(fault.TaskNotFound, "no"), 0}, "none": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.DebugLevel)
			intercept := fault.UnaryServer(zap.New(core))
			_, err := intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"},
				func(context.Context, any) (any, error) { return nil, test.err })
			if (err == nil) != (test.err == nil) {
				t.Errorf("got %v", err)
			}
			if logs.Len() != test.logs {
				t.Errorf("%d log lines, want %d", logs.Len(), test.logs)
			}
		})
	}
}
