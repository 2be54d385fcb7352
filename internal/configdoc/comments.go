package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

const module = "github.com/warmpath/warmpath/"

// comments are those of one struct, by the field's name in Go; "" = of the struct itself.
type comments struct {
	name string            // of the struct
	json map[string]string // names in JSON, by those in Go
	text map[string]string
}

// commentsOf reads the comments of a struct of this module.
func commentsOf(root string, t reflect.Type) (*comments, error) {
	dir, ours := strings.CutPrefix(t.PkgPath(), module)
	if !ours {
		return nil, fmt.Errorf("%v is not of this module", t)
	}
	sources, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if c := find(file, t); c != nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%v is not found", t)
}

func find(file *ast.File, t reflect.Type) *comments {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, spec := range g.Specs {
			s := spec.(*ast.TypeSpec)
			if body, ok := s.Type.(*ast.StructType); ok && s.Name.Name == t.Name() {
				return read(t, g.Doc.Text(), body)
			}
		}
	}
	return nil
}

func read(t reflect.Type, doc string, body *ast.StructType) *comments {
	c := &comments{name: t.Name(), json: make(map[string]string), text: map[string]string{"": doc}}
	last := ""
	for _, f := range body.Fields.List {
		text := f.Doc.Text() + f.Comment.Text()
		for _, name := range f.Names {
			field, _ := t.FieldByName(name.Name)
			c.json[name.Name], _, _ = strings.Cut(field.Tag.Get("json"), ",")
			if text == "" && regexp.MustCompile(`\b`+name.Name+`\b`).MatchString(last) {
				text = last // one comment for several fields names them all
			}
			c.text[name.Name] = text
		}
		last = text
	}
	return c
}

var (
	subject  = regexp.MustCompile("^(?:An? )?`?[A-Za-z_]+`?(?:(?:, `[a-z_]+`)* and `[a-z_]+`)? (?:is|are) ")
	itself   = regexp.MustCompile("^`[a-z_]+`(?:(?:, `[a-z_]+`)* and `[a-z_]+`)? ")
	brackets = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
	word     = regexp.MustCompile(`\b[A-Z][A-Za-z]*\b`)
)

// of returns the comment of a field for the page: in one line, with names as they are in the file, and without the subject.
func (c *comments) of(field string) string {
	text := strings.Join(strings.Fields(c.text[field]), " ")
	text = brackets.ReplaceAllString(text, "$1")
	text = word.ReplaceAllStringFunc(text, func(w string) string {
		if name := c.json[w]; name != "" {
			return "`" + name + "`"
		}
		return w
	})
	text = strings.ReplaceAll(text, "|", `\|`)
	if field == "" {
		return text
	}
	if loc := subject.FindStringIndex(text); loc != nil {
		text = text[loc[1]:]
	} else if loc := itself.FindStringIndex(text); loc != nil {
		text = text[loc[1]:]
	}
	return strings.TrimSuffix(text, ".")
}
