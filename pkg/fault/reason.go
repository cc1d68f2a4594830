package fault

import "slices"

// Reason is one of the closed set of stable codes. The words are those of the
// contract's enum Reason, without its prefix; a test holds the two together.
type Reason string

// None is no code: no error, or one that carries none.
const None Reason = ""

// The codes. Their order is the contract's.
const (
	// The grant of (consumer, tenant, collection) is not effective.
	GrantRevoked Reason = "GRANT_REVOKED"
	// The grant's epoch is no longer the one the task was made under.
	EpochMoved Reason = "EPOCH_MOVED"
	// A record, tenant or collection lies outside the task's coordinates.
	ScopeMismatch Reason = "SCOPE_MISMATCH"
	// max_rows or max_pages would be exceeded.
	ResourceLimit Reason = "RESOURCE_LIMIT"
	// The manifest could not be made within its try budget.
	MaterialiseFailed Reason = "MATERIALISE_FAILED"
	// The manifest was asked for before it was complete.
	ManifestNotReady Reason = "MANIFEST_NOT_READY"
	// The manifest's pages do not add up to its header.
	ManifestIncomplete Reason = "MANIFEST_INCOMPLETE"
	// A page, or the index, does not fold into the signed root.
	PageNotProven Reason = "PAGE_NOT_PROVEN"
	// A side yielded keys out of order or in a foreign spelling.
	OrderViolation Reason = "ORDER_VIOLATION"
	// A cursor is no valid key or belongs to another task.
	CursorInvalid Reason = "CURSOR_INVALID"
	// The task has ended; its state is in the error's metadata.
	TaskTerminal Reason = "TASK_TERMINAL"
	// No such task for the caller.
	TaskNotFound Reason = "TASK_NOT_FOUND"
	// No address is registered for the consumer.
	TargetNotRegistered Reason = "TARGET_NOT_REGISTERED"
	// The dispatch budget is spent.
	DispatchFailed Reason = "DISPATCH_FAILED"
	// The consumer's lease ran out with no attempt left.
	LeaseExpired Reason = "LEASE_EXPIRED"
	// A report names an attempt that was never dispatched.
	AttemptUnknown Reason = "ATTEMPT_UNKNOWN"
	// A report contradicts itself or the manifest.
	ResultInconsistent Reason = "RESULT_INCONSISTENT"
	// An identity in a body differs from the verified one.
	IdentityMismatch Reason = "IDENTITY_MISMATCH"
	// The caller is not known, or may not do this.
	PermissionDenied Reason = "PERMISSION_DENIED"
	// A signature does not verify.
	SignatureInvalid Reason = "SIGNATURE_INVALID"
	// A document is of another type than the place asks for.
	DocumentType Reason = "DOCUMENT_TYPE"
	// A document has fields this version does not know.
	DocumentUnknownField Reason = "DOCUMENT_UNKNOWN_FIELD"
	// A signed answer is older than snapshot_max_age.
	DocumentStale Reason = "DOCUMENT_STALE"
	// A document was signed by or for somebody else.
	AudienceMismatch   Reason = "AUDIENCE_MISMATCH"
	TaskMismatch       Reason = "TASK_MISMATCH"
	TenantMismatch     Reason = "TENANT_MISMATCH"
	CollectionMismatch Reason = "COLLECTION_MISMATCH"
	KeyMismatch        Reason = "KEY_MISMATCH"
	AttemptMismatch    Reason = "ATTEMPT_MISMATCH"
	NonceMismatch      Reason = "NONCE_MISMATCH"
	// Content does not give the stated content hash.
	HashMismatch Reason = "HASH_MISMATCH"
	// Content has no canonical form.
	CanonRefused Reason = "CANON_REFUSED"
	// The record is in the frozen manifest and gone from the source.
	RowGone Reason = "ROW_GONE"
	// A signed word is older than one seen before under the same center epoch.
	RollbackDetected Reason = "ROLLBACK_DETECTED"
	// Too large a share of the image would be retired.
	RetireBreaker Reason = "RETIRE_BREAKER"
	// More candidates than max_pending_extras.
	ExtrasLimit Reason = "EXTRAS_LIMIT"
	// The row can't be repaired by trying again.
	Quarantined Reason = "QUARANTINED"
	RateLimited Reason = "RATE_LIMITED"
	// A business key was used for another range.
	KeyRangeMismatch Reason = "KEY_RANGE_MISMATCH"
	LocatorMissing   Reason = "LOCATOR_MISSING"
	LocatorAmbiguous Reason = "LOCATOR_AMBIGUOUS"
	// The seven difference classes.
	RevisionZero Reason = "REVISION_ZERO"
	Missing      Reason = "MISSING"
	ExtraRow     Reason = "EXTRA_ROW"
	LocalAhead   Reason = "LOCAL_AHEAD"
	Tombstone    Reason = "TOMBSTONE"
	Stale        Reason = "STALE"
	HashConflict Reason = "HASH_CONFLICT"
	// A request's field is missing or malformed; the fields are in BadRequest.
	InvalidArgument Reason = "INVALID_ARGUMENT"
	// An operator cancelled the task.
	CancelledByOperator Reason = "CANCELLED_BY_OPERATOR"
	// The optimistic lock was lost max_repair_retries times.
	RetriesExhausted Reason = "RETRIES_EXHAUSTED"
	// The databases' identity changed; no absence proof is signed.
	RollbackSuspected Reason = "ROLLBACK_SUSPECTED"
	// The canonicalisation or key kind is not the one this side speaks.
	FormatMismatch Reason = "FORMAT_MISMATCH"
	// Created after the window opened, without a create time, or held by an
	// operator: reported, never retired.
	NotRetirable Reason = "NOT_RETIRABLE"
	// The peer or a database could not be reached.
	Unavailable Reason = "UNAVAILABLE"
	// A document names another grant epoch or center epoch than its task.
	GrantEpochMismatch Reason = "GRANT_EPOCH_MISMATCH"
	// A snapshot's revision is below 1 or below the one expected.
	RevisionMismatch Reason = "REVISION_MISMATCH"
	// Something broke inside; the log has it.
	Internal Reason = "INTERNAL"
	// No such object of another kind than a task.
	NotFound Reason = "NOT_FOUND"
	// A document states another manifest than the task's.
	ManifestMismatch Reason = "MANIFEST_MISMATCH"
	// Dispatched work waited longer than dispatch_give_up.
	GivenUp Reason = "GIVEN_UP"
	// Waiting: an operator paused the work.
	Paused Reason = "PAUSED"
	// Waiting: the consumer's execution switch is off.
	ExecutionDisabled Reason = "EXECUTION_DISABLED"
	// Waiting: the consumer is busy with another task.
	BehindAnother Reason = "BEHIND_ANOTHER"
	// Waiting: the database that is read has too much to do for others.
	LoadGuard Reason = "LOAD_GUARD"
	// Evidence of a row, or of its absence, does not lead into the signed root.
	EvidenceNotProven Reason = "EVIDENCE_NOT_PROVEN"
	// The signer's key was not valid when the document was signed: revoked before,
	// or outside its window.
	KeyNotValid Reason = "KEY_NOT_VALID"
	// A bundle of evidence lacks lines, or its end.
	BundleIncomplete Reason = "BUNDLE_INCOMPLETE"
)

var all = []Reason{
	GrantRevoked, EpochMoved, ScopeMismatch, ResourceLimit, MaterialiseFailed, ManifestNotReady,
	ManifestIncomplete, PageNotProven, OrderViolation, CursorInvalid, TaskTerminal, TaskNotFound,
	TargetNotRegistered, DispatchFailed, LeaseExpired, AttemptUnknown, ResultInconsistent, IdentityMismatch,
	PermissionDenied, SignatureInvalid, DocumentType, DocumentUnknownField, DocumentStale, AudienceMismatch,
	TaskMismatch, TenantMismatch, CollectionMismatch, KeyMismatch, AttemptMismatch, NonceMismatch, HashMismatch,
	CanonRefused, RowGone, RollbackDetected, RetireBreaker, ExtrasLimit, Quarantined, RateLimited,
	KeyRangeMismatch, LocatorMissing, LocatorAmbiguous, RevisionZero, Missing, ExtraRow, LocalAhead, Tombstone,
	Stale, HashConflict, InvalidArgument, CancelledByOperator, RetriesExhausted, RollbackSuspected,
	FormatMismatch, NotRetirable, Unavailable, GrantEpochMismatch, RevisionMismatch, Internal, NotFound,
	ManifestMismatch, GivenUp, Paused, ExecutionDisabled, BehindAnother, LoadGuard,
	EvidenceNotProven, KeyNotValid, BundleIncomplete,
}

// All lists every code in the contract's order.
func All() []Reason { return slices.Clone(all) }
