package identity

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lockstep.dev/pkg/fault"
)

func TestOperators(t *testing.T) {
	for name, test := range map[string]struct {
		tokens []string
		call   string
		code   codes.Code
		reason fault.Reason
	}{
		"with_the_role":        {[]string{"ann's token"}, humanMethod, codes.OK, fault.None},
		"with_a_higher_role":   {[]string{"ann's token"}, viewerMethod, codes.OK, fault.None},
		"with_too_low_a_role":  {[]string{"vic's token"}, humanMethod, codes.PermissionDenied, fault.PermissionDenied},
		"with_an_unknown_one":  {[]string{"nobody's token"}, humanMethod, codes.Unauthenticated, fault.PermissionDenied},
		"with_the_hash":        {[]string{HashOperatorToken("ann's token")}, humanMethod, codes.Unauthenticated, fault.PermissionDenied},
		"without_a_token":      {nil, humanMethod, codes.Unauthenticated, fault.PermissionDenied},
		"with_two_tokens":      {[]string{"ann's token", "vic's token"}, humanMethod, codes.Unauthenticated, fault.PermissionDenied},
		"where_a_peer_belongs": {[]string{"ann's token"}, unaryMethod, codes.Unauthenticated, fault.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			ctx := t.Context()
			for _, token := range test.tokens {
				ctx = metadata.AppendToOutgoingContext(ctx, OperatorTokenKey, token)
			}
			var err error
			switch client := w.dial(t); test.call {
			case humanMethod:
				_, err = client.EmptyCall(ctx, &pb.Empty{})
			case viewerMethod:
				_, err = client.UnimplementedCall(ctx, &pb.Empty{})
			default:
				_, err = client.UnaryCall(ctx, payload("hello"))
			}
			if status.Code(err) != test.code || fault.ReasonOf(err) != test.reason {
				t.Errorf("got %v, want %s %q", err, test.code, test.reason)
			}
			if called := w.service.calls == 1; called != (test.code == codes.OK) {
				t.Errorf("the handler ran %d times", w.service.calls)
			}
			for _, token := range test.tokens {
				if err != nil && strings.Contains(err.Error(), token) {
					t.Error("the refusal tells the token")
				}
			}
		})
	}
}

func TestAServiceIsNoOperator(t *testing.T) {
	w := setup(t)
	client := w.dial(t, caller(t, w.hall, testNow).DialOptions()...)
	_, err := client.EmptyCall(t.Context(), &pb.Empty{})
	if status.Code(err) != codes.Unauthenticated || fault.ReasonOf(err) != fault.PermissionDenied {
		t.Errorf("got %v", err)
	}
}

func TestTooManyCallsOfOneCallerAreRefused(t *testing.T) {
	w := setup(t)
	client := w.dial(t)
	ann := metadata.AppendToOutgoingContext(t.Context(), OperatorTokenKey, "ann's token")
	for i := range 60 { // three seconds of them at once
		if _, err := client.EmptyCall(ann, &pb.Empty{}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	_, err := client.EmptyCall(ann, &pb.Empty{})
	if status.Code(err) != codes.ResourceExhausted || fault.ReasonOf(err) != fault.RateLimited {
		t.Errorf("got %v, want RATE_LIMITED", err)
	}
	vic := metadata.AppendToOutgoingContext(t.Context(), OperatorTokenKey, "vic's token")
	if _, err := client.UnimplementedCall(vic, &pb.Empty{}); err != nil {
		t.Errorf("another caller is refused too: %v", err)
	}
}

func TestRates(t *testing.T) {
	buckets, now := newBuckets(Rates{PeerCallsPerSecond: 2, OperatorCallsPerSecond: 1}), time.Unix(1, 0)
	for most, caller := range map[int]principal{4: {appKey: "svc-hall"}, 3: {operator: Operator{ID: "ann"}}} {
		n := 0
		for buckets.allow(caller, now) {
			n++
		}
		if n != most {
			t.Errorf("%s may call %d times at once, want %d", caller.name(), n, most)
		}
		if !buckets.allow(caller, now.Add(time.Second)) {
			t.Errorf("%s may not call a second later", caller.name())
		}
	}
	for rates, problem := range map[Rates]string{
		DefaultRates():   "",
		{0, 20}:          "peer_calls_per_second",
		{500, -1}:        "operator_calls_per_second",
		{500, 2_000_000}: "operator_calls_per_second",
	} {
		if err := rates.Validate(); (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%+v: %v", rates, err)
		}
	}
}

func TestCheckComplete(t *testing.T) {
	for name, test := range map[string]struct {
		change func(map[string]Rule)
		want   string
	}{
		"a_method_without_a_rule":     {func(r map[string]Rule) { delete(r, unaryMethod) }, unaryMethod + " has no access rule"},
		"a_rule_without_a_method":     {func(r map[string]Rule) { r["/no.Such/Method"] = Peer }, "/no.Such/Method, which nobody serves"},
		"a_peer_that_streams":         {func(r map[string]Rule) { r["/grpc.testing.TestService/FullDuplexCall"] = Peer }, "no call token covers"},
		"everything_ruled_and_served": {func(map[string]Rule) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rules := testRules()
			test.change(rules)
			guard, err := NewGuard("center", &Trust{}, nil, rules)
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer(guard.ServerOptions()...)
			pb.RegisterTestServiceServer(server, &service{})
			healthpb.RegisterHealthServer(server, health.NewServer())
			err = guard.CheckComplete(server)
			if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestNewGuardRefusesUnsafeSettings(t *testing.T) {
	hash := HashOperatorToken("token")
	for name, test := range map[string]struct {
		self      string
		operators []OperatorConfig
		rules     map[string]Rule
		want      string
	}{
		"no_app_key":        {"", nil, nil, "app key is missing"},
		"a_public_method":   {"center", nil, map[string]Rule{"/s/m": Public}, "only health checks are public"},
		"a_rule_for_nobody": {"center", nil, map[string]Rule{"/s/m": {}}, "lets nobody"},
		"an_unknown_rule's": {"center", nil, map[string]Rule{"/s/m": OperatorWith("root")}, `role "root" is unknown`},
		"an_unknown_role":   {"center", []OperatorConfig{{ID: "a", Role: "root", TokenSHA256: hash}}, nil, `role "root" is unknown`},
		"no_role":           {"center", []OperatorConfig{{ID: "a", TokenSHA256: hash}}, nil, `role "" is unknown`},
		"a_token_as_it_is":  {"center", []OperatorConfig{{ID: "a", Role: RoleViewer, TokenSHA256: "token"}}, nil, "64 hex digits"},
		"no_token":          {"center", []OperatorConfig{{ID: "a", Role: RoleViewer}}, nil, "64 hex digits"},
		"no_id":             {"center", []OperatorConfig{{Role: RoleViewer, TokenSHA256: hash}}, nil, "no id"},
		"an_id_twice":       {"center", []OperatorConfig{{ID: "a", Role: RoleViewer, TokenSHA256: hash}, {ID: "a", Role: RoleAdmin, TokenSHA256: HashOperatorToken("x")}}, nil, "twice"},
		"a_token_twice":     {"center", []OperatorConfig{{ID: "a", Role: RoleViewer, TokenSHA256: hash}, {ID: "b", Role: RoleAdmin, TokenSHA256: hash}}, nil, "token of another"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewGuard(test.self, &Trust{}, test.operators, test.rules)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestNobodySeesNoTenant(t *testing.T) {
	if (Operator{}).MaySee(7) {
		t.Error("an operator who is nobody sees tenant 7")
	}
	if !(Operator{ID: "ann"}).MaySee(7) {
		t.Error("an operator of all tenants does not see tenant 7")
	}
}

func TestRecordTellsWhoCalled(t *testing.T) {
	ctx, caller := Record(t.Context())
	if got := caller(); got != "" {
		t.Errorf("before anybody was verified: %q", got)
	}
	WithPeer(ctx, "hall")
	if got := caller(); got != "app:hall" {
		t.Errorf("got %q, want app:hall", got)
	}
	WithOperator(ctx, Operator{ID: "ann"})
	if got := caller(); got != "operator:ann" {
		t.Errorf("got %q, want operator:ann", got)
	}
}
