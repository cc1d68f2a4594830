// Package console is the consumer's pages of the web console.
//
// It promises to show what the consumer's own API answers to the signed-in
// operator and nothing else: it reads no database and holds no privilege. Only
// the page of one record shows content, and the API asks the role operator for it.
package console

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	consumerv1 "lockstep.dev/proto/lockstep/consumer/v1"
	shell "lockstep.dev/services/internal/console"
	"lockstep.dev/services/internal/version"
)

//go:embed pages/*.html
var templates embed.FS

const (
	// How often what is open is read again.
	listEvery = 5 * time.Second
	taskEvery = 2 * time.Second
	// Rows on a page: what a person looks through, far below what the API allows.
	pageRows = 50
)

// pages are the consumer's, over its API.
type pages struct {
	admin   consumerv1.AdminServiceClient
	refresh consumerv1.RefreshServiceClient
}

// New makes the consumer's console; rules are what the service decides by who may
// call a method. It ends what it streams when ctx ends.
func New(ctx context.Context, app string, conn *grpc.ClientConn, rules map[string]identity.Rule, log *zap.Logger, now func() time.Time) (http.Handler, error) {
	files, err := fs.Sub(templates, "pages")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	p := &pages{admin: consumerv1.NewAdminServiceClient(conn), refresh: consumerv1.NewRefreshServiceClient(conn)}
	c, err := shell.New(ctx, shell.Config{
		Service: "consumer", App: app, Version: version.Version, Templates: files, Log: log, Now: now,
		Operator: shell.OperatorOf(conn), Rules: rules,
	})
	if err != nil {
		return nil, err
	}
	for _, page := range []shell.Page{
		{Path: "", Nav: "Overview", Template: "overview.html", Show: p.overview, Live: listEvery},
		{Path: "work", Nav: "Work", Template: "work.html", Show: p.workList, Live: listEvery},
		{Path: "work/{task}", Under: "work", Template: "task.html", Show: p.workTask, Live: taskEvery},
		{Path: "quarantine", Nav: "Quarantine", Template: "quarantine.html", Show: p.quarantine},
		{Path: "retired", Nav: "Retired", Template: "retired.html", Show: p.retired},
		{Path: "record", Needs: consumerv1.AdminService_ExplainRecord_FullMethodName, Nav: "Record", Template: "record.html", Show: p.record},
		{Path: "refresh", Nav: "Refresh", AllTenants: true, Template: "refresh.html", Show: p.refreshList, Live: listEvery},
		{Path: "refresh/{task}", Under: "refresh", Template: "refresh_task.html", Show: p.refreshTask, Live: taskEvery},
		{Path: "bills", Nav: "Bills", AllTenants: true, Template: "bills.html", Show: p.bills},
		{Path: "stations", Nav: "Stations", AllTenants: true, Template: "stations.html", Show: p.stations},
		{Path: "scores", Nav: "Scores", AllTenants: true, Template: "scores.html", Show: p.scores},
	} {
		c.Page(page)
	}
	shell.AddAudit(c, auditv1.NewAuditServiceClient(conn))
	for _, action := range []shell.Action{
		{Path: "work/{task}/pause", Needs: consumerv1.AdminService_PauseWork_FullMethodName, Under: "work", Form: p.pauseForm, Do: p.pause},
		{Path: "work/{task}/resume", Needs: consumerv1.AdminService_ResumeWork_FullMethodName, Under: "work", Form: p.resumeForm, Do: p.resume},
		{Path: "quarantine/retry", Needs: consumerv1.AdminService_RetryQuarantined_FullMethodName, Under: "quarantine", Form: p.retryForm, Do: p.retry},
		{Path: "retired/restore", Needs: consumerv1.AdminService_RestoreRetired_FullMethodName, Under: "retired", Form: p.restoreForm, Do: p.restore},
		{Path: "refresh/submit", Needs: consumerv1.RefreshService_Submit_FullMethodName, Under: "refresh", Form: p.submitForm, Do: p.submit},
		{Path: "refresh/now", Needs: consumerv1.RefreshService_RefreshNow_FullMethodName, Under: "refresh", Form: p.nowForm, Do: p.now},
		{Path: "refresh/{task}/retry", Needs: consumerv1.RefreshService_Retry_FullMethodName, Under: "refresh", Form: p.wakeForm, Do: p.wake},
		{Path: "refresh/{task}/force", Needs: consumerv1.RefreshService_Force_FullMethodName, Under: "refresh", Form: p.forceForm, Do: p.force},
		{Path: "refresh/{task}/cancel", Needs: consumerv1.RefreshService_Cancel_FullMethodName, Under: "refresh", Form: p.cancelForm, Do: p.cancel},
		{Path: "refresh/{task}/reopen", Needs: consumerv1.RefreshService_Reopen_FullMethodName, Under: "refresh", Form: p.reopenForm, Do: p.reopen},
	} {
		c.Action(action)
	}
	c.Download(shell.Download{Path: "work/{task}/evidence", Needs: consumerv1.AdminService_ListEvidence_FullMethodName, Open: p.evidence})
	c.Download(shell.Download{Path: "bills/csv", Open: p.billsCSV})
	return c.Handler()
}

// with adds a query to a path below the console's root. An empty value is left out.
func with(path string, pairs ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// redrawn: only the live part of the page is wanted.
func redrawn(r *shell.Request) bool { return strings.HasPrefix(r.HTTP.URL.Path, shell.Root+"live/") }

// The fields that say where to look.
func tenantField() shell.Field {
	return shell.Field{Name: "tenant", Label: "Tenant", Kind: shell.Number}
}

func collectionField() shell.Field { return shell.Field{Name: "collection", Label: "Collection"} }

// choices are a filter's: anything, or one of these.
func choices(words ...string) []shell.Option {
	options := []shell.Option{{Label: "any"}}
	for _, word := range words {
		options = append(options, shell.Option{Value: word, Label: word})
	}
	return options
}

// valueOf finds an enum's value by its word; the empty word is none.
func valueOf[E ~int32](r *shell.Request, field, prefix string, values map[string]int32) ([]E, error) {
	word := r.Value(field)
	if word == "" {
		return nil, nil
	}
	value, ok := values[prefix+word]
	if !ok || value == 0 {
		return nil, fault.New(fault.InvalidArgument, "there is no such %s", field).WithField(field, "is not known")
	}
	return []E{E(value)}, nil
}
