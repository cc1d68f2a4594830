package cli

import (
	"fmt"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/api"
	"lockstep.dev/services/lockstep/internal/demo"
)

const taskHead = "TASK\tCONSUMER\tTENANT\tCOLLECTION\tSCOPE\tSTATE\tSCANNED\tATTEMPT\tCREATED\tBECAUSE\n"

func writeTasks(w *tabwriter.Writer, tasks ...*centerv1.Task) {
	fmt.Fprint(w, taskHead)
	for _, t := range tasks {
		writeTask(w, t)
	}
}

func writeTask(w *tabwriter.Writer, t *centerv1.Task) {
	scope := api.Word(t.GetScope())
	if t.GetMode() == evidencev1.Mode_MODE_DRY_RUN {
		scope += " dry run"
	}
	fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", t.GetTaskId(), t.GetConsumer(), t.GetTenantId(), t.GetCollectionId(),
		scope, api.Word(t.GetState()), scanned(t.GetEstimate()), t.GetAttempt(), moment(t.GetCreatedAt()), because(t.GetCode(), t.GetWaitingBecause()))
}

// scanned is how far a scan is; "-" before there is a manifest to scan.
func scanned(e *centerv1.Estimate) string {
	if e == nil {
		return "-"
	}
	return percent(e.GetScannedPercent())
}

func percent(value float64) string { return fmt.Sprintf("%.1f%%", value) }

func pace(e *centerv1.Estimate) string {
	if e.GetRowsPerSecond() == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f rows a second", e.GetRowsPerSecond())
}

func because(values ...string) string { return or(first(values...), "-") }

func or(value, fallback string) string { return first(value, fallback) }

// moment is a time in UTC, to the second; "-" for none.
func moment(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().Format(time.RFC3339)
}

// writeFields prints names and values, without those that are empty.
func writeFields(w *tabwriter.Writer, fields ...[2]string) {
	for _, f := range fields {
		if f[1] != "" && f[1] != "-" {
			fmt.Fprintf(w, "%s\t%s\n", f[0], f[1])
		}
	}
}

func writeTaskDetail(w *tabwriter.Writer, t *centerv1.Task) {
	writeFields(w,
		[2]string{"task", t.GetTaskId()},
		[2]string{"consumer", t.GetConsumer()},
		[2]string{"tenant", fmt.Sprint(t.GetTenantId())},
		[2]string{"collection", t.GetCollectionId()},
		[2]string{"scope", api.Word(t.GetScope())},
		[2]string{"key", t.GetKey()},
		[2]string{"mode", api.Word(t.GetMode())},
		[2]string{"state", api.Word(t.GetState())},
		[2]string{"code", t.GetCode()},
		[2]string{"reason", t.GetReason()},
		[2]string{"waits because", t.GetWaitingBecause()},
		[2]string{"attempt", fmt.Sprint(t.GetAttempt())},
		[2]string{"grant epoch", fmt.Sprint(t.GetGrantEpoch())},
		[2]string{"manifest", api.Word(t.GetManifestState())},
		[2]string{"manifest rows", fmt.Sprint(t.GetRowCount())},
		[2]string{"manifest root", t.GetManifestRoot()},
		[2]string{"window start", moment(t.GetWindowStart())},
		[2]string{"created", moment(t.GetCreatedAt())},
		[2]string{"created by", t.GetCreatedBy()},
		[2]string{"next dispatch", moment(t.GetNextDispatchAt())},
		[2]string{"lease until", moment(t.GetLeaseUntil())},
		[2]string{"ended", moment(t.GetEndedAt())},
		[2]string{"scan", scanned(t.GetEstimate())},
		[2]string{"pace", pace(t.GetEstimate())},
		[2]string{"scan ends", moment(t.GetEstimate().GetScanEndsAt())},
	)
	writeFigures(w, t.GetProgress())
}

func writeFigures(w *tabwriter.Writer, p *centerv1.Progress) {
	if p == nil {
		return
	}
	writeFields(w,
		[2]string{"phase", api.Word(p.GetPhase())},
		[2]string{"scanned", fmt.Sprintf("%d at the center, %d local", p.GetCenterRowsScanned(), p.GetLocalRowsScanned())},
		[2]string{"compared", api.Word(p.GetVerified())},
		[2]string{"fetched", fmt.Sprint(p.GetFetched())},
		[2]string{"over the wire", demo.Bytes(p.GetWireBytes())},
		[2]string{"resumed", fmt.Sprint(p.GetResumed())},
		[2]string{"nothing retired", p.GetRetireCode()},
	)
	writeCounts(w, "", p.GetCounts())
}

func writeCounts(w *tabwriter.Writer, title string, counts []*evidencev1.ClassCount) {
	if len(counts) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\tFOUND\tREPAIRED\tSETTLED\tRETIRED\tREPORTED\tDEFERRED\tEXHAUSTED\tQUARANTINED\n", or(title, "CLASS"))
	for _, c := range counts {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", c.GetClass(), c.GetFound(), c.GetRepaired(), c.GetSettled(), c.GetRetired(),
			c.GetReported(), c.GetDeferred(), c.GetExhausted(), c.GetQuarantined())
	}
}

func writeResults(w *tabwriter.Writer, results []*centerv1.Result) {
	if len(results) == 0 {
		fmt.Fprintln(w, "no result yet")
	}
	for _, r := range results {
		fmt.Fprintf(w, "attempt %d\t%s\t%s\t%s\n", r.GetAttempt(), api.Word(r.GetState()), because(r.GetCode()), moment(r.GetReceivedAt()))
		writeFigures(w, r.GetFigures())
		if len(r.GetItems()) > 0 {
			fmt.Fprint(w, "\nRECORD\tREVISION\tCODE\n")
		}
		for _, item := range r.GetItems() {
			fmt.Fprintf(w, "%s\t%d\t%s\n", or(item.GetKey(), item.GetRange()), item.GetRevision(), item.GetCode())
		}
	}
}

const workHead = "TASK\tTENANT\tCOLLECTION\tSTATE\tPHASE\tATTEMPT\tSCANNED\tUPDATED\tBECAUSE\n"

func writeWork(w *tabwriter.Writer, work *consumerv1.Work) {
	state := api.Word(work.GetState())
	if work.GetPaused() {
		state += " paused"
	}
	fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%d/%d %s\t%s\t%s\n", work.GetTaskId(), work.GetTenantId(), work.GetCollectionId(), state,
		or(api.Word(work.GetPhase()), "-"), work.GetAttempt(), work.GetCenterRowsScanned(), work.GetRowCount(), percent(work.GetScannedPercent()), moment(work.GetUpdatedAt()),
		because(work.GetCode(), work.GetWaitingBecause()))
}

func writeWorkDetail(w *tabwriter.Writer, work *consumerv1.Work) {
	writeFields(w,
		[2]string{"task", work.GetTaskId()},
		[2]string{"tenant", fmt.Sprint(work.GetTenantId())},
		[2]string{"collection", work.GetCollectionId()},
		[2]string{"scope", api.Word(work.GetScope())},
		[2]string{"key", work.GetKey()},
		[2]string{"mode", api.Word(work.GetMode())},
		[2]string{"state", api.Word(work.GetState())},
		[2]string{"phase", api.Word(work.GetPhase())},
		[2]string{"paused", fmt.Sprint(work.GetPaused())},
		[2]string{"code", work.GetCode()},
		[2]string{"waits because", work.GetWaitingBecause()},
		[2]string{"attempt", fmt.Sprintf("%d, newest instruction %d", work.GetAttempt(), work.GetWantedAttempt())},
		[2]string{"retries", fmt.Sprint(work.GetRetryCount())},
		[2]string{"checkpoint", work.GetCheckpoint()},
		[2]string{"scanned", fmt.Sprintf("%d of %d at the center (%s), %d local", work.GetCenterRowsScanned(), work.GetRowCount(), percent(work.GetScannedPercent()), work.GetLocalRowsScanned())},
		[2]string{"fetched", fmt.Sprint(work.GetFetched())},
		[2]string{"over the wire", demo.Bytes(work.GetWireBytes())},
		[2]string{"nothing retired", work.GetRetireCode()},
		[2]string{"due", moment(work.GetDueAt())},
		[2]string{"lease until", moment(work.GetLeaseUntil())},
		[2]string{"created", moment(work.GetCreatedAt())},
		[2]string{"ended", moment(work.GetEndedAt())},
	)
	writeCounts(w, "", work.GetCounts())
}

const outcomeHead = "RECORD\tCLASS\tOUTCOME\tCODE\tCENTER\tLOCAL\tEVIDENCE\n"

func writeOutcomes(w *tabwriter.Writer, outcomes []*consumerv1.Outcome) {
	for _, o := range outcomes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.GetKey(), o.GetClass(), o.GetOutcome(), because(o.GetCode()),
			sideOf(o.CenterRevision, o.CenterDeleted), sideOf(o.LocalRevision, o.LocalDeleted), or(o.GetEvidenceId(), "-"))
	}
}

// sideOf is a side's revision of a record, and whether it is a tombstone.
func sideOf(revision *int64, deleted *bool) string {
	switch {
	case revision == nil:
		return "absent"
	case deleted != nil && *deleted:
		return fmt.Sprintf("%d deleted", *revision)
	}
	return fmt.Sprint(*revision)
}

// parseAll reads words of an enum.
func parseAll[E protoreflect.Enum](words []string) ([]E, error) {
	var out []E
	for _, word := range words {
		value, err := api.Parse[E](word)
		if err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	return out, nil
}
