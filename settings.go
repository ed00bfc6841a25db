package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	settingsPlace = "/etc/lowtide/lowtide.yaml" // read when it is there
	maxSettings   = 1 << 20                     // bytes
)

// settings is the YAML file: every key is the name of a flag, at the top for each command that has it, or under a command's name
// for that command alone. Flags win over LOWTIDE_* in the environment, which win over the file.
type settings struct {
	file     string
	top      map[string]setting
	sections map[string]map[string]setting
	order    []setting // as they stand in the file, for errors
}

type setting struct {
	section, key string
	line, column int
	node         ast.Node
}

// loadSettings is kong's loader. Everything that is wrong with the file comes in one error, each with file:line:column.
func loadSettings(in io.Reader) (kong.Resolver, error) {
	s := &settings{file: "settings", top: make(map[string]setting), sections: make(map[string]map[string]setting)}
	if named, ok := in.(interface{ Name() string }); ok {
		s.file = named.Name()
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSettings+1))
	if err != nil {
		return nil, fmt.Errorf("%s: read settings: %w", s.file, err)
	}
	if len(text) > maxSettings {
		return nil, fmt.Errorf("%s: more than %d bytes of settings", s.file, maxSettings)
	}
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", s.file, yaml.FormatError(err, false, false))
	}
	if len(parsed.Docs) > 1 {
		return nil, fmt.Errorf("%s: more than one YAML document; one is read", s.file)
	}
	if len(parsed.Docs) == 0 || parsed.Docs[0].Body == nil {
		return s, nil
	}
	return s, s.read("", parsed.Docs[0].Body)
}

func (s *settings) read(section string, body ast.Node) error {
	pairs, ok := body.(*ast.MappingNode)
	if !ok {
		at := body.GetToken().Position
		return fmt.Errorf("%s:%d:%d: settings are lines of 'flag: value'", s.file, at.Line, at.Column)
	}
	var faults []error
	for _, pair := range pairs.Values {
		at := pair.Key.GetToken().Position
		one := setting{section: section, key: pair.Key.GetToken().Value, line: at.Line, column: at.Column, node: pair.Value}
		into := s.top
		if section != "" {
			into = s.sections[section]
		}
		if _, twice := into[one.key]; twice {
			faults = append(faults, s.fail(one, "stands twice"))
			continue
		}
		if nested, ok := pair.Value.(*ast.MappingNode); ok && section == "" {
			s.sections[one.key] = make(map[string]setting)
			s.order = append(s.order, one)
			faults = append(faults, s.read(one.key, nested))
			continue
		}
		into[one.key] = one
		s.order = append(s.order, one)
	}
	return errors.Join(faults...)
}

func (s *settings) fail(one setting, text string) error {
	name := one.key
	if one.section != "" {
		name = one.section + "." + name
	}
	return fmt.Errorf("%s:%d:%d: %s: %s", s.file, one.line, one.column, name, text)
}

// Validate implements kong.Resolver: a key that no command knows is an error.
func (s *settings) Validate(app *kong.Application) error {
	flags := make(map[string]map[string]bool) // by command
	all := make(map[string]bool)
	for _, leaf := range app.Leaves(false) {
		command := strings.TrimPrefix(leaf.FullPath(), app.Name+" ")
		flags[command] = make(map[string]bool)
		for _, group := range leaf.AllFlags(false) {
			for _, f := range group {
				if f.Name == "config" || f.Name == "help" {
					continue // they only mean something on the command line
				}
				flags[command][f.Name], all[f.Name] = true, true
			}
		}
	}
	var faults []error
	for _, one := range s.order {
		_, section := s.sections[one.key]
		switch {
		case one.section == "" && section:
			if flags[one.key] == nil {
				faults = append(faults, s.fail(one, "no command has this name; hint: lowtide --help"))
			}
		case one.section == "" && !all[one.key]:
			faults = append(faults, s.fail(one, "no command has such a flag; hint: lowtide COMMAND --help"))
		case one.section != "" && flags[one.section] != nil && !flags[one.section][one.key]:
			faults = append(faults, s.fail(one, "'"+one.section+"' has no such flag; hint: lowtide "+one.section+" --help"))
		}
	}
	return errors.Join(faults...)
}

// Resolve implements kong.Resolver. A value that the flag cannot take is an error at its place in the file.
func (s *settings) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			return nil, nil
		}
	}
	one, found := setting{}, false
	if node := ctx.Selected(); node != nil {
		one, found = s.sections[strings.TrimPrefix(node.FullPath(), ctx.Model.Name+" ")][flag.Name]
	}
	if !found {
		if one, found = s.top[flag.Name]; !found {
			return nil, nil
		}
	}
	value, ok := valueOf(one.node)
	if !ok {
		return nil, s.fail(one, "is neither a value nor a list of values; hint: leave the line out, or put the text in quotes")
	}
	probe := reflect.New(flag.Target.Type()).Elem()
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: kong.Scan().PushTyped(value, kong.FlagValueToken)}, probe); err != nil {
		return nil, s.fail(one, err.Error())
	}
	return value, nil
}

// valueOf returns the text of a value as it stands in the file, or the texts of a list: a flag makes of it what it does on the
// command line, where 1.10 is not 1.1 and 0123 is not 83.
func valueOf(node ast.Node) (any, bool) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return textOf(node)
	}
	texts := make([]any, 0, len(list.Values))
	for _, v := range list.Values {
		text, ok := textOf(v)
		if !ok {
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

func textOf(node ast.Node) (any, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.AnchorNode:
		return textOf(n.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return nil, false
}
