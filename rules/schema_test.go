package rules

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"
	"github.com/goccy/go-yaml"
)

func TestSchemaIsCurrent(t *testing.T) {
	var out bytes.Buffer
	if err := (&SchemaCommand{Stdout: &out}).Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	golden(t, "schema.json", out.String())
}

// The shipped rules and the good file of an author are valid; of the broken ones those are not that a schema can tell.
func TestSchemaAgreesWithTheLoader(t *testing.T) {
	text, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("builtin/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for _, name := range append(files, "testdata/good_own_rule.yaml") {
		if isTest(name) {
			continue
		}
		good++
		if wrong := validate(t, root, name); len(wrong) > 0 {
			t.Errorf("%s: %s", name, strings.Join(wrong, "; "))
		}
	}
	if good != shipped+1 {
		t.Errorf("%d files, want %d", good, shipped+1)
	}
	for defect, want := range map[string]string{
		"typo_in_field":            "/rules/0/sumary: not a property",
		"unknown_top_key":          "/groups: not a property",
		"unknown_class":            "/rules/0/class: none of the values",
		"unknown_scope":            "/rules/0/scope: none of the values",
		"unknown_severity":         "/rules/0/severity/alone: none of the values",
		"severity_of_one_word":     "/rules/0/severity: not a object",
		"duration_without_unit":    "/rules/0/keep: does not match",
		"explains_unknown_class":   "/rules/0/explains/0: none of the values",
		"evidence_of_a_flag":       "/rules/0/evidence/0: none of the values",
		"flag_of_another_language": "/rules/0/enabled: not a boolean",
		"id_with_blanks":           "/rules/0/id: does not match",
		"no_list":                  "/rules: not a array",
	} {
		wrong := validate(t, root, "testdata/broken/bad_"+defect+".yaml")
		if !slices.ContainsFunc(wrong, func(w string) bool { return strings.HasPrefix(w, want) }) {
			t.Errorf("%s: want %q, got %q", defect, want, wrong)
		}
	}
}

func validate(t *testing.T, root map[string]any, name string) []string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := yaml.Unmarshal(content, &value); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return invalidAt(t, root, value, "")
}

// invalidAt checks a value against what of draft 7 the schema uses; a keyword that it does not know fails the test.
func invalidAt(t *testing.T, s map[string]any, value any, at string) (wrong []string) {
	t.Helper()
	say := func(format string, args ...any) { wrong = append(wrong, at+": "+fmt.Sprintf(format, args...)) }
	object, _ := value.(map[string]any)
	list, _ := value.([]any)
	text, isText := value.(string)
	for keyword, rule := range s {
		switch keyword {
		case "$schema", "title", "description", "markdownEnumDescriptions", "default", "examples":
		case "type":
			names, several := rule.([]any)
			if !several {
				names = []any{rule}
			}
			if !slices.ContainsFunc(names, func(name any) bool { return kindOf(value) == name }) {
				say("not a %v", names[0])
			}
		case "enum":
			if isText && !slices.Contains(rule.([]any), any(text)) {
				say("none of the values")
			}
		case "pattern":
			if isText && !regexp.MustCompile(rule.(string)).MatchString(text) {
				say("does not match %v", rule)
			}
		case "minLength":
			if isText && float64(len([]rune(text))) < rule.(float64) {
				say("too short")
			}
		case "maxLength":
			if isText && float64(len([]rune(text))) > rule.(float64) {
				say("too long")
			}
		case "properties":
			for name, one := range rule.(map[string]any) {
				if v, held := object[name]; held {
					wrong = append(wrong, invalidAt(t, one.(map[string]any), v, at+"/"+name)...)
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(map[string]any)
			for name, v := range object {
				if known[name] != nil {
					continue
				}
				if one, is := rule.(map[string]any); is {
					wrong = append(wrong, invalidAt(t, one, v, at+"/"+name)...)
				} else {
					wrong = append(wrong, at+"/"+name+": not a property")
				}
			}
		case "propertyNames":
			for name := range object {
				wrong = append(wrong, invalidAt(t, rule.(map[string]any), name, at+"/"+name)...)
			}
		case "required":
			for _, name := range rule.([]any) {
				if _, held := object[name.(string)]; object != nil && !held {
					say("lacks %v", name)
				}
			}
		case "items":
			for i, v := range list {
				wrong = append(wrong, invalidAt(t, rule.(map[string]any), v, fmt.Sprintf("%s/%d", at, i))...)
			}
		case "maxItems":
			if float64(len(list)) > rule.(float64) {
				say("too many")
			}
		case "uniqueItems":
			for i, v := range list {
				if slices.Contains(list[:i], v) {
					say("twice: %v", v)
				}
			}
		default:
			t.Fatalf("the schema uses %s, which this test does not know", keyword)
		}
	}
	return wrong
}

func kindOf(value any) any {
	switch value.(type) {
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case string:
		return "string"
	case bool:
		return "boolean"
	case nil:
		return "null"
	}
	return "number"
}

// Every field of the loader has a description and a shape of its own in the schema.
func TestSchemaDescribesEveryField(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range fieldNames {
		if !bytes.Contains(text, []byte("\n          \""+name+"\": {")) {
			t.Errorf("no property %s", name)
		}
	}
	if len(fieldNames) != 20 || bytes.Count(text, []byte(`"description"`)) < 24 {
		t.Errorf("%d fields, %d descriptions", len(fieldNames), bytes.Count(text, []byte(`"description"`)))
	}
}
