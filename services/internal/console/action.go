package console

import (
	"context"
	"net/http"

	"lockstep.dev/pkg/fault"
)

// Action changes something: GET shows its form, POST does it.
type Action struct {
	Path  string
	Under string // the Path of the navigation's entry that it belongs to
	Needs string // the full name of the API's method that it calls
	// Form says what will happen and what is asked for. Fields may have values to
	// begin with; what was sent replaces them.
	Form func(ctx context.Context, r *Request) (Form, error)
	// Do is called once all required fields are there.
	Do func(ctx context.Context, r *Request) (Done, error)
}

// Form is what an action asks for.
type Form struct {
	Title   string
	Trail   []Link
	Explain string // what will happen, in a sentence or two
	Facts   []Fact // what it will happen to
	Fields  []Field
	Button  string
	Danger  bool   // it takes something away
	Back    string // the path that a change of mind leads to
}

// Done is where to go after an action, and what to say there.
type Done struct{ To, Say string }

// Fact is a line of a list of facts.
type Fact struct{ Label, Value string }

// Kind is how a field is asked for.
type Kind int

// The kinds of fields.
const (
	Text Kind = iota
	LongText
	Number
	Choice
	Check
)

// Field is one of a form or a filter.
type Field struct {
	Name, Label, Help string
	Kind              Kind
	Options           []Option // of a Choice
	Value             string
	Required          bool
	Max               int // characters; 0 for maxField
	Wrong             string
}

// Option is one choice.
type Option struct{ Value, Label string }

const (
	maxField  = 200 // a name, a key, a number
	maxReason = 500 // what the services keep of it
)

// Reason asks why; the audit log keeps it.
func Reason() Field {
	return Field{Name: "reason", Label: "Reason", Help: "It is kept in the audit log.", Kind: LongText, Required: true, Max: maxReason}
}

// Limit is how many characters a field takes.
func (f Field) Limit() int {
	if f.Max == 0 {
		return maxField
	}
	return f.Max
}

// IsText and its like let a template choose.
func (f Field) IsText() bool     { return f.Kind == Text }
func (f Field) IsLongText() bool { return f.Kind == LongText }
func (f Field) IsNumber() bool   { return f.Kind == Number }
func (f Field) IsChoice() bool   { return f.Kind == Choice }
func (f Field) IsCheck() bool    { return f.Kind == Check }

// asked is a form on its page.
type asked struct {
	Form

	Action  string // where it is sent
	Problem *Problem
}

// BackHref is where a change of mind leads.
func (a asked) BackHref() string { return Href(a.Back) }

// Action adds an action.
func (c *Console) Action(a Action) {
	c.need(a.Path, a.Needs)
	show := func(ctx context.Context, w http.ResponseWriter, r *Request, code int, change func(*asked)) {
		form, err := a.Form(ctx, r)
		if err != nil {
			c.fail(w, r, err)
			return
		}
		page := asked{Form: form, Action: here(r.HTTP)}
		page.Fields = Filled(r, page.Fields)
		change(&page)
		f := c.frame(w, r, View{Title: form.Title, Trail: form.Trail, Data: page})
		f.under(a.Under)
		c.execute(w, code, c.form, f)
	}
	c.mux.Handle(pattern("GET", Root, a.Path), c.signedIn(c.admit(a.Path, func(w http.ResponseWriter, r *Request) {
		ctx, cancel := context.WithTimeout(as(r.HTTP.Context(), r.token), callTimeout)
		defer cancel()
		show(ctx, w, r, http.StatusOK, func(*asked) {})
	})))
	c.mux.Handle(pattern("POST", Root, a.Path), c.signedIn(c.admit(a.Path, func(w http.ResponseWriter, r *Request) {
		ctx, cancel := context.WithTimeout(as(r.HTTP.Context(), r.token), callTimeout)
		defer cancel()
		done, err := c.try(ctx, a, r)
		if err != nil && !unknown(err) {
			problem, code := problemOf(err)
			show(ctx, w, r, code, func(page *asked) { page.refused(problem) })
			return
		}
		if err != nil {
			c.fail(w, r, err)
			return
		}
		c.leaveNotice(w, done.Say)
		http.Redirect(w, r.HTTP, Href(done.To), http.StatusSeeOther)
	})))
}

// try does what was asked for, if all is there that it needs.
func (c *Console) try(ctx context.Context, a Action, r *Request) (Done, error) {
	form, err := a.Form(ctx, r)
	if err != nil {
		return Done{}, err
	}
	missing := fault.New(fault.InvalidArgument, "something is missing")
	for _, field := range form.Fields {
		if field.Required && r.Value(field.Name) == "" {
			missing = missing.WithField(field.Name, "is required")
		}
	}
	if len(missing.Fields) > 0 {
		return Done{}, missing
	}
	return a.Do(ctx, r)
}

// refused shows what is wrong beside the fields; what belongs to none is told above.
func (a *asked) refused(problem Problem) {
	wrong := map[string]string{}
	for _, field := range problem.Fields {
		wrong[field.Name] = field.Message
	}
	for i := range a.Fields {
		a.Fields[i].Wrong = wrong[a.Fields[i].Name]
		delete(wrong, a.Fields[i].Name)
	}
	var rest []fault.Field
	for _, field := range problem.Fields {
		if _, left := wrong[field.Name]; left {
			rest = append(rest, field)
		}
	}
	problem.Fields = rest
	a.Problem = &problem
}

// Filled gives fields what the request has for them.
func Filled(r *Request, fields []Field) []Field {
	filled := make([]Field, len(fields))
	for i, field := range fields {
		_, given := r.HTTP.Form[field.Name]
		if given || r.HTTP.Method == http.MethodPost { // a box that is not checked is not sent
			field.Value = r.Value(field.Name)
		} else if value := r.Value(field.Name); value != "" {
			field.Value = value
		}
		filled[i] = field
	}
	return filled
}
