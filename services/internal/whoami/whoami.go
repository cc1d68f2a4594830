// Package whoami tells an operator who they are to a service.
//
// It promises to tell of the caller alone, to ask no database, and to give
// nothing of a token but when it expires.
package whoami

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.dev/pkg/fault"
	"lockstep.dev/pkg/identity"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
)

// Rules say who may call the methods.
func Rules() map[string]identity.Rule {
	return map[string]identity.Rule{
		operatorv1.OperatorService_GetOperator_FullMethodName: identity.OperatorWith(identity.RoleViewer),
	}
}

// Server answers operators.
type Server struct {
	operatorv1.UnimplementedOperatorServiceServer
}

var roles = map[identity.Role]operatorv1.Role{
	identity.RoleViewer:   operatorv1.Role_ROLE_VIEWER,
	identity.RoleOperator: operatorv1.Role_ROLE_OPERATOR,
	identity.RoleAdmin:    operatorv1.Role_ROLE_ADMIN,
}

// GetOperator tells who calls.
func (*Server) GetOperator(ctx context.Context, _ *operatorv1.GetOperatorRequest) (*operatorv1.GetOperatorResponse, error) {
	who, ok := identity.OperatorFrom(ctx)
	if !ok {
		return nil, fault.New(fault.PermissionDenied, "an operator's token is needed")
	}
	told := &operatorv1.Operator{Id: who.ID, Role: roles[who.Role], TenantIds: who.Tenants, SignedInWith: operatorv1.SignIn_SIGN_IN_TOKEN}
	if who.Issued {
		told.SignedInWith, told.Until = operatorv1.SignIn_SIGN_IN_OIDC, timestamppb.New(who.Until)
	}
	return &operatorv1.GetOperatorResponse{Operator: told}, nil
}

// RoleOf is the role that an answer names, "" for one that is not known here.
func RoleOf(told *operatorv1.Operator) identity.Role {
	for role, number := range roles {
		if number == told.GetRole() {
			return role
		}
	}
	return ""
}
