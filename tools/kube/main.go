// Command kube checks the manifests in deploy/kubernetes: kustomize builds them,
// every object is decoded strictly into its Kubernetes type, so that a field that
// does not exist or has another type is found, and what the objects say of each
// other has to fit.
//
//	go run . ../../deploy/kubernetes
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := check(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: kube deploy/kubernetes")
	}
	var all []string
	for _, dir := range []string{"migrate", "."} {
		objects, err := build(filepath.Join(args[0], dir))
		if err != nil {
			return err
		}
		if err := errors.Join(objects.problems()...); err != nil {
			return fmt.Errorf("%s:\n%w", filepath.Join(args[0], dir), err)
		}
		all = append(all, objects.names...)
	}
	if err := alerts(filepath.Join(args[0], "..", "prometheus", "alerts.yaml")); err != nil {
		return err
	}
	slices.Sort(all)
	fmt.Printf("%d objects fit their types and each other: %s\n", len(all), strings.Join(slices.Compact(all), ", "))
	return nil
}

// alerts holds the alert rules to the spec of a PrometheusRule, which they are in a cluster.
func alerts(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	spec := &monitoringv1.PrometheusRuleSpec{}
	if err := yaml.UnmarshalStrict(text, spec); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if len(spec.Groups) == 0 {
		return fmt.Errorf("%s: no groups", file)
	}
	return nil
}

// objects are what one kustomization gives, by kind.
type objects struct {
	names       []string
	deployments []*appsv1.Deployment
	jobs        []*batchv1.Job
	configs     []*corev1.ConfigMap
	services    []*corev1.Service
	accounts    []*corev1.ServiceAccount
	budgets     []*policyv1.PodDisruptionBudget
	policies    []*networkingv1.NetworkPolicy
	monitors    []*monitoringv1.ServiceMonitor
}

func build(dir string) (*objects, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	out := &objects{}
	for _, resource := range built.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		name := resource.GetKind() + "/" + resource.GetName()
		if err := out.decode(resource.GetApiVersion()+" "+resource.GetKind(), text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if resource.GetNamespace() != "lockstep" {
			return nil, fmt.Errorf("%s: namespace is %q", name, resource.GetNamespace())
		}
		if wrong := validation.IsDNS1123Subdomain(resource.GetName()); len(wrong) > 0 {
			return nil, fmt.Errorf("%s: %s", name, strings.Join(wrong, "; "))
		}
		out.names = append(out.names, name)
	}
	return out, nil
}

// decode keeps an object; a kind that is not known here is an error, so that none goes unchecked.
func (o *objects) decode(kind string, text []byte) error {
	switch kind {
	case "apps/v1 Deployment":
		return strict(text, &o.deployments)
	case "batch/v1 Job":
		return strict(text, &o.jobs)
	case "v1 ConfigMap":
		return strict(text, &o.configs)
	case "v1 Service":
		return strict(text, &o.services)
	case "v1 ServiceAccount":
		return strict(text, &o.accounts)
	case "policy/v1 PodDisruptionBudget":
		return strict(text, &o.budgets)
	case "networking.k8s.io/v1 NetworkPolicy":
		return strict(text, &o.policies)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return strict(text, &o.monitors)
	}
	return fmt.Errorf("%s is checked by nobody", kind)
}

func strict[T any](text []byte, into *[]*T) error {
	object := new(T)
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		return err
	}
	*into = append(*into, object)
	return nil
}

// problems are what the types alone don't show.
func (o *objects) problems() (found []error) {
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	pods := map[string]corev1.PodTemplateSpec{}
	for _, d := range o.deployments {
		pods[d.Name] = d.Spec.Template
		if d.Spec.Replicas == nil || *d.Spec.Replicas < 2 {
			bad("%s has not two replicas", d.Name)
		}
		if !selects(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels) {
			bad("%s does not select its own pods", d.Name)
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
				if probe == nil || probe.HTTPGet == nil || !opens(c, probe.HTTPGet.Port.StrVal) {
					bad("%s: %s lacks a probe, or one asks a port that it does not open", d.Name, c.Name)
				}
			}
		}
	}
	for _, j := range o.jobs {
		pods[j.Name] = j.Spec.Template
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		found = append(found, o.podProblems(name, pods[name].Spec)...)
	}
	selected := func(name string, selector map[string]string) {
		for _, pod := range pods {
			if selects(selector, pod.Labels) {
				return
			}
		}
		bad("%s selects no pod", name)
	}
	for name, pod := range pods {
		if !slices.ContainsFunc(o.policies, func(p *networkingv1.NetworkPolicy) bool { return selects(p.Spec.PodSelector.MatchLabels, pod.Labels) }) {
			bad("%s is under no network policy", name)
		}
	}
	for _, b := range o.budgets {
		selected("PodDisruptionBudget/"+b.Name, b.Spec.Selector.MatchLabels)
		if p := b.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.AlwaysAllow {
			bad("PodDisruptionBudget/%s keeps processes that are not ready", b.Name)
		}
	}
	for _, p := range o.policies {
		selected("NetworkPolicy/"+p.Name, p.Spec.PodSelector.MatchLabels)
	}
	for _, s := range o.services {
		selected("Service/"+s.Name, s.Spec.Selector)
		for _, port := range s.Spec.Ports {
			for _, pod := range pods {
				if selects(s.Spec.Selector, pod.Labels) && !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return opens(c, port.TargetPort.StrVal) }) {
					bad("Service/%s leads to the port %s, which no container opens", s.Name, port.TargetPort.StrVal)
				}
			}
		}
	}
	for _, m := range o.monitors {
		if !slices.ContainsFunc(o.services, func(s *corev1.Service) bool { return selects(m.Spec.Selector.MatchLabels, s.Labels) }) {
			bad("ServiceMonitor/%s selects no service", m.Name)
		}
		for _, endpoint := range m.Spec.Endpoints {
			if !slices.ContainsFunc(o.services, func(s *corev1.Service) bool {
				return selects(m.Spec.Selector.MatchLabels, s.Labels) && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == endpoint.Port })
			}) {
				bad("ServiceMonitor/%s asks the port %s, which its service has not", m.Name, endpoint.Port)
			}
		}
	}
	if n := len(o.deployments); n > 0 && (len(o.budgets) != n || len(o.policies) != n || len(o.services) != n || len(o.monitors) != n) {
		bad("not every service has a budget, a policy, a service and a monitor")
	}
	return found
}

// podProblems are loose ends and loose security of one kind of pod.
func (o *objects) podProblems(owner string, pod corev1.PodSpec) (found []error) {
	bad := func(format string, args ...any) { found = append(found, fmt.Errorf(owner+": "+format, args...)) }
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot {
		bad("may run as root")
	}
	if s := pod.SecurityContext; s == nil || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		bad("has no seccomp profile")
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && !slices.ContainsFunc(o.configs, func(c *corev1.ConfigMap) bool { return c.Name == v.ConfigMap.Name }) {
			bad("there is no ConfigMap %s", v.ConfigMap.Name)
		}
	}
	if a := pod.ServiceAccountName; a != "" && !slices.ContainsFunc(o.accounts, func(s *corev1.ServiceAccount) bool { return s.Name == a }) {
		bad("there is no ServiceAccount %s", a)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") {
			bad("%s is not locked down", c.Name)
		}
		if c.Resources.Limits.Memory().IsZero() {
			bad("%s has no memory limit", c.Name)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				bad("%s mounts %s, which is no volume", c.Name, m.Name)
			}
		}
	}
	return found
}

// opens says that a container has a port of this name.
func opens(c corev1.Container, port string) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port })
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}
