// Package refresh turns requests into tasks, tasks into generations of scopes,
// and runs them under claims. What a scope's rows are computed from is a
// Projection's business.
//
// A task stands for one business key, which means one range. A request is a
// generation of its task; a generation freezes the newest payload when it is
// first claimed, resolves its scopes once, and works them off page by page.
//
//	   ┌──────────── request, page done, newer generation ───────────┐
//	   ▼                                                             │
//	PENDING ──claim──▶ RUNNING ──all done──▶ SUCCESS ──request──▶ PENDING
//	   ▲                 │ └────error──────▶ FAILED ──due, claim──▶ RUNNING
//	   │                 └────cancel───────▶ CANCELLED
//	   └──────────────────reopen─────────────────┘
//
// It promises:
//   - a request that was committed is worked on; a lost wake-up costs time only;
//   - a scope's rows are written in one transaction, under the scope's guard,
//     that ends with the check of the claim; nobody else writes them;
//   - a submission touches refresh_task only, and waits for no running scope;
//   - one failed scope takes no other with it.
//
// Locks are taken in one order: guard, the projection's rows, scope row,
// progress; claims, conclusions and operators take task, then progress, and
// never a guard.
package refresh
