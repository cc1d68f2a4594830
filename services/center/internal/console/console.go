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

// New makes the center's console. It ends what it streams when ctx ends.
func New(ctx context.Context, app string, conn *grpc.ClientConn, log *zap.Logger, now func() time.Time) (http.Handler, error) {
	files, err := fs.Sub(templates, "pages")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	p := &pages{admin: centerv1.NewAdminServiceClient(conn), audit: auditv1.NewAuditServiceClient(conn)}
	c, err := shell.New(ctx, shell.Config{
		Service: "center", App: app, Version: version.Version, Templates: files, Log: log, Now: now,
		Verify: func(ctx context.Context) error {
			_, err := p.admin.ListTargets(ctx, &centerv1.ListTargetsRequest{})
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	c.Page(shell.Page{Path: "", Nav: "Overview", Template: "overview.html", Show: p.overview, Live: refresh})
	c.Page(shell.Page{Path: "tasks", Nav: "Tasks", Template: "tasks.html", Show: p.tasks, Live: refresh})
	c.Page(shell.Page{Path: "tasks/{task}", Under: "tasks", Template: "task.html", Show: p.task, Live: refresh, Watch: p.watchTask})
	c.Page(shell.Page{Path: "tasks/{task}/outcomes", Under: "tasks", Template: "outcomes.html", Show: p.outcomes})
	c.Page(shell.Page{Path: "tasks/{task}/evidence", Under: "tasks", Template: "evidence.html", Show: p.evidence})
	c.Download(shell.Download{Path: "tasks/{task}/evidence.json", Open: p.evidenceFile})
	c.Action(shell.Action{Path: "tasks/new", Under: "tasks", Form: p.newTaskForm, Do: p.newTask})
	c.Action(shell.Action{Path: "tasks/{task}/cancel", Under: "tasks", Form: p.cancelForm, Do: p.cancel})

	c.Page(shell.Page{Path: "deliveries", Nav: "Deliveries", Template: "deliveries.html", Show: p.deliveries, Live: refresh})
	c.Action(shell.Action{Path: "deliveries/{delivery}/replay", Under: "deliveries", Form: p.replayForm, Do: p.replay})
	c.Page(shell.Page{Path: "records", Nav: "Records", Template: "record.html", Show: p.record})
	c.Action(shell.Action{Path: "records/replay", Under: "records", Form: p.sendForm, Do: p.send})

	c.Page(shell.Page{Path: "grants", Nav: "Grants", Template: "grants.html", Show: p.grants})
	c.Action(shell.Action{Path: "grants/set", Under: "grants", Form: p.grantForm, Do: p.setGrant})
	c.Page(shell.Page{Path: "targets", Nav: "Consumers", Template: "targets.html", Show: p.targets})
	c.Page(shell.Page{Path: "targets/{consumer}", Under: "targets", Template: "tenants.html", Show: p.tenants})
	c.Action(shell.Action{Path: "targets/{consumer}/add", Under: "targets", Form: p.addTenantForm, Do: p.addTenant})
	c.Action(shell.Action{Path: "targets/{consumer}/remove/{tenant}", Under: "targets", Form: p.removeTenantForm, Do: p.removeTenant})

	shell.AddAudit(c, p.audit)
	return c.Handler()
}
