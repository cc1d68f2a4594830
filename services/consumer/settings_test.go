package main

import (
	"os"
	"testing"

	"lockstep.dev/pkg/config"
	"lockstep.dev/services/internal/settingsdoc"
)

// TestSettingsReference holds docs/operating/settings-consumer.md to the settings
// and their comments. With WRITE_SETTINGS=1, as make generate has it, it writes.
func TestSettingsReference(t *testing.T) {
	const file = "../../docs/operating/settings-consumer.md"
	settings, err := settingsdoc.List("../..", "services/consumer", defaults())
	if err != nil {
		t.Fatal(err)
	}
	want := settingsdoc.Markdown("consumer", envPrefix, settings)
	if os.Getenv("WRITE_SETTINGS") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale: run make generate", file)
	}
}

// The settings that come with the deployments are taken as they are.
func TestDeployedSettings(t *testing.T) {
	for _, file := range []string{"compose/consumer.yaml", "kubernetes/settings/consumer.yaml"} {
		if err := config.Load("../../deploy/"+file, envPrefix, defaults()); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
