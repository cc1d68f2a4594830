package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestPages(t *testing.T) {
	w := setup(t)
	t.Run("escape_what_they_show", func(t *testing.T) {
		got := w.ask("/console/?what="+url.QueryEscape(`<script>alert("x")</script>`), nil, ann())
		got.want(t, 200, "box &lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;", `<a href="/console/" aria-current="page">Boxes</a>`, "Form.Center")
		if strings.Contains(got.body, "<script>alert") {
			t.Error("a script got through")
		}
	})
	t.Run("have_no_inline_script_or_style", func(t *testing.T) {
		for _, path := range []string{"/console/", "/console/sign-in", "/console/open/7", "/console/refused/gone"} {
			body := w.ask(path, nil, ann()).body
			for _, part := range []string{"<style", " style=", " onclick=", " onload=", "javascript:", "http://", "https://"} {
				if strings.Contains(body, part) {
					t.Errorf("%s has %s", path, part)
				}
			}
			if n := strings.Count(body, "<script"); n != 1 {
				t.Errorf("%s has %d scripts", path, n)
			}
		}
	})
	t.Run("tell_a_refusal_with_its_code", func(t *testing.T) {
		for how, want := range map[string]struct {
			code int
			text []string
		}{
			"gone":     {404, []string{"TASK_NOT_FOUND", "there is no task &lt;b&gt;7&lt;/b&gt;", "<dt>task</dt><dd>7</dd>"}},
			"role":     {403, []string{"PERMISSION_DENIED", "the role operator is needed"}},
			"away":     {503, []string{"UNAVAILABLE", "Try it again in a moment."}},
			"conflict": {409, []string{"TASK_TERMINAL"}},
			"broken":   {500, []string{"INTERNAL", "the log has it"}},
		} {
			got := w.ask("/console/refused/"+how, nil, ann())
			got.want(t, want.code, want.text...)
			if strings.Contains(got.body, "secret") {
				t.Errorf("%s tells %s", how, got.body)
			}
		}
		w.ask("/console/nothing", nil, ann()).want(t, 404, "NOT_FOUND")
	})
	t.Run("name_their_stream_with_the_query", func(t *testing.T) {
		w.ask("/console/live/a?b=c%20d", nil, ann()).want(t, 200, `<body data-live="/console/live/live/a?b=c%20d">`, `<p id="shown">first</p>`)
		w.set(func() { w.still = true })
		if body := w.ask("/console/live/a", nil, ann()).body; strings.Contains(body, "data-live") {
			t.Error("a page where nothing moves any more has a stream")
		}
	})
}

func TestFilesOfPagesAreKeptByTheirDigest(t *testing.T) {
	w := setup(t)
	page := w.ask("/console/sign-in", nil, nil).body
	for _, name := range []string{"console.css", "console.js", "icon.svg"} {
		_, rest, _ := strings.Cut(page, `"/console/static/`)
		for !strings.HasPrefix(rest[strings.Index(rest, "/")+1:], name) {
			_, rest, _ = strings.Cut(rest, `"/console/static/`)
		}
		path, _, _ := strings.Cut(rest, `"`)
		got := w.ask("/console/static/"+path, nil, nil)
		got.want(t, 200)
		if kept := got.header.Get("Cache-Control"); kept != "public, max-age=31536000, immutable" {
			t.Errorf("%s: %s", name, kept)
		}
	}
	w.ask("/console/static/0/setup_test.go", nil, nil).want(t, 404)
}

func TestActions(t *testing.T) {
	w := setup(t)
	t.Run("ask_first", func(t *testing.T) {
		w.ask("/console/open/7?size=5", nil, ann()).want(t, 200, "It is opened.", "<dt>Box</dt><dd>7</dd>", `name="size" value="5"`, `<button class="danger">Open</button>`, `action="/console/open/7?size=5"`)
		if len(w.done) != 0 {
			t.Errorf("done: %v", w.done)
		}
	})
	t.Run("do_nothing_without_what_is_required", func(t *testing.T) {
		w.ask("/console/open/7", url.Values{"size": {"4"}, "reason": {"  "}}, ann()).want(t, 422, "Not accepted: is required.", `name="size" value="4"`)
		if len(w.done) != 0 {
			t.Errorf("done: %v", w.done)
		}
	})
	t.Run("show_what_is_wrong_with_each_field_and_keep_what_was_written", func(t *testing.T) {
		w.ask("/console/open/7", url.Values{"size": {"101"}, "reason": {"because <b>"}, "lid": {"yes"}}, ann()).want(t, 422,
			"Not accepted: is at most 100.", "because &lt;b&gt;</textarea>", "<code>colour</code> is missing", `name="lid" value="yes" checked`)
		w.ask("/console/open/7", url.Values{"size": {"many"}, "reason": {"because"}}, ann()).want(t, 422, "Not accepted: is a whole number.")
	})
	t.Run("say_once_what_was_done", func(t *testing.T) {
		got := w.ask("/console/open/7?size=5", url.Values{"size": {"6"}, "reason": {"because"}, "lid": {"yes", ""}}, ann())
		got.wantTo(t, "/console/?what=opened")
		if len(got.cookies) != 1 || !got.cookies[0].HttpOnly || !got.cookies[0].Secure {
			t.Fatalf("cookies %v", got.cookies)
		}
		next := w.ask("/console/", nil, ann("Cookie", got.cookies[0].Name+"="+got.cookies[0].Value))
		next.want(t, 200, `<p class="notice" role="status">The box &lt;is&gt; open.</p>`)
		if len(next.cookies) != 1 || next.cookies[0].MaxAge != -1 {
			t.Errorf("the notice stays: %v", next.cookies)
		}
	})
	t.Run("believe_the_form_and_not_the_address", func(t *testing.T) {
		w.ask("/console/open/8?lid=yes&reason=none", url.Values{"lid": {""}, "size": {""}, "reason": {"because"}}, ann()).wantTo(t, "/console/?what=opened")
		if want := []string{"7 lid 6 because", "8 no lid  because"}; !slices.Equal(w.done, want) {
			t.Errorf("done %q, want %q", w.done, want)
		}
	})
}

func TestDownloads(t *testing.T) {
	w := setup(t)
	got := w.ask("/console/file/whole", nil, ann())
	got.want(t, 200)
	if len(got.body) != 50_000 || got.broken != nil || got.header.Get("Content-Type") != "text/csv" || got.header.Get("Content-Disposition") != `attachment; filename="a b.csv"` {
		t.Errorf("%d bytes, %v, %v", len(got.body), got.broken, got.header)
	}
	if got := w.ask("/console/file/broken", nil, ann()); got.broken == nil {
		t.Errorf("a file that broke off looks whole: %d bytes", len(got.body))
	}
	w.ask("/console/file/none", nil, ann()).want(t, http.StatusNotFound, "there is no such file")
}
