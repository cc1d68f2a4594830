// Package settingsdoc writes the reference of a service's settings from the
// structs that hold them: names and defaults by reflection, the text from the
// comments in their source. Tests use it; no service does.
package settingsdoc

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"time"
)

// module is the prefix of the import paths of this repository, whose folders are named alike.
const module = "lockstep.dev/"

// Setting is one line of the reference.
type Setting struct {
	Name    string
	Default string
	Text    string
}

// List gives every setting of a config that holds its defaults, in the order of
// the source. root is the repository's folder, dir the config's own package in
// it. A setting without a comment is an error: its text would be empty.
func List(root, dir string, config any) ([]Setting, error) {
	w := &walker{root: root, dir: dir, packages: map[string]map[string]*ast.StructType{}}
	w.walk("", reflect.ValueOf(config).Elem())
	return w.found, errors.Join(w.problems...)
}

type walker struct {
	root, dir string
	packages  map[string]map[string]*ast.StructType // by folder, by name
	found     []Setting
	problems  []error
}

func (w *walker) walk(prefix string, v reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		field := t.Field(i)
		tag, options, _ := strings.Cut(field.Tag.Get("koanf"), ",")
		switch {
		case strings.Contains(options, "squash"):
			w.walk(prefix, v.Field(i))
			continue
		case tag == "" || tag == "-":
			continue
		}
		name := prefix + tag
		switch kind := field.Type; {
		case kind.Kind() == reflect.Struct:
			w.walk(name+".", v.Field(i))
		case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct:
			w.walk(name+"[].", reflect.New(kind.Elem()).Elem())
		case kind.Kind() == reflect.Map && kind.Elem().Kind() == reflect.Struct:
			w.walk(name+".*.", reflect.New(kind.Elem()).Elem())
		default:
			if kind.Kind() == reflect.Map {
				name += ".*"
			}
			text := w.text(t, field.Name, tag)
			if text == "" {
				w.problems = append(w.problems, fmt.Errorf("%s: %s.%s has no comment", name, t, field.Name))
			}
			w.found = append(w.found, Setting{name, spelled(v.Field(i)), text})
		}
	}
}

// spelled is a default as a settings file has it, "" for nothing.
func spelled(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return short(value)
	case []time.Duration:
		words := make([]string, len(value))
		for i, d := range value {
			words[i] = short(d)
		}
		return strings.Join(words, ", ")
	}
	if v.IsZero() && (v.Kind() == reflect.String || v.Kind() == reflect.Slice || v.Kind() == reflect.Map) {
		return ""
	}
	return fmt.Sprint(v.Interface())
}

// short leaves out the zeros of 1h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// text is what the field's comments say, on one line. Where a comment begins
// with the field's name, as Go's do, it begins with the setting's instead.
func (w *walker) text(t reflect.Type, fieldName, tag string) string {
	dir := w.dir
	if path, ok := strings.CutPrefix(t.PkgPath(), module); ok {
		dir = path
	}
	structs, err := w.structs(dir)
	if err != nil {
		w.problems = append(w.problems, err)
		return ""
	}
	source, ok := structs[t.Name()]
	if !ok {
		w.problems = append(w.problems, fmt.Errorf("%s is not found in %s", t, dir))
		return ""
	}
	for _, field := range source.Fields.List {
		for _, name := range field.Names {
			if name.Name != fieldName {
				continue
			}
			text := strings.Join(strings.Fields(field.Doc.Text()+" "+field.Comment.Text()), " ")
			if rest, ok := strings.CutPrefix(text, fieldName); ok && strings.HasPrefix(strings.TrimLeft(rest, ",:"), " ") {
				text = "`" + tag + "`" + rest
			}
			return strings.ReplaceAll(text, "|", `\|`)
		}
	}
	return ""
}

// structs are the struct types of a folder's package, by name.
func (w *walker) structs(dir string) (map[string]*ast.StructType, error) {
	if known, ok := w.packages[dir]; ok {
		return known, nil
	}
	found := map[string]*ast.StructType{}
	files, err := filepath.Glob(filepath.Join(w.root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if body, ok := spec.Type.(*ast.StructType); ok {
					found[spec.Name.Name] = body
				}
			}
			return true
		})
	}
	w.packages[dir] = found
	return found, nil
}

// Markdown is the reference of one service.
func Markdown(service, envPrefix string, settings []Setting) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<!-- Generated from the source by `+"`make generate`"+`; edit the comments there. -->

# Every setting of the %[1]s

A YAML file (`+"`%[1]s -config %[1]s.yaml`"+`), overlaid by the environment: `+"`a.b_c`"+` is the variable `+"`%[2]s__A__B_C`"+`. A name nobody knows and an
impossible value stop the start, all of them told at once. Durations have a unit: `+"`90s`, `12h`"+`. `+"`[]`"+` is an item of a list, `+"`*`"+` a name of
your choice. Keys and tokens are never settings: settings name files and hashes. A change takes effect at the next start.

| setting | default | what it is |
|---|---|---|
`, service, envPrefix)
	for _, s := range settings {
		value := ""
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, value, s.Text)
	}
	return b.String()
}
