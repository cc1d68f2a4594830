package console

import (
	"fmt"
	"html/template"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// funcs are what templates may call.
func (c *Console) funcs() template.FuncMap {
	return template.FuncMap{
		"href":  func(parts ...any) string { return Href(Path(texts(parts)...)) },
		"asset": c.assetPath,
		// Times: how long ago with the exact time behind it, or the exact time.
		"when":   func(at any) template.HTML { return when(at, c.Now()) },
		"moment": func(at any) string { return exact(timeOf(at)) },
		"took":   func(from, to any) string { return took(timeOf(from), timeOf(to)) },
		// States and codes: the word with a mark and a tone.
		"badge": func(state any) template.HTML { return badge(toneOf(Word(state)), Word(state)) },
		"tone":  badge,
		"word":  Word,
		// Figures.
		"number":  number,
		"size":    size,
		"percent": func(p float64) string { return strconv.FormatFloat(math.Floor(p*10)/10, 'f', 1, 64) + " %" },
		// A long identifier, shortened, with all of it behind it.
		"short": short,
		"bars":  bars,
	}
}

func texts(parts []any) []string {
	all := make([]string, len(parts))
	for i, part := range parts {
		all[i] = fmt.Sprint(part)
	}
	return all
}

// timeOf reads the times that messages and structs have; zero for none.
func timeOf(at any) time.Time {
	switch at := at.(type) {
	case time.Time:
		return at
	case *timestamppb.Timestamp:
		if at != nil {
			return at.AsTime()
		}
	}
	return time.Time{}
}

func exact(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02 15:04:05 UTC")
}

// when is kept current by the script, by the same rules.
func when(value any, now time.Time) template.HTML {
	at := timeOf(value)
	if at.IsZero() {
		return `<span class="none">–</span>`
	}
	//nolint:gosec // nothing but times is written
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s" data-ago>%s</time>`, at.UTC().Format(time.RFC3339), exact(at), ago(now.Sub(at))))
}

func ago(d time.Duration) string {
	text := span(d.Abs())
	switch {
	case text == "":
		return "now"
	case d < 0:
		return "in " + text
	default:
		return text + " ago"
	}
}

// span is a duration in its largest unit; "" below a second.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return ""
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}

// took is how long something took; "" where it has no end.
func took(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return ""
	}
	d := to.Sub(from)
	switch {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
}

// Word is an enum's value without its type's prefix, "" for UNSPECIFIED, or text as it is.
func Word(value any) string {
	enum, ok := value.(protoreflect.Enum)
	if !ok {
		return fmt.Sprint(value)
	}
	values := enum.Descriptor().Values()
	named := values.ByNumber(enum.Number())
	if named == nil {
		return strconv.Itoa(int(enum.Number()))
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	word := strings.TrimPrefix(string(named.Name()), prefix)
	if word == "UNSPECIFIED" {
		return ""
	}
	return word
}

// Tone is what a word means to a reader: its colour, and the mark that tells
// without colour.
type Tone string

// The tones.
const (
	Good Tone = "good" // as it should be
	Busy Tone = "busy" // something moves
	Idle Tone = "idle" // it waits for its turn
	Warn Tone = "warn" // somebody should look
	Bad  Tone = "bad"  // it failed
	Off  Tone = "off"  // over, or not in force
)

var marks = map[Tone]string{Good: "✓", Busy: "▸", Idle: "○", Warn: "!", Bad: "✕", Off: "–"}

var tones = map[string]Tone{
	"COMPLETED": Good, "COMPLETE": Good, "DONE": Good, "APPLIED": Good, "FRESH": Good, "SUCCEEDED": Good, "PAID": Good, "SETTLED": Good,
	"SUCCESS": Good, "REPAIRED": Good,
	"RUNNING": Busy, "DISPATCHED": Busy, "SENDING": Busy, "SCANNING": Busy, "RETIRING": Busy, "REPORTING": Busy, "ACCEPTED": Busy, "CLAIMED": Busy,
	"QUEUED": Idle, "PENDING": Idle, "WAITING": Idle, "DUPLICATE": Idle, "OLDER": Idle, "OPEN": Idle,
	"PARTIAL": Warn, "PAUSED": Warn, "QUARANTINED": Warn, "CONFLICT": Warn, "RETRY": Warn, "STALE": Warn,
	"PARKED": Warn, "REPORTED": Warn, "EXHAUSTED": Warn,
	"FAILED": Bad, "CANCELLED": Off, "DROPPED": Off, "PURGED": Off, "SUPERSEDED": Off, "RETIRED": Off,
}

func toneOf(word string) Tone {
	if tone, ok := tones[word]; ok {
		return tone
	}
	return Idle
}

func badge(tone Tone, text string) template.HTML {
	if text == "" {
		return ""
	}
	mark, ok := marks[tone]
	if !ok {
		tone, mark = Idle, marks[Idle]
	}
	//nolint:gosec // the text is escaped, the rest is ours
	return template.HTML(fmt.Sprintf(`<span class="badge %s"><span aria-hidden="true">%s</span> %s</span>`, tone, mark, template.HTMLEscapeString(text)))
}

// number groups digits with narrow spaces that do not break.
func number(value any) string {
	v := reflect.ValueOf(value)
	if !v.CanInt() {
		return fmt.Sprint(value)
	}
	digits := strconv.FormatInt(v.Int(), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "−", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return sign + digits
}

func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return number(bytes) + " B"
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + units[unit]
}

// shortened is how much of an identifier tells it from its neighbours.
const shortened = 8

func short(id string) template.HTML {
	if len(id) <= shortened+2 {
		return template.HTML(`<code>` + template.HTMLEscapeString(id) + `</code>`) //nolint:gosec // escaped
	}
	//nolint:gosec // both are escaped
	return template.HTML(fmt.Sprintf(`<code title="%s">%s…</code>`, template.HTMLEscapeString(id), template.HTMLEscapeString(strings.ToValidUTF8(id[:shortened], ""))))
}
