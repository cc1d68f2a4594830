// Package console is the web console's shell, shared by both services: what is
// served under /console/ apart from the pages themselves.
//
// It promises that a page shows only what the signed-in operator's own token may
// read: every figure comes from the service's gRPC API, called with that token
// over the gateway's connection, so roles, tenants and rate limits hold as they
// do for everybody. The console has no privilege and keeps no session: the token
// is in the operator's cookie (Secure, HttpOnly, SameSite=Strict), so any replica
// takes it. A request that another origin sent and that changes something is
// refused, and every page works without JavaScript. It never puts a token into a
// URL, a page or the log, loads nothing from elsewhere, has no inline script or
// style, and is cached nowhere.
//
// # Adding a page
//
// A page is one function and one template. The function asks the service's API
// with the context it is given, which carries the operator's token; its error
// becomes a page with the stable code.
//
//	c.Page(console.Page{
//		Path: "tasks/{task}", Under: "tasks", Template: "task.html",
//		Show: func(ctx context.Context, r *console.Request) (console.View, error) {
//			got, err := admin.GetTask(ctx, &centerv1.GetTaskRequest{TaskId: r.Value("task")})
//			if err != nil {
//				return console.View{}, err
//			}
//			return console.View{Title: "Task", Data: got.GetTask()}, nil
//		},
//	})
//
// The template defines up to three blocks, shown in this order; dot is View.Data.
//
//	{{define "content"}} filters, links to actions: drawn once {{end}}
//	{{define "live"}}    drawn again while the page is open, if Page.Live is set {{end}}
//	{{define "below"}}   drawn once {{end}}
//
// Forms belong outside "live": it is replaced under the reader's hands. Files of
// Config.Templates whose name begins with "_" are there for all pages. The blocks
// "empty", "filter", "pager" and "facts" and the functions in funcs.go are the
// shell's; tables stand in <div class="table-box"> so that only they scroll.
//
// # Adding an action
//
// What changes something is an Action: GET shows a form that says what will
// happen, to what, and asks for what is needed (mostly a reason), POST does it and
// redirects. A page links to it like to any other page. A refusal shows the form
// again with its code and what is wrong with each field.
//
// A file to keep is a Download. The pages of the audit log are the same for both
// services: AddAudit adds them.
package console
