// Package console is the center's pages of the web console.
//
// It promises to show what the center's own API answers to the signed-in operator
// and nothing else: it reads no database and holds no privilege. Only the page of
// one record shows content, and the API asks the role operator for it.
package console

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"lockstep.dev/pkg/identity"
	auditv1 "lockstep.dev/proto/lockstep/audit/v1"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	shell "lockstep.dev/services/internal/console"
	"lockstep.dev/services/internal/version"
)

//go:embed pages/*.html
var templates embed.FS

// refresh is how often a live list is read again; a task's own page is told of changes.
const refresh = 5 * time.Second

// pages are the center's, over its API.
type pages struct {
	admin centerv1.AdminServiceClient
	audit auditv1.AuditServiceClient
}

// New makes the center's console; rules are what the service decides by who may
// call a method. It ends what it streams when ctx ends.
func New(ctx context.Context, app string, conn *grpc.ClientConn, rules map[string]identity.Rule, log *zap.Logger, now func() time.Time) (http.Handler, error) {
	files, err := fs.Sub(templates, "pages")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	p := &pages{admin: centerv1.NewAdminServiceClient(conn), audit: auditv1.NewAuditServiceClient(conn)}
	c, err := shell.New(ctx, shell.Config{
		Service: "center", App: app, Version: version.Version, Templates: files, Log: log, Now: now,
		Operator: shell.OperatorOf(conn), Rules: rules,
	})
	if err != nil {
		return nil, err
	}
	c.Page(shell.Page{Path: "", Nav: "Overview", Template: "overview.html", Show: p.overview, Live: refresh})
	c.Page(shell.Page{Path: "tasks", Nav: "Tasks", Template: "tasks.html", Show: p.tasks, Live: refresh})
	c.Page(shell.Page{Path: "tasks/{task}", Under: "tasks", Template: "task.html", Show: p.task, Live: refresh, Watch: p.watchTask})
	c.Page(shell.Page{Path: "tasks/{task}/outcomes", Under: "tasks", Template: "outcomes.html", Show: p.outcomes})
	c.Page(shell.Page{Path: "tasks/{task}/evidence", Under: "tasks", Template: "evidence.html", Show: p.evidence})
	c.Download(shell.Download{Path: "tasks/{task}/evidence.jsonl", Open: p.evidenceFile})
	c.Action(shell.Action{Path: "tasks/new", Needs: centerv1.AdminService_CreateTask_FullMethodName, Under: "tasks", Form: p.newTaskForm, Do: p.newTask})
	c.Action(shell.Action{Path: "tasks/{task}/cancel", Needs: centerv1.AdminService_CancelTask_FullMethodName, Under: "tasks", Form: p.cancelForm, Do: p.cancel})

	c.Page(shell.Page{Path: "deliveries", Nav: "Deliveries", Template: "deliveries.html", Show: p.deliveries, Live: refresh})
	c.Action(shell.Action{Path: "deliveries/{delivery}/replay", Needs: centerv1.AdminService_ReplayDelivery_FullMethodName, Under: "deliveries", Form: p.replayForm, Do: p.replay})
	c.Page(shell.Page{Path: "records", Needs: centerv1.AdminService_ExplainRecord_FullMethodName, Nav: "Records", Template: "record.html", Show: p.record})
	c.Action(shell.Action{Path: "records/replay", Needs: centerv1.AdminService_ReplayRecord_FullMethodName, Under: "records", Form: p.sendForm, Do: p.send})

	c.Page(shell.Page{Path: "grants", Nav: "Grants", Template: "grants.html", Show: p.grants})
	c.Action(shell.Action{Path: "grants/set", Needs: centerv1.AdminService_SetGrant_FullMethodName, Under: "grants", Form: p.grantForm, Do: p.setGrant})
	c.Page(shell.Page{Path: "targets", Nav: "Consumers", Template: "targets.html", Show: p.targets})
	c.Page(shell.Page{Path: "targets/{consumer}", Under: "targets", Template: "tenants.html", Show: p.tenants})
	c.Action(shell.Action{Path: "targets/{consumer}/add", Needs: centerv1.AdminService_AddTenant_FullMethodName, Under: "targets", Form: p.addTenantForm, Do: p.addTenant})
	c.Action(shell.Action{Path: "targets/{consumer}/remove/{tenant}", Needs: centerv1.AdminService_RemoveTenant_FullMethodName, Under: "targets", Form: p.removeTenantForm, Do: p.removeTenant})

	shell.AddAudit(c, p.audit)
	return c.Handler()
}
