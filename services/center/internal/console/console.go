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

// pages are the center's, over its API.
type pages struct {
	admin centerv1.AdminServiceClient
	audit auditv1.AuditServiceClient
	now   func() time.Time
}

// New makes the center's console. It ends what it streams when ctx ends.
func New(ctx context.Context, app string, conn *grpc.ClientConn, log *zap.Logger, now func() time.Time) (http.Handler, error) {
	files, err := fs.Sub(templates, "pages")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	p := &pages{admin: centerv1.NewAdminServiceClient(conn), audit: auditv1.NewAuditServiceClient(conn), now: now}
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
	c.Page(shell.Page{Path: "", Nav: "Targets", Template: "targets.html", Show: p.targets})
	return c.Handler()
}
