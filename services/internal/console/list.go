package console

import (
	"net/url"
	"strconv"
	"strings"

	"lockstep.dev/pkg/fault"
)

// PageToken is the name of the field that lists go on with.
const PageToken = "page_token"

// Pager leads through a list: forwards, and back to its start.
type Pager struct{ First, Next string }

// Pager makes one of the token that came with a page of a list, "" on its last.
func (r *Request) Pager(next string) Pager {
	at := func(token string) string {
		query := url.Values{}
		for name, values := range r.HTTP.URL.Query() {
			if name != PageToken {
				query[name] = values
			}
		}
		if token != "" {
			query.Set(PageToken, token)
		}
		address := url.URL{Path: pagePath(r.HTTP.URL.Path), RawQuery: query.Encode()}
		return address.String()
	}
	var p Pager
	if r.Value(PageToken) != "" {
		p.First = at("")
	}
	if next != "" {
		p.Next = at(next)
	}
	return p
}

// pagePath is the path of the page that a stream belongs to.
func pagePath(path string) string {
	if rest, ok := strings.CutPrefix(path, Root+"live/"); ok {
		return Root + rest
	}
	return path
}

// Filter narrows a list.
type Filter struct {
	Fields []Field
	Clear  string // the page without a filter; "" where there is none
	Button string // "" for Filter
}

// Filter makes a filter that has what the request asks for.
func (r *Request) Filter(fields ...Field) Filter {
	f := Filter{Fields: Filled(r, fields)}
	for _, field := range f.Fields {
		if field.Value != "" {
			f.Clear = pagePath(r.HTTP.URL.Path)
		}
	}
	return f
}

// Number reads a whole number; 0 where there is none.
func (r *Request) Number(name string) (int64, error) {
	text := r.Value(name)
	if text == "" {
		return 0, nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fault.New(fault.InvalidArgument, "a number is needed").WithField(name, "is a whole number")
	}
	return number, nil
}
