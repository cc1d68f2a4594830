// Package browsertest drives a real Chromium over a web console in tests.
//
// It promises that a test fails when a page logs an error, throws, or breaks its
// own content security policy, when a page is wider than a narrow screen, and
// when there is no browser: nothing is skipped.
package browsertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// ScreenshotsVariable names a folder that gets a screenshot of every page, for
// people to look at; without it none is made.
const ScreenshotsVariable = "LOCKSTEP_SCREENSHOTS"

const (
	stepTimeout = time.Minute // of one step; a loaded machine is slow
	lookAgain   = 50 * time.Millisecond
	wide        = 1280
	narrow      = 360
)

// Tab is a page of a browser, with a profile of its own.
type Tab struct {
	t    *testing.T
	base string
	ctx  context.Context
	dir  string

	mu       sync.Mutex
	troubles []string
}

// Open starts a browser for the service at base, such as "http://127.0.0.1:7002".
func Open(t *testing.T, base string) *Tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WindowSize(wide, 900), chromedp.DisableGPU)
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses root's otherwise
	}
	parent, end := context.WithCancel(context.WithoutCancel(t.Context())) // it ends in the clean-up, after the last look
	allocated, endBrowser := chromedp.NewExecAllocator(parent, options...)
	ctx, endTab := chromedp.NewContext(allocated)
	tab := &Tab{t: t, base: base, ctx: ctx, dir: os.Getenv(ScreenshotsVariable)}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium, which `tools/setup.sh browser` installs: %v", err)
	}
	messages := chromedp.Console(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for message, err := range messages {
			if err != nil {
				return
			}
			tab.hear(message)
		}
	})
	t.Cleanup(func() {
		endTab()
		endBrowser()
		end()
		listening.Wait()
		for _, trouble := range tab.Troubles() {
			t.Errorf("the browser says: %s", trouble)
		}
	})
	return tab
}

// hear keeps what a page must not do.
func (b *Tab) hear(m chromedp.ConsoleMessage) {
	bad := m.IsException() || m.Type == "error" || m.Type == "warning" || m.Type == "assert"
	// A refusal's page is a document with its status; the test looks at that itself.
	if !bad || m.Source == "network" && strings.Contains(m.Text, "the server responded with a status of") && !strings.Contains(m.URL, "/static/") {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.troubles = append(b.troubles, fmt.Sprintf("%s %s (%s %s:%d)", m.Source, m, m.URL, "line", m.Line))
}

// Troubles gives what the browser complained of so far, and forgets it.
func (b *Tab) Troubles() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	troubles := b.troubles
	b.troubles = nil
	return troubles
}

// AwaitTrouble waits until the browser complained of all of these.
func (b *Tab) AwaitTrouble(texts ...string) {
	b.t.Helper()
	deadline := time.NewTimer(stepTimeout)
	defer deadline.Stop()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		b.mu.Lock()
		said := strings.Join(b.troubles, "\n")
		b.mu.Unlock()
		missing := slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return strings.Contains(said, text) })
		if len(missing) == 0 {
			return
		}
		select {
		case <-again.C:
		case <-deadline.C:
			b.t.Fatalf("the browser does not complain of %q:\n%s", missing, said)
		}
	}
}

// Script switches the pages' scripts on or off, from the next page on.
func (b *Tab) Script(on bool) {
	b.t.Helper()
	do(b, "switch scripts", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
		return err
	}))
}

// do does one step, or ends the test telling what the page shows.
func do[T any](b *Tab, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	got, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%s: %v\n%s", what, err, b.shown())
	}
	return got
}

// shown is the page in words.
func (b *Tab) shown() string {
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("location.href + '\\n' + (document.body?.innerText ?? '')"))
	if err != nil {
		return err.Error()
	}
	return text
}

// Go opens a path of the service, or another address.
func (b *Tab) Go(path string) {
	b.t.Helper()
	if strings.HasPrefix(path, "/") {
		path = b.base + path
	}
	do(b, "open "+path, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		for {
			// A page that was just asked for by a click may take the place of this one.
			got, err := chromedp.Navigate(path)(ctx, t)
			if err == nil || !strings.Contains(err.Error(), "net::ERR_ABORTED") {
				return got, err
			}
		}
	})
}

// Status is the HTTP status of the document shown.
func (b *Tab) Status() int {
	b.t.Helper()
	return Evaluate[int](b, "performance.getEntriesByType('navigation')[0].responseStatus")
}

// Path is the path and query shown.
func (b *Tab) Path() string {
	b.t.Helper()
	return Evaluate[string](b, "location.pathname + location.search")
}

// SignIn signs in with a token, from wherever the page is.
func (b *Tab) SignIn(token string) {
	b.t.Helper()
	b.Go("/console/sign-in")
	b.Type("#token", token)
	b.Press("Sign in")
	b.Await("Sign out")
}

// Type writes into a field.
func (b *Tab) Type(field, text string) {
	b.t.Helper()
	do(b, "empty "+field, chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).value = ''", field)))
	do(b, "type into "+field, chromedp.SendKeys(chromedp.CSS(field), text))
}

// Choose picks an option by its value.
func (b *Tab) Choose(field, value string) {
	b.t.Helper()
	do(b, "choose "+value, chromedp.SetValue(chromedp.CSS(field), value))
}

// Click clicks what a CSS selector finds first.
func (b *Tab) Click(selector string) {
	b.t.Helper()
	do(b, "click "+selector, steadily(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible)))
}

// steadily does a click again that found its element and then lost it, because a
// live part was drawn anew in between.
func steadily(click chromedp.Action[chromedp.Void]) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		for {
			done, err := click(ctx, t)
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "Could not find node") {
				return done, err
			}
		}
	}
}

// Press clicks the first button or link that is called label.
func (b *Tab) Press(label string) {
	b.t.Helper()
	path := fmt.Sprintf("//*[self::a or self::button or self::summary][normalize-space()=%q]", label)
	do(b, "press "+label, steadily(chromedp.Click(path, chromedp.NodeVisible)))
}

// Keys presses keys, where the focus is.
func (b *Tab) Keys(keys string) {
	b.t.Helper()
	do(b, "press keys", chromedp.KeyEvent(keys))
}

// Await waits until the page shows a text, over any number of pages.
func (b *Tab) Await(text string) {
	b.t.Helper()
	b.until("wait for "+text, fmt.Sprintf("document.readyState === 'complete' && document.body.innerText.includes(%q)", text))
}

// AwaitGone waits until the page does not show a text any more.
func (b *Tab) AwaitGone(text string) {
	b.t.Helper()
	b.until("wait until gone: "+text, fmt.Sprintf("document.readyState === 'complete' && !document.body.innerText.includes(%q)", text))
}

// AwaitLive waits until the page is told of changes.
func (b *Tab) AwaitLive() {
	b.t.Helper()
	b.until("wait until the page is live", "document.querySelector('.live-state.on') !== null")
}

// AwaitStill waits until the page is told of no more changes.
func (b *Tab) AwaitStill() {
	b.t.Helper()
	b.until("wait until the page is still", "document.querySelector('.live-state.on, .live-state.off') === null")
}

func (b *Tab) until(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
	defer cancel()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		// While a page gives way to the next one there is nothing to ask.
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression)); err == nil && ok {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			b.t.Fatalf("%s: in vain\n%s", what, b.shown())
		}
	}
}

// Text is what an element shows.
func (b *Tab) Text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(do(b, "read "+selector, chromedp.Text(chromedp.CSS(selector))))
}

// Evaluate runs an expression in the page, and waits for a promise that it gives.
func Evaluate[T any](b *Tab, expression string) T {
	b.t.Helper()
	return do(b, "evaluate "+expression, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Shoot fails where a page is wider than a narrow screen. With ScreenshotsVariable
// set it writes screenshots, light and dark, wide and narrow.
func (b *Tab) Shoot(name string) {
	b.t.Helper()
	do(b, "make the screen narrow", emulate("", narrow))
	if over := Evaluate[float64](b, "document.documentElement.scrollWidth") - narrow; over > 0 {
		b.t.Errorf("%s is %v px wider than a screen of %d px", name, over, narrow)
	}
	if b.dir != "" {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{wide, narrow} {
				b.shoot(name, scheme, width)
			}
		}
	}
	do(b, "back to a wide screen", emulate("", wide))
}

func (b *Tab) shoot(name, scheme string, width int64) {
	b.t.Helper()
	do(b, "look at "+name, emulate(scheme, width))
	shot := do(b, "look at "+name, func(ctx context.Context, t *chromedp.Target) ([]byte, error) {
		beyond := true
		got, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{CaptureBeyondViewport: &beyond})
		return got.Data, err
	})
	file := filepath.Join(b.dir, fmt.Sprintf("%s-%s-%d.png", name, scheme, width))
	if err := os.WriteFile(file, shot, 0o600); err != nil {
		b.t.Error(err)
	}
}

// emulate sets the reader's colour scheme and screen.
func emulate(scheme string, width int64) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		var features []*emulation.MediaFeature
		if scheme != "" {
			features = []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
		}
		if _, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride,
			emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1, Mobile: width == narrow})
		return err
	})
}
