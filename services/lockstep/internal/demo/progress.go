package demo

import (
	"fmt"
	"io"
	"strings"

	centerv1 "lockstep.dev/proto/lockstep/center/v1"
	evidencev1 "lockstep.dev/proto/lockstep/evidence/v1"
	"lockstep.dev/services/lockstep/internal/api"
)

// Progress shows how far tasks have come: one line that is written again on a
// terminal, else a line for every change of a state.
type Progress struct {
	out      io.Writer
	terminal bool
	shown    int               // characters on the terminal's line
	states   map[string]string // task → state last told
}

// NewProgress shows on out.
func NewProgress(out io.Writer, terminal bool) *Progress {
	return &Progress{out: out, terminal: terminal, states: map[string]string{}}
}

// Show tells the tasks' states, after a title.
func (p *Progress) Show(title string, tasks []*centerv1.Task) {
	if p.terminal {
		p.rewrite(line(title, tasks))
		return
	}
	for _, t := range tasks {
		if step := step(t); step != "" && p.states[t.GetTaskId()] != step {
			p.states[t.GetTaskId()] = step
			p.print("%stenant %d %s %s%s\n", title, t.GetTenantId(), t.GetCollectionId(), step, why(t))
		}
	}
}

// step is what a line is written for: a state, and each tenth of a scan; "" for
// a task that nothing is known of yet.
func step(t *centerv1.Task) string {
	const tenth = 10
	state := api.Word(t.GetState())
	if done := int(t.GetEstimate().GetScannedPercent()) / tenth * tenth; done > 0 && t.GetState() == evidencev1.TaskState_TASK_STATE_RUNNING {
		return fmt.Sprintf("%s %d%%", state, done)
	}
	return state
}

// Start of the reasons that say why a task does not move or has ended so.
func why(t *centerv1.Task) string {
	for _, reason := range []string{t.GetCode(), t.GetWaitingBecause()} {
		if reason != "" {
			return " (" + reason + ")"
		}
	}
	return ""
}

// line is short enough for any terminal: how many have ended, and the one that
// has come furthest of the others.
func line(title string, tasks []*centerv1.Task) string {
	done, at := 0, -1
	for i, t := range tasks {
		switch {
		case t.GetState() == evidencev1.TaskState_TASK_STATE_UNSPECIFIED:
		case api.Ended(t.GetState()):
			done++
		case at < 0 || t.GetState() > tasks[at].GetState():
			at = i
		}
	}
	text := fmt.Sprintf("%s%d of %d ended", title, done, len(tasks))
	if at < 0 {
		return text
	}
	t := tasks[at]
	text += fmt.Sprintf(" · %s %s", t.GetCollectionId(), strings.ToLower(api.Word(t.GetState())))
	if t.GetState() == evidencev1.TaskState_TASK_STATE_RUNNING {
		text += pace(t.GetEstimate())
	}
	return text
}

// pace is how far a scan is, how fast it goes, and when it ends.
func pace(e *centerv1.Estimate) string {
	text := fmt.Sprintf(" %.1f%%", e.GetScannedPercent())
	if e.GetRowsPerSecond() > 0 {
		text += fmt.Sprintf(" %.0f/s", e.GetRowsPerSecond())
	}
	if e.GetScanEndsAt() != nil {
		text += " until " + e.GetScanEndsAt().AsTime().Format("15:04:05") + "Z"
	}
	return text
}

func (p *Progress) rewrite(text string) {
	width := len([]rune(text))
	pad := strings.Repeat(" ", max(0, p.shown-width))
	p.print("\r%s%s", text, pad)
	p.shown = width
}

// End leaves the terminal's line.
func (p *Progress) End() {
	if p.terminal && p.shown > 0 {
		p.print("\r%s\r", strings.Repeat(" ", p.shown))
		p.shown = 0
	}
}

// print: progress that can't be shown must not end the work it is about.
func (p *Progress) print(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format, args...) }
