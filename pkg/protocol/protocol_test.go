package protocol

import (
	"errors"
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	raw, err := ParseKey("00112233445566778899aabbccddeeff")
	if err != nil || raw != "\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff" {
		t.Fatalf("%x, %v", raw, err)
	}
	if FormatKey(raw) != "00112233445566778899aabbccddeeff" {
		t.Fatal("a key is spelled as it was parsed")
	}
	for _, bad := range []string{
		"", "0", "00112233445566778899AABBCCDDEEFF", "00112233-4455-6677-8899-aabbccddeeff",
		"00112233445566778899aabbccddeefg", "00112233445566778899aabbccddeeff0", " 0112233445566778899aabbccddeeff",
		strings.Repeat("é", 16),
	} {
		if _, err := ParseKey(bad); !errors.Is(err, ErrKey) {
			t.Errorf("%q: got %v, want ErrKey", bad, err)
		}
	}
}

func TestOpenOutcomes(t *testing.T) {
	want := map[Outcome]bool{
		Repaired: false, Settled: false, Retired: false,
		Reported: true, Deferred: true, Exhausted: true, Quarantined: true,
	}
	for o, open := range want {
		if o.Open() != open {
			t.Errorf("%s: open is %t", o, o.Open())
		}
	}
	r := Report{Counts: []ClassCount{
		{Class: Stale, Found: 9, Repaired: 4, Settled: 1, Reported: 1, Deferred: 1, Exhausted: 1, QuarantinedCount: 1},
		{Class: ExtraRow, Found: 3, Retired: 2, Reported: 1},
	}}
	if r.Open() != 5 {
		t.Errorf("the report leaves %d open, want 5", r.Open())
	}
}

func TestTerminalStates(t *testing.T) {
	want := map[State]bool{Queued: false, Dispatched: false, Running: false, Completed: true, Partial: true, Failed: true, Cancelled: true}
	for s, terminal := range want {
		if s.Terminal() != terminal {
			t.Errorf("%s: terminal is %t", s, s.Terminal())
		}
	}
}
