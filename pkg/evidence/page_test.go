package evidence_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"lockstep.dev/pkg/canon"
	"lockstep.dev/pkg/evidence"
)

func pageRows(n int) []evidence.PageRow {
	out := make([]evidence.PageRow, n)
	for i, r := range rows(n) {
		out[i] = evidence.PageRow{Row: r, SchemaVersion: 3, Sequence: int64(1000 + i)}
	}
	return out
}

func TestAPageComesBackAsItWas(t *testing.T) {
	number := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-200, 200), rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64}))
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfDistinct(rapid.SliceOfN(rapid.Byte(), 0, 20), func(k []byte) string { return string(k) }).Draw(t, "keys")
		slices.SortFunc(keys, bytes.Compare)
		page := make([]evidence.PageRow, len(keys))
		for i, k := range keys {
			page[i] = evidence.PageRow{
				Row: evidence.Row{
					Key: string(k), Revision: number.Draw(t, "revision"), Deleted: rapid.Bool().Draw(t, "deleted"),
					Hash: canon.Hash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash")),
				},
				SchemaVersion: number.Draw(t, "schema"), Sequence: number.Draw(t, "sequence"),
			}
		}
		body := evidence.AppendPage([]byte("kept"), page)
		before := []evidence.PageRow{{Sequence: 9}}
		got, err := evidence.DecodePage(body[4:], before, len(page))
		if err != nil || !slices.Equal(got[1:], page) || got[0] != before[0] {
			t.Fatalf("%v, %v, want %v", got, err, page)
		}
		if evidence.PageRowsRoot(page) != evidence.PageRoot(evidence.Rows(page)) {
			t.Fatal("two roots")
		}
	})
}

func TestDecodePageRefuses(t *testing.T) {
	good := evidence.AppendPage(nil, pageRows(3))
	hash := strings.Repeat("00", 32)
	row := func(key string) string { return key + "020006" + "08" + hash }
	for name, c := range map[string]struct {
		body []byte
		max  int
		want error
	}{
		"nothing":                     {nil, 9, evidence.ErrPage},
		"only a version":              {[]byte{1}, 9, evidence.ErrPage},
		"version 0":                   {append([]byte{0}, good[1:]...), 9, evidence.ErrPage},
		"version 2":                   {append([]byte{2}, good[1:]...), 9, evidence.ErrPage},
		"a byte too many":             {append(slices.Clone(good), 0), 9, evidence.ErrPage},
		"a row too many":              {good, 2, evidence.ErrPageRows},
		"a negative limit":            {good, -1, evidence.ErrPageRows},
		"a count beyond the body":     {unhex(t, "01ffffffffffffffffff01"), math.MaxInt, evidence.ErrPage},
		"a count of 65 bits":          {unhex(t, "01ffffffffffffffffff02"), math.MaxInt, evidence.ErrPage},
		"a count spelled long":        {append([]byte{1, 0x83, 0}, good[2:]...), 9, evidence.ErrPage},
		"a count too small":           {append([]byte{1, 2}, good[2:]...), 9, evidence.ErrPage},
		"a key spelled long":          {unhex(t, "01018100"+"41"+"020006"+"08"+hash), 9, evidence.ErrPage},
		"a key longer than the body":  {unhex(t, "0101"+"7f"+strings.Repeat("00", 60)), 9, evidence.ErrPage},
		"a key beyond all bounds":     {evidence.AppendPage(nil, []evidence.PageRow{{Row: evidence.Row{Key: strings.Repeat("k", evidence.MaxKeyBytes+1)}}}), 9, evidence.ErrPage},
		"a key of 63 bits":            {unhex(t, "0101"+"ffffffffffffffff7f"+strings.Repeat("00", 60)), 9, evidence.ErrPage},
		"an unknown flag":             {unhex(t, "0101"+"0141"+"020206"+"08"+hash), 9, evidence.ErrPage},
		"a hash cut off":              {unhex(t, "0101"+"0141"+"020006"+"08"+hash[:62]), 9, evidence.ErrPage},
		"one key twice":               {unhex(t, "0102"+row("0141")+row("0141")), 9, evidence.ErrOrder},
		"keys descending":             {unhex(t, "0102"+row("0142")+row("0141")), 9, evidence.ErrOrder},
		"a prefix after a longer key": {unhex(t, "0102"+row("024141")+row("0141")), 9, evidence.ErrOrder},
		"signed bytes in wrong order": {unhex(t, "0102"+row("0180")+row("017f")), 9, evidence.ErrOrder},
		"a body too long":             {make([]byte, evidence.MaxPageBytes+1), 9, evidence.ErrPage},
	} {
		t.Run(name, func(t *testing.T) {
			before := []evidence.PageRow{{Sequence: 9}}
			got, err := evidence.DecodePage(c.body, before, c.max)
			if !errors.Is(err, c.want) || len(got) != 1 {
				t.Errorf("%d rows, %v, want %v", len(got), err, c.want)
			}
		})
	}
	for cut := range good {
		if _, err := evidence.DecodePage(good[:cut], nil, 9); !errors.Is(err, evidence.ErrPage) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
	}
	for name, body := range map[string]string{"one row": "0101" + row("0141"), "no rows": "0100", "an empty key first": "0102" + row("00") + row("0100")} {
		if _, err := evidence.DecodePage(unhex(t, body), nil, 9); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodingAPageAllocatesOnceForAllKeys(t *testing.T) {
	body := evidence.AppendPage(nil, pageRows(128))
	var dst []evidence.PageRow
	if n := testing.AllocsPerRun(100, func() {
		var err error
		if dst, err = evidence.DecodePage(body, dst[:0], 128); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}

func FuzzDecodePage(f *testing.F) {
	for _, n := range []int{0, 1, 3, 20} {
		f.Add(evidence.AppendPage(nil, pageRows(n)))
	}
	f.Add(unhex(f, examplePacked0))
	f.Fuzz(func(t *testing.T, body []byte) {
		page, err := evidence.DecodePage(body, nil, 200)
		if err != nil {
			if !errors.Is(err, evidence.ErrPage) && !errors.Is(err, evidence.ErrOrder) && !errors.Is(err, evidence.ErrPageRows) {
				t.Fatal(err)
			}
			return
		}
		if again := evidence.AppendPage(nil, page); !bytes.Equal(again, body) {
			t.Fatalf("%s is decoded, but written as %s", hex.EncodeToString(body), hex.EncodeToString(again))
		}
		for i := 1; i < len(page); i++ {
			if page[i-1].Key >= page[i].Key {
				t.Fatalf("row %d is out of order", i)
			}
		}
	})
}
