package dev

import (
	"maps"

	"lockstep.dev/pkg/identity"
	"lockstep.dev/services/lockstep/internal/world"
)

type settings map[string]any

// Scans are quick, so that nobody waits for a timer; a lost wake-up costs this much.
const scanInterval = "200ms"

// The center's own limits; only a demo of more rows needs higher ones.
const (
	defaultMaxRows  = 20000
	defaultMaxPages = 200
	pageSize        = 200
)

func (s *Stack) centerSettings(address, consumerAddress, tokenHash string) settings {
	return settings{
		"app_key": CenterApp, "key_file": s.file(CenterApp + ".key.json"), "trust_file": s.file("trust.json"),
		"store":    settings{"dsn": s.CenterDSN},
		"source":   settings{"dsn": s.CenterDSN},
		"dataset":  AnswersCenter(),
		"listen":   settings{"grpc": address, "http": "127.0.0.1:0"},
		"targets":  settings{ConsumerApp: consumerAddress},
		"dispatch": settings{"enabled": true},
	}.with(s, tokenHash, "center", s.options.Example.Center)
}

func (s *Stack) consumerSettings(centerAddress, tokenHash string) settings {
	return settings{
		"app_key": ConsumerApp, "key_file": s.file(ConsumerApp + ".key.json"), "trust_file": s.file("trust.json"),
		"source_app_key": CenterApp,
		"center":         settings{"address": centerAddress},
		"store":          settings{"dsn": s.ConsumerDSN},
		"dataset":        AnswersConsumer(),
		"listen":         settings{"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
		"execution":      settings{"enabled": true},
		"refresh": settings{
			"projections": []string{"bills", "scores"},
			"kick":        settings{"stages": settings{"bills": everyTask(), "scores": everyTask()}},
		},
	}.with(s, tokenHash, "consumer", s.options.Example.Consumer)
}

// FirstMonth of the example's bills.
const FirstMonth = world.FirstMonth

// everyTask lets the wake-ups of a projection through, so that a request is worked on at once.
func everyTask() settings { return settings{"enabled": true, "grey": 100} }

// with adds what both services have, and then what the example wants otherwise.
func (o settings) with(s *Stack, tokenHash, name string, otherwise map[string]any) settings {
	o["operators"] = []settings{{"id": "demo", "role": string(identity.RoleAdmin), "token_sha256": tokenHash}}
	o["transport"] = settings{"insecure": true} // both listen on loopback
	o["ready_file"] = s.file(name + ".ready.json")
	o["scan_interval"] = scanInterval
	o["scan_initial_delay"] = "0s"
	o["backoff"] = settings{"base": "200ms", "cap": "2s"}
	o["log"] = settings{"level": "info", "encoding": "console"}
	return merged(o, otherwise)
}

// merged puts the second map over the first.
func merged[M ~map[string]V, V any](under M, over map[string]V) M {
	out := make(M, len(under)+len(over))
	maps.Copy(out, under)
	maps.Copy(out, over)
	return out
}

// AnswersCenter maps the example's system of record.
func AnswersCenter() map[string]any {
	return settings{
		"name": "answers", "table": "answers.answer", "key_kind": "uuid",
		"columns": settings{
			"key": "answer_id", "tenant": "tenant_id", "collection": "form_id", "revision": "revision", "deleted": "deleted",
			"schema_version": "version", "sequence": "seq_no", "content": "values",
		},
	}
}

// AnswersConsumer maps the example's projection.
func AnswersConsumer() map[string]any {
	return settings{
		"name": "answers", "table": "hall.answer_projection", "key_kind": "uuid",
		"columns": settings{
			"key": "answer_id", "tenant": "tenant_id", "collection": "form_id", "revision": "revision", "deleted": "deleted",
			"schema_version": "form_version", "sequence": "seq_no", "content": "values",
			"content_hash": "content_hash", "projection_version": "projection_version", "create_time": "created_at",
			"retired": "retired_at", "retire_hold": "retire_hold",
			"last_event_id": "last_event_id", "conflict_detail": "conflict_detail", "proof_id": "proof_id",
		},
	}
}
