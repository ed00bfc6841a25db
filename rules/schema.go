package rules

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/rules/variable"
)

// SchemaCommand is `rules schema`: the JSON schema of a rule file, for editors that complete and check YAML.
type SchemaCommand struct {
	Stdout io.Writer `kong:"-"` // nil: the process's own
}

// Run prints the schema.
func (c *SchemaCommand) Run(context.Context) error {
	out := c.Stdout
	if out == nil {
		out = os.Stdout
	}
	text, err := Schema()
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// schema is one node of a JSON schema, draft 7, as far as rules need it: the draft that editors know best.
type schema struct {
	Dialect     string             `json:"$schema,omitzero"`
	Title       string             `json:"title,omitzero"`
	Description string             `json:"description,omitzero"`
	Type        any                `json:"type,omitzero"` // a name, or several
	Enum        []string           `json:"enum,omitzero"`
	EnumDocs    []string           `json:"markdownEnumDescriptions,omitzero"`
	Pattern     string             `json:"pattern,omitzero"`
	MinLength   int                `json:"minLength,omitzero"`
	MaxLength   int                `json:"maxLength,omitzero"`
	Default     any                `json:"default,omitzero"`
	Examples    []any              `json:"examples,omitzero"`
	Properties  map[string]*schema `json:"properties,omitzero"`
	Names       *schema            `json:"propertyNames,omitzero"`
	Additional  any                `json:"additionalProperties,omitzero"` // false, or a schema
	Required    []string           `json:"required,omitzero"`
	Items       *schema            `json:"items,omitzero"`
	MaxItems    int                `json:"maxItems,omitzero"`
	Unique      bool               `json:"uniqueItems,omitzero"`
}

const namePattern = "^[a-z_][a-z0-9_]{0,63}$"

// Schema returns the JSON schema of a rule file, made of the same tables as the loader. A rule of it may be a part that is laid over
// another, so that only its id is required; what the schema cannot say, `rules check` does.
func Schema() ([]byte, error) {
	rule := &schema{Type: "object", Properties: map[string]*schema{}, Additional: false, Required: []string{"id"}}
	for _, f := range ruleFields {
		one := fieldSchema(f.name)
		one.Description = f.doc
		rule.Properties[f.name] = one
	}
	whole := &schema{Dialect: "http://json-schema.org/draft-07/schema#", Title: "Lowtide rules", Type: "object", Additional: false, Required: []string{"rules"},
		Description: "A file of rules. `lowtide rules check` checks what a schema cannot: conditions, sentences and units.",
		Properties: map[string]*schema{"rules": {Type: "array", MaxItems: maxRules, Items: rule,
			Description: "The rules of the file; an id comes once in all files of a folder."}}}
	text, err := json.Marshal(whole, json.Deterministic(true), jsontext.WithIndent("  "), jsontext.EscapeForHTML(false))
	if err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return append(text, '\n'), nil
}

// fieldSchema is what a field may hold.
func fieldSchema(name string) *schema {
	condition := func(examples ...any) *schema {
		return &schema{Type: []string{"string", "boolean"}, MinLength: 1, MaxLength: maxExpressionBytes, Examples: examples}
	}
	word := func(values []string) *schema { return &schema{Type: "string", Enum: values} }
	switch name {
	case "id":
		return &schema{Type: "string", Pattern: namePattern}
	case "advice":
		return &schema{Type: "string", Pattern: namePattern, Examples: []any{"retention"}}
	case "class":
		return word(Classes())
	case "scope":
		return word(scopes)
	case "thresholds":
		return &schema{Type: "object", Names: &schema{Pattern: namePattern}, Examples: []any{map[string]string{"floor": "5 * MiB"}},
			Additional: &schema{Type: []string{"number", "string"}, Description: "A number, or an expression such as 5 * MiB."}}
	case "when":
		return condition("live.early && !live.filling")
	case "confirm":
		return condition("proof.work || proof.peer")
	case "refute":
		return condition("snapshot.hole_bytes > oom.requested_bytes")
	case "with":
		return condition("symptom.oom || symptom.latency")
	case "ask":
		return condition("cached.growth > 0")
	case "pair", "keep":
		return &schema{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`, Examples: []any{"30m", "2h"}}
	case "severity":
		return &schema{Type: "object", Additional: false, Required: []string{"alone"}, Examples: []any{map[string]string{"alone": "ticket", "with": "page"}},
			Properties: map[string]*schema{
				"alone": {Type: "string", Enum: severities, Description: "The severity of the condition alone."},
				"with":  {Type: "string", Enum: severities, Description: "The severity with a symptom beside it; that of alone unless written."},
			}}
	case "against":
		return &schema{Type: "object", Additional: condition("kv.moved"), Examples: []any{map[string]string{"kv": "kv.moved"}}}
	case "explains":
		return &schema{Type: "array", Items: word(Classes()), Unique: true}
	case "evidence":
		names, docs := numbers()
		return &schema{Type: "array", Items: &schema{Type: "string", Enum: names, EnumDocs: docs}, Unique: true}
	case "enabled":
		return &schema{Type: "boolean", Default: true}
	case "shadow":
		return &schema{Type: "boolean", Default: false}
	}
	return &schema{Type: "string", MinLength: 1, Examples: []any{"Live memory rises {{live.growth}}/h[[ across {{quiet.count}} quiet points]]"}}
}

// numbers returns the variables that may be evidence, and what each is.
func numbers() (names, docs []string) {
	for _, v := range variable.All() {
		if v.Kind == variable.Number {
			names = append(names, v.Name)
			docs = append(docs, strings.TrimSuffix(v.Doc+" ("+v.Unit+")", " (1)"))
		}
	}
	return names, docs
}
