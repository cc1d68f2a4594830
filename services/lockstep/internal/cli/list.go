package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep.dev/pkg/serve"
)

// paging says how many rows of a list are wanted, and from where on.
type paging struct {
	limit int32
	page  string
	all   bool
}

const (
	defaultLimit = 50
	maxLimit     = 500
)

func (p *paging) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Int32Var(&p.limit, "limit", defaultLimit, fmt.Sprintf("rows a page, at most %d", maxLimit))
	flags.StringVar(&p.page, "page", "", "the page that an earlier answer named")
	flags.BoolVar(&p.all, "all", false, "every page; with --json one row a line")
	inner := cmd.PreRun
	cmd.PreRun = func(cmd *cobra.Command, args []string) {
		if p.all && !cmd.Flags().Changed("limit") {
			p.limit = maxLimit
		}
		if inner != nil {
			inner(cmd, args)
		}
	}
}

// listed is one page as the service gave it.
type listed struct {
	text []byte
	next string // "" on the last page
	rows func(w *tabwriter.Writer)
}

// list prints a page, or with --all page after page: one is held at a time, so
// the columns of a table are as wide as each page needs.
func (r *remote) list(ctx context.Context, p *paging, head string, read func(size int32, token string) (listed, error)) error {
	if !p.all {
		one, err := read(p.limit, p.page)
		if err != nil {
			return err
		}
		return r.show(one.text, func(w *tabwriter.Writer) {
			fmt.Fprint(w, head)
			one.rows(w)
			writeMore(w, one.next)
		})
	}
	for token, first := p.page, true; first || token != ""; first = false {
		var page listed
		if err := patiently(ctx, func() (err error) {
			page, err = read(p.limit, token)
			return err
		}); err != nil {
			return err
		}
		if page.next != "" && page.next == token {
			return errors.New("the list does not go on")
		}
		if err := r.showPage(page, head); err != nil {
			return err
		}
		token, head = page.next, ""
	}
	return nil
}

func (r *remote) showPage(page listed, head string) error {
	if r.asJSON {
		rows, _, err := serve.RowsOf(page.text)
		if err != nil {
			return err
		}
		lines, err := serve.LinesOf(rows)
		if err != nil {
			return err
		}
		r.env.print("%s", lines)
		return nil
	}
	return r.show(nil, func(w *tabwriter.Writer) {
		fmt.Fprint(w, head)
		page.rows(w)
	})
}

func writeMore(w *tabwriter.Writer, token string) {
	if token != "" {
		fmt.Fprintf(w, "more: --page %s\n", token)
	}
}
