package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

const (
	recordQuery = "?collection_id=enrolment&tenant_id=101"
	delivered   = `{"deliveryId":"` + taskID + `","consumer":"svc-hall","tenantId":"101","collectionId":"enrolment","key":"` + taskID + `","state":"DELIVERY_STATE_FAILED","code":"HASH_CONFLICT","attempts":1,"revision":"3"}`
	atCenter    = `{"found":true,"revision":"3","canonical":"{\"price\":12.345}","contentHash":"aa"}`
	atConsumer  = `{"found":true,"collectionId":"enrolment","revision":"3","canonical":"{\"price\":12.35}","contentHash":"bb","storedHash":"bb","highWater":{"centerEpoch":"1","revision":"3"}}`
)

func TestRecordCommands(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		answers map[string]string
		exit    int
		out     []string
	}{
		"delivery failed": {
			[]string{"delivery", "failed", "--code", "HASH_CONFLICT", "--state", "failed"},
			map[string]string{"GET /v1/deliveries?code=HASH_CONFLICT&page_size=50&states=DELIVERY_STATE_FAILED": `{"deliveries":[` + delivered + `],"nextPageToken":"more"}`},
			exitDone,
			[]string{"svc-hall", "FAILED", "HASH_CONFLICT", "more"},
		},
		"delivery replay": {
			[]string{"delivery", "replay", taskID, "--reason", "mended"},
			map[string]string{"POST /v1/deliveries/" + taskID + ":replay": `{"delivery":` + delivered + `}`},
			exitDone,
			[]string{taskID},
		},
		"record replay": {
			[]string{"record", "replay", taskID, "--to", "svc-hall", "--tenant", "101", "--collection", "enrolment"},
			map[string]string{"POST /v1/records/" + taskID + ":replay": `{"delivery":` + delivered + `}`},
			exitDone,
			[]string{taskID},
		},
		"record replay without a grant": {
			[]string{"record", "replay", taskID, "--to", "svc-hall", "--tenant", "101", "--collection", "enrolment"},
			map[string]string{"POST /v1/records/" + taskID + ":replay": `403 {"code":"GRANT_REVOKED","message":"no effective grant"}`},
			exitRefused, nil,
		},
		"record replay to nobody": {[]string{"record", "replay", taskID, "--tenant", "101", "--collection", "enrolment"}, nil, exitError, nil},
		"record nowhere":          {[]string{"record", "explain", taskID}, nil, exitError, nil},
		"retired list": {
			[]string{"retired", "list", "--tenant", "101", "--collection", "enrolment", "--limit", "2"},
			map[string]string{"GET /v1/retired?collection_id=enrolment&page_size=2&tenant_id=101": `{"rows":[{"key":"` + taskID + `","revision":"4","proofId":"proof-1","floor":{"centerEpoch":"1","revision":"9"}}]}`},
			exitDone,
			[]string{taskID, "1/9", "proof-1"},
		},
		"retired restore": {
			[]string{"retired", "restore", taskID, "--tenant", "101", "--collection", "enrolment"},
			map[string]string{"POST /v1/retired/" + taskID + ":restore": `{}`},
			exitDone,
			[]string{"is back, and held"},
		},
		"quarantine list": {
			[]string{"quarantine", "list", "--tenant", "101"},
			map[string]string{"GET /v1/quarantined?page_size=50&tenant_id=101": `{"records":[{"taskId":"` + taskID + `","collectionId":"enrolment","outcome":{"key":"` + taskID + `","class":"STALE","code":"QUARANTINED","centerRevision":"4"}}]}`},
			exitDone,
			[]string{"STALE", "QUARANTINED", "absent"},
		},
		"quarantine retry": {
			[]string{"quarantine", "retry", taskID, "--tenant", "101", "--collection", "enrolment"},
			map[string]string{"POST /v1/quarantined/" + taskID + ":retry": `{"reopened":1}`},
			exitDone,
			[]string{"1 taken off the list", "lockstep task create", "--key " + taskID},
		},
		"quarantine retry now": {
			[]string{"quarantine", "retry", taskID, "--tenant", "101", "--collection", "enrolment", "--to", "svc-hall"},
			map[string]string{
				"POST /v1/quarantined/" + taskID + ":retry": `{"reopened":1}`,
				"POST /v1/tasks": `{"tasks":[{"task":` + task("QUEUED", "") + `}]}`,
			},
			exitDone,
			[]string{"QUEUED"},
		},
		"task outcomes": {
			[]string{"task", "outcomes", taskID, "--outcome", "repaired"},
			map[string]string{"GET /v1/work/" + taskID + "/outcomes?outcome=REPAIRED&page_size=50": `{"outcomes":[{"key":"` + taskID + `","class":"STALE","outcome":"REPAIRED"}]}`},
			exitDone,
			[]string{"STALE", "REPAIRED"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, c.answers)
			if code := w.run(t, c.args...); code != c.exit {
				t.Errorf("exit code %d, want %d: %s", code, c.exit, w.err.String())
			}
			for _, want := range c.out {
				if !strings.Contains(w.out.String(), want) {
					t.Errorf("%q does not say %q", w.out.String(), want)
				}
			}
		})
	}
}

func TestRecordExplain(t *testing.T) {
	// Both sides answer at one address here, so each has a server of its own.
	center := setup(t, map[string]string{"GET /v1/records/" + taskID + recordQuery: atCenter})
	consumer := setup(t, map[string]string{"GET /v1/records/" + taskID + recordQuery: atConsumer})
	args := []string{"record", "explain", taskID, "--tenant", "101", "--collection", "enrolment", "--consumer", consumer.env[envConsumer]}
	if code := center.run(t, args...); code != exitDiffers {
		t.Errorf("exit code %d: %s", code, center.err.String())
	}
	for _, want := range []string{"differs: precision", "$.price", "12.345", "12.35", "center epoch 1, revision 3"} {
		if !strings.Contains(center.out.String(), want) {
			t.Errorf("%s\ndoes not say %q", center.out.String(), want)
		}
	}
	if code := center.run(t, append(args, "--json")...); code != exitDiffers {
		t.Errorf("exit code %d", code)
	}
	var answer struct {
		Finding struct{ Cause, Path string }
		Center  struct{ Revision string }
	}
	if err := json.Unmarshal([]byte(center.out.String()), &answer); err != nil || answer.Finding.Cause != "precision" || answer.Center.Revision != "3" {
		t.Errorf("%v: %s", err, center.out.String())
	}
	consumer.answers["GET /v1/records/"+taskID+recordQuery] = strings.ReplaceAll(strings.ReplaceAll(atConsumer, "12.35", "12.345"), `"bb"`, `"aa"`)
	if code := center.run(t, args...); code != exitDone || !strings.Contains(center.out.String(), "equal") {
		t.Errorf("exit code %d: %s", code, center.out.String())
	}
}
