package identity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"lockstep.dev/pkg/fault"
)

// OperatorTokenKey is the metadata key of an operator's bearer token.
const OperatorTokenKey = "lockstep-operator-token"

// Rule says who may call a method. The zero Rule lets nobody.
type Rule struct {
	kind ruleKind
	role Role
}

type ruleKind int

const (
	nobody ruleKind = iota
	peers
	humans
	everybody
)

// The rules that have no role. Public is for health checks only.
var (
	Peer   = Rule{kind: peers}
	Public = Rule{kind: everybody}
)

// OperatorWith lets operators of at least that role.
func OperatorWith(role Role) Rule { return Rule{kind: humans, role: role} }

// Refuse says why an operator of a role may not call what the rule is of; nil
// where he may.
func (r Rule) Refuse(role Role) error {
	switch {
	case r.kind != humans:
		return fault.New(fault.PermissionDenied, "no operator may call this method")
	case ranks[role] < ranks[r.role]:
		return fault.New(fault.PermissionDenied, "the role %s is needed", r.role)
	}
	return nil
}

// healthMethods are what a load balancer asks, without a token.
var healthMethods = []string{"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch"}

// Guard lets a server answer only whom its rules allow.
type Guard struct {
	self      string
	trust     *Trust
	operators operators
	issuer    *issuer // nil: only tokens of the settings
	rules     map[string]Rule
	codec     serverCodec
	buckets   *buckets
	now       func() time.Time
}

// NewGuard guards the service self. rules has one entry a full method, such as
// "/lockstep.center.v1.AdminService/GetTask"; the health service needs none.
func NewGuard(self string, trust *Trust, configs []OperatorConfig, rules map[string]Rule) (*Guard, error) {
	known, err := newOperators(configs)
	problems := []error{err}
	if self == "" {
		problems = append(problems, errors.New("the service's own app key is missing"))
	}
	for method, rule := range rules {
		switch {
		case rule.kind == nobody:
			problems = append(problems, fmt.Errorf("%s: the rule lets nobody", method))
		case rule.kind == everybody && !slices.Contains(healthMethods, method):
			problems = append(problems, fmt.Errorf("%s: only health checks are public", method))
		case rule.kind == humans && ranks[rule.role] == 0:
			problems = append(problems, fmt.Errorf("%s: role %q is unknown", method, rule.role))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("access rules: %w", err)
	}
	return &Guard{
		self: self, trust: trust, operators: known, rules: maps.Clone(rules),
		codec:   serverCodec{CodecV2: protoCodec(), received: &sync.Map{}},
		buckets: newBuckets(DefaultRates()), now: time.Now,
	}, nil
}

// Limit gives the guard other rates than DefaultRates, before it serves.
func (g *Guard) Limit(rates Rates) { g.buckets = newBuckets(rates) }

// ServerOptions make a server ask the guard before every call. They hold the one
// outermost interceptor of a server; what comes before the guard's check is
// chained before these options.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(g.codec),
		grpc.UnaryInterceptor(g.codec.takeUnary),
		grpc.StreamInterceptor(g.codec.takeStream),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
	}
}

// CheckComplete stops a start at which a registered method has no rule, a rule
// has no method, or a method streams requests, which no token covers.
func (g *Guard) CheckComplete(server *grpc.Server) error {
	var problems []error
	missing := maps.Clone(g.rules)
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			full := "/" + service + "/" + method.Name
			delete(missing, full)
			switch rule := g.ruleOf(full); {
			case rule.kind == nobody:
				problems = append(problems, fmt.Errorf("%s has no access rule", full))
			case rule.kind == peers && method.IsClientStream:
				problems = append(problems, fmt.Errorf("%s streams requests, which no call token covers", full))
			}
		}
	}
	for method := range missing {
		problems = append(problems, fmt.Errorf("an access rule names %s, which nobody serves", method))
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

func (g *Guard) ruleOf(method string) Rule {
	if rule, ok := g.rules[method]; ok {
		return rule
	}
	if slices.Contains(healthMethods, method) {
		return Public
	}
	return Rule{}
}

func (g *Guard) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, signed, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if signed != nil {
		if err := checkBody(signed, bodyOf(ctx)); err != nil {
			return nil, err
		}
	}
	if err := g.count(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (g *Guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, signed, err := g.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	// A stream ends with the token that opened it.
	if who, ok := OperatorFrom(ctx); ok && who.Issued {
		ends, cancel := context.WithTimeout(ctx, who.Until.Sub(g.now()))
		defer cancel()
		ctx = ends
	}
	return handler(srv, &guardedStream{ServerStream: stream, guard: g, ctx: ctx, signed: signed})
}

// guardedStream compares the body when it comes; the handler has nothing before.
type guardedStream struct {
	grpc.ServerStream

	guard    *Guard
	ctx      context.Context
	signed   *claims
	received bool
}

func (s *guardedStream) Context() context.Context { return s.ctx }

func (s *guardedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if s.received {
		return fault.New(fault.InvalidArgument, "a stream has one request")
	}
	if s.signed != nil {
		if err := checkBody(s.signed, bodyOf(s.ctx)); err != nil {
			return err
		}
	}
	s.received = true
	return s.guard.count(s.ctx)
}

func (s *guardedStream) SendMsg(message any) error {
	if !s.received {
		return fault.New(fault.Internal, "an answer before its request was read")
	}
	return s.ServerStream.SendMsg(message)
}

// admit checks a call against its method's rule. For a service's call it returns
// the claims, whose body digest is still to be compared.
func (g *Guard) admit(ctx context.Context, method string) (context.Context, *claims, error) {
	switch rule := g.ruleOf(method); rule.kind {
	case everybody:
		return ctx, nil, nil
	case humans:
		who, err := g.operator(ctx, rule)
		if err != nil {
			return ctx, nil, err
		}
		return withPrincipal(ctx, who), nil, nil
	case peers:
		token, ok := one(ctx, CallTokenKey)
		if !ok {
			return ctx, nil, unknownCaller("the call is not signed")
		}
		signed, err := g.verifyToken(token, method)
		if err != nil {
			return ctx, nil, err
		}
		return withPrincipal(ctx, principal{appKey: signed.Issuer}), signed, nil
	case nobody:
	}
	return ctx, nil, fault.New(fault.PermissionDenied, "nobody may call this method")
}

func (g *Guard) operator(ctx context.Context, rule Rule) (who principal, err error) {
	token, ok := one(ctx, OperatorTokenKey)
	if !ok {
		return who, unknownCaller("an operator's token is needed")
	}
	if who.operator, ok = g.operators.find(token); !ok {
		if g.issuer == nil || !looksSigned(token) {
			return who, unknownCaller("the operator's token is not known")
		}
		if who.operator, err = g.issuer.verify(ctx, token, g.now()); err != nil {
			return principal{}, err
		}
	}
	if err := rule.Refuse(who.operator.Role); err != nil {
		recordPrincipal(ctx, who)
		return principal{}, err
	}
	return who, nil
}

// count takes a token from the caller's bucket.
func (g *Guard) count(ctx context.Context) error {
	if caller, ok := principalOf(ctx); ok && !g.buckets.allow(caller, g.now()) {
		return fault.New(fault.RateLimited, "too many calls; try again later")
	}
	return nil
}

// one returns a metadata value that must be there exactly once.
func one(ctx context.Context, key string) (string, bool) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) != 1 || values[0] == "" {
		return "", false
	}
	return values[0], true
}
