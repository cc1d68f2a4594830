package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/pkg/serve"
	operatorv1 "lockstep.dev/proto/lockstep/operator/v1"
	"lockstep.dev/services/internal/whoami"
)

// Who is the operator whose token a request carries, as the service says. The
// zero Who is nobody.
type Who struct {
	ID, Role string

	told  *operatorv1.Operator
	rules map[string]identity.Rule // by path
}

// whoIs asks the service.
func (c *Console) whoIs(ctx context.Context) (Who, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	told, err := c.Operator(serve.Unasked(ctx))
	if err != nil {
		return Who{}, err
	}
	return Who{ID: told.GetId(), Role: string(whoami.RoleOf(told)), told: told, rules: c.needs}, nil
}

// OperatorOf asks the service behind a connection whom a call's token stands for.
func OperatorOf(conn *grpc.ClientConn) func(ctx context.Context) (*operatorv1.Operator, error) {
	operators := operatorv1.NewOperatorServiceClient(conn)
	return func(ctx context.Context) (*operatorv1.Operator, error) {
		got, err := operators.GetOperator(ctx, &operatorv1.GetOperatorRequest{})
		return got.GetOperator(), err
	}
}

// How says how the operator signed in, and what they see.
func (w Who) How() string {
	text := "signed in with a token of this service's settings"
	if w.told.GetSignedInWith() == operatorv1.SignIn_SIGN_IN_OIDC {
		text = "signed in with a token of the identity provider, which expires at " + exact(timeOf(w.told.GetUntil()))
	}
	tenants := w.told.GetTenantIds()
	if len(tenants) == 0 {
		return text + "; sees every tenant"
	}
	return text + "; sees tenants " + strings.Trim(fmt.Sprint(tenants), "[]")
}

// May reports whether the operator's role lets them use the page, the action or
// the download that was added with a path. What it does not is not to be offered;
// the service refuses it in any case.
func (w Who) May(path string) (bool, error) {
	rule, ok := w.rules[path]
	if !ok {
		return false, fmt.Errorf("console: nothing at %q has a rule", path)
	}
	return rule.Refuse(identity.Role(w.Role)) == nil, nil
}

// need keeps the rule of the API's method that what is at a path calls.
func (c *Console) need(path, method string) {
	rule, ok := c.Rules[method]
	if !ok {
		c.broken = append(c.broken, fmt.Errorf("console: %q needs %q, which has no rule", path, method))
	}
	c.needs[path] = rule
}

// admit lets the operator see what is at a path; what has no rule is everybody's.
func (c *Console) admit(path string, next func(http.ResponseWriter, *Request)) func(http.ResponseWriter, *Request) {
	return func(w http.ResponseWriter, r *Request) {
		if rule, ok := c.needs[path]; ok {
			if err := rule.Refuse(identity.Role(r.Who.Role)); err != nil {
				c.fail(w, r, err)
				return
			}
		}
		next(w, r)
	}
}
