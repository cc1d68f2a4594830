package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// scrape reads a service's metrics as Prometheus would.
func (s *stack) scrape(n *node) (text string, families map[string]*dto.MetricFamily) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+n.at.HTTP+"/metrics", nil)
	s.must(err)
	response, err := http.DefaultClient.Do(request)
	s.must(err)
	defer response.Body.Close() //nolint:errcheck // it was read to its end
	body, err := io.ReadAll(response.Body)
	s.must(err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err = parser.TextToMetricFamilies(strings.NewReader(string(body)))
	s.must(err)
	return string(body), families
}

// values gives a family's non-zero values by their labels' values.
func values(families map[string]*dto.MetricFamily, name string) map[string]int64 {
	out := map[string]int64{}
	for _, m := range families[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		if v := m.GetGauge().GetValue() + m.GetCounter().GetValue(); v != 0 {
			out[strings.Join(labels, "/")] = int64(v)
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.fill(form, 600)
	s.damageAll(form, few)
	for i := range 3 {
		s.grant(fmt.Sprint("other-", i))
	}
	s.exec(true, `UPDATE lockstep.consumer_grant SET updated_at = now() - interval '2 days' WHERE collection_id <> $1`, form)
	consumer := s.startConsumer("", nil)
	center := s.startCenter("", settings{"metrics": settings{"max_scopes": 2}})
	id := s.create(form)
	s.awaitEnd(id)

	_, fromCenter := s.scrape(center)
	_, fromConsumer := s.scrape(consumer)
	ledger, found, outcomes := s.outcomes(id), map[string]int64{}, map[string]int64{}
	for name, n := range ledger {
		class, outcome, _ := strings.Cut(name, "/")
		found[class] += n
		outcomes[outcome] += n
	}
	// What was first reported, and then mended or retired, went through both.
	outcomes["REPORTED"] += int64(few.conflict + few.extra)
	for _, c := range []struct {
		family string
		from   map[string]*dto.MetricFamily
		want   map[string]int64
	}{
		{"lockstep_tasks", fromCenter, map[string]int64{"COMPLETED": 1}},
		{"lockstep_task_oldest_waiting_seconds", fromCenter, map[string]int64{}},
		{"lockstep_scopes", fromCenter, map[string]int64{"": 4}},
		{"lockstep_scopes_never_proven", fromCenter, map[string]int64{"": 3}},
		{"lockstep_work", fromConsumer, map[string]int64{"COMPLETED": 1}},
		{"lockstep_differences_total", fromConsumer, found},
		{"lockstep_outcomes_total", fromConsumer, outcomes},
		{"lockstep_retirements_withheld_total", fromConsumer, map[string]int64{}},
		{"lockstep_figures_ok", fromCenter, map[string]int64{"": 1}},
		{"lockstep_figures_ok", fromConsumer, map[string]int64{"": 1}},
	} {
		if got := values(c.from, c.family); !maps.Equal(got, c.want) {
			t.Errorf("%s is %v, want %v", c.family, got, c.want)
		}
	}
	// Only the worst scopes are named, and the proven one is not among them.
	worst := values(fromCenter, "lockstep_scope_proven_seconds")
	if len(worst) != 2 {
		t.Errorf("the scopes are %v, want the 2 worst", worst)
	}
	for scope, age := range worst {
		if !strings.HasPrefix(scope, "other-") || age < 2*24*3600 {
			t.Errorf("%s is named with %d s", scope, age)
		}
	}
	if n := values(fromCenter, "lockstep_pool_max_connections"); n["store"] != 8 || n["source"] != 4 {
		t.Errorf("the pools are %v", n)
	}

	t.Run("what_dashboards_and_alerts_name_is_there", func(t *testing.T) {
		// Each name with its labels, and those of a scrape.
		known := map[string]map[string]bool{}
		for _, families := range []map[string]*dto.MetricFamily{fromCenter, fromConsumer} {
			for name, family := range families {
				labels := map[string]bool{"job": true, "instance": true, "le": family.GetType() == dto.MetricType_HISTOGRAM}
				for _, m := range family.GetMetric() {
					for _, l := range m.GetLabel() {
						labels[l.GetName()] = true
					}
				}
				known[name] = labels
				if labels["le"] {
					known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = labels, labels, labels
				}
			}
		}
		for file, named := range map[string][]string{
			"grafana/lockstep.json": dashboard(t), "prometheus/alerts.yaml": alerts(t),
		} {
			if len(named) < 10 {
				t.Errorf("%s has %d expressions", file, len(named))
			}
			for _, expr := range named {
				metrics := selection.FindAllStringSubmatch(expr, -1)
				if len(metrics) == 0 {
					t.Errorf("%s: %s names no metric", file, expr)
				}
				for _, m := range metrics {
					name, labels := m[1], known[m[1]]
					if labels == nil {
						t.Errorf("%s names %s, which no service has", file, name)
					}
					for _, label := range append(captured(grouping, expr), captured(matcher, m[2])...) {
						if !labels[label] {
							t.Errorf("%s: %s asks for the label %s, which %s has not", file, expr, label, name)
						}
					}
				}
			}
		}
	})
}

var (
	// A metric and the labels it is selected by; the labels that are grouped or joined by.
	selection = regexp.MustCompile(`(lockstep_[a-z_]+)(\{[^}]*\})?`)
	grouping  = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
	matcher   = regexp.MustCompile(`([a-z_]+)(?:=|!)`)
)

// captured are the words of what a pattern finds, parted by commas.
func captured(pattern *regexp.Regexp, text string) (words []string) {
	for _, found := range pattern.FindAllStringSubmatch(text, -1) {
		words = append(words, strings.Split(found[1], ", ")...)
	}
	return words
}

// dashboard gives every expression of the dashboard.
func dashboard(t *testing.T) (exprs []string) {
	t.Helper()
	var board struct {
		Panels []struct {
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	text, err := os.ReadFile("../../deploy/grafana/lockstep.json")
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	return exprs
}

// alerts gives every expression of the alert rules.
func alerts(t *testing.T) (exprs []string) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, rule := range g.Rules {
			if rule.Annotations["summary"] == "" || rule.Annotations["action"] == "" {
				t.Errorf("alert %s says not what is the matter, or what to do", rule.Alert)
			}
			exprs = append(exprs, rule.Expr)
		}
	}
	return exprs
}
