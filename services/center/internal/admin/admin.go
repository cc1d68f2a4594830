// Package admin is the operators' side of the center.
//
// It promises that a read writes nothing, that what lies outside an operator's
// tenants reads as not found and is absent from lists, and that every change
// names the operator in the audit log. It never decides a task's way itself.
package admin

import (
	"context"

	"github.com/google/uuid"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/protocol"
	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	"lockstep.dev/services/center/internal/create"
	"lockstep.dev/services/center/internal/grant"
	"lockstep.dev/services/center/internal/manifest"
	"lockstep.dev/services/center/internal/source"
	"lockstep.dev/services/center/internal/store"
	"lockstep.dev/services/center/internal/task"
)

// Server answers operators.
type Server struct {
	centerv1.UnimplementedAdminServiceServer

	Store   *store.Store
	Creator *create.Creator
	Grants  *grant.Keeper
	Targets map[string]string // addresses by app key
	Policy  task.Policy
	// Dispatching: the switch that lets tasks be materialised and sent is on.
	Dispatching bool
	// Wake is called after a change that freed a slot.
	Wake func()
	// Source shows records as they are now.
	Source *source.Source
	// Reader finds records in frozen manifests.
	Reader *manifest.Reader
	// Delivering: ordinary delivery is on. WakeDelivery is called after a replay.
	Delivering   bool
	WakeDelivery func()
	// Stopping is closed when the service begins to stop: streams end then.
	Stopping <-chan struct{}

	watches watches
}

// Rules say who may call the methods.
func Rules() map[string]identity.Rule {
	viewer, operator, admin := identity.OperatorWith(identity.RoleViewer), identity.OperatorWith(identity.RoleOperator), identity.OperatorWith(identity.RoleAdmin)
	return map[string]identity.Rule{
		centerv1.AdminService_GetTask_FullMethodName:              viewer,
		centerv1.AdminService_ListTasks_FullMethodName:            viewer,
		centerv1.AdminService_ListResults_FullMethodName:          viewer,
		centerv1.AdminService_ListOutcomes_FullMethodName:         viewer,
		centerv1.AdminService_ListEvents_FullMethodName:           viewer,
		centerv1.AdminService_WatchTask_FullMethodName:            viewer,
		centerv1.AdminService_GetEvidence_FullMethodName:          viewer,
		centerv1.AdminService_ListCollections_FullMethodName:      viewer,
		centerv1.AdminService_ListGrants_FullMethodName:           viewer,
		centerv1.AdminService_ListTenants_FullMethodName:          viewer,
		centerv1.AdminService_ListTargets_FullMethodName:          viewer,
		centerv1.AdminService_ListFailedDeliveries_FullMethodName: viewer,
		centerv1.AdminService_GetDelivery_FullMethodName:          viewer,
		centerv1.AdminService_ReplayDelivery_FullMethodName:       operator,
		centerv1.AdminService_ReplayRecord_FullMethodName:         operator,
		centerv1.AdminService_ExplainRecord_FullMethodName:        operator,
		centerv1.AdminService_CreateTask_FullMethodName:           operator,
		centerv1.AdminService_CancelTask_FullMethodName:           operator,
		centerv1.AdminService_SetGrant_FullMethodName:             admin,
		centerv1.AdminService_AddTenant_FullMethodName:            admin,
		centerv1.AdminService_RemoveTenant_FullMethodName:         admin,
	}
}

// caller is the verified operator of a call; the guard lets no call come
// without one.
func caller(ctx context.Context) (identity.Operator, error) {
	op, ok := identity.OperatorFrom(ctx)
	if !ok {
		return op, fault.New(fault.PermissionDenied, "an operator's token is needed")
	}
	return op, nil
}

// actor is how the audit log names an operator.
func actor(op identity.Operator) string { return "operator/" + op.ID }

// within hides what lies outside the operator's tenants.
func within(op identity.Operator, tenant int64) error {
	if op.MaySee(tenant) {
		return nil
	}
	return fault.New(fault.NotFound, "there is no tenant %d", tenant)
}

// visible reads a task that the operator may see.
func (s *Server) visible(ctx context.Context, op identity.Operator, taskID string) (*task.Task, error) {
	id, err := protocol.ParseID(taskID)
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, "malformed task id").WithField("task_id", "%s", err)
	}
	tk, err := s.Store.Task(ctx, uuid.UUID(id))
	if err == nil && !op.MaySee(tk.TenantID) {
		err = fault.New(fault.TaskNotFound, "there is no task %s", taskID)
	}
	return tk, err
}

// only gives an operator's tenants as the store takes them: nil for all.
func only(op identity.Operator) []int64 {
	if len(op.Tenants) == 0 {
		return nil
	}
	return op.Tenants
}
