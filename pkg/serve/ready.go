package serve

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"lockstep.dev/pkg/fault"
)

// Check reports whether something the service needs is there, such as a
// database. It gets two seconds.
type Check func(ctx context.Context) error

const (
	checkTimeout = 2 * time.Second
	checkFresh   = time.Second // however often it is asked, the database is not
)

// readiness says whether the service can do its work now.
type readiness struct {
	checks map[string]Check
	now    func() time.Time

	mu       sync.Mutex
	stopping bool
	at       time.Time
	failing  []string
}

// failures names the checks that fail; it is empty on a service that is ready.
func (r *readiness) failures(ctx context.Context) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return []string{"stopping"}
	}
	if now := r.now(); r.at.IsZero() || now.Sub(r.at) > checkFresh {
		// A caller that goes away must not make the service look unready to the next.
		r.failing = r.ask(context.WithoutCancel(ctx))
		r.at = r.now()
	}
	return r.failing
}

func (r *readiness) ask(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		failing []string
	)
	for name, check := range r.checks {
		group.Go(func() {
			if err := check(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failing = append(failing, name)
			}
		})
	}
	group.Wait()
	slices.Sort(failing)
	return failing
}

func (r *readiness) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
}

// ServeHTTP answers /readyz: 200, or 503 with the names of what fails.
func (r *readiness) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	failing := r.failures(request.Context())
	code := http.StatusOK
	if len(failing) > 0 {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, struct {
		Ready   bool     `json:"ready"`
		Failing []string `json:"failing,omitempty"`
	}{len(failing) == 0, failing})
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value) // the client may be gone; nothing is left to tell it
}

// healthServer answers grpc.health.v1 from the same checks.
type healthServer struct {
	healthpb.UnimplementedHealthServer

	ready    *readiness
	services map[string]bool
}

func (h *healthServer) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if service := request.GetService(); service != "" && !h.services[service] {
		return nil, fault.New(fault.NotFound, "there is no service %s", service)
	}
	return &healthpb.HealthCheckResponse{Status: h.status(ctx)}, nil
}

func (h *healthServer) List(ctx context.Context, _ *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	now := h.status(ctx)
	all := map[string]*healthpb.HealthCheckResponse{"": {Status: now}}
	for _, service := range slices.Collect(maps.Keys(h.services)) {
		all[service] = &healthpb.HealthCheckResponse{Status: now}
	}
	return &healthpb.HealthListResponse{Statuses: all}, nil
}

func (h *healthServer) status(ctx context.Context) healthpb.HealthCheckResponse_ServingStatus {
	if len(h.ready.failures(ctx)) > 0 {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}
