package serve

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestAStreamOutlivesTheTimesOfOneAnswer: each line has its own time.
func TestAStreamOutlivesTheTimesOfOneAnswer(t *testing.T) {
	w := prepare(t, nil)
	w.server.http.ReadTimeout, w.server.http.WriteTimeout = slower, slower
	w.start(t)
	started := time.Now()
	got := w.call(t, "GET", "/v1/tasks/t1:watch", "", bearerHeader())
	if took := time.Since(started); took < 3*slower {
		t.Fatalf("it took %s", took)
	}
	if lines := strings.Count(got.body, `"taskId":"t1"`); got.status != http.StatusOK || lines != 3 || strings.Contains(got.body, "error") {
		t.Errorf("%d: %s", got.status, got.body)
	}
}
