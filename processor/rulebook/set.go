// Package rulebook owns the rules of a running fleet: the set that people push into a bucket, with its history; the loading of a new set into
// processors that go on judging; and what each of them made of it. It refuses to judge, and to let a set replace another one that nobody has
// looked at.
package rulebook

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	json "github.com/go-json-experiment/json"

	"lowtide/rules"
)

// The bounds of a set. The bucket keeps eight of them.
const (
	MaxSet      = 1 << 20 // bytes of it, as it is stored
	maxFiles    = 256
	maxFileName = 128
	maxAuthor   = 128
	maxMessage  = 2 << 10
	maxAdvice   = 256 // of a file
	maxOutcome  = 32 << 10
	maxProblems = 20
)

// ErrSet says that a value of the bucket is no set of rules.
var ErrSet = errors.New("it is no set of rules")

// Set is all rule files that a fleet judges by, over the built-in ones, as they were pushed together.
type Set struct {
	Generation uint64    `json:"generation"` // grows with every push, from 1; 0: nothing was ever pushed
	Files      []File    `json:"files"`
	Author     string    `json:"author"`
	Message    string    `json:"message"`
	Time       time.Time `json:"time"` // by the clock of who pushed
}

// File is one rule file, and the advice that lies beside it.
type File struct {
	Name    string            `json:"name"` // without a folder
	Content string            `json:"content"`
	Advice  map[string]string `json:"advice,omitempty"`
}

// Decode reads a value of the bucket, which any program could have written. The error is an ErrSet.
func Decode(text []byte) (Set, error) {
	var s Set
	err := error(nil)
	if len(text) > MaxSet {
		err = fmt.Errorf("%d bytes, the most are %d", len(text), MaxSet)
	} else if err = json.Unmarshal(text, &s); err == nil {
		err = s.check()
	}
	if err != nil {
		return Set{}, fmt.Errorf("read rules of the bucket: %w: %w", ErrSet, err)
	}
	return s, nil
}

func (s *Set) encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s, json.Deterministic(true))
	if err == nil && len(text) > MaxSet {
		err = fmt.Errorf("all files and their advice are %d bytes together, the most are %d", len(text), MaxSet)
	}
	return text, err
}

func (s *Set) check() error {
	switch {
	case s.Generation == 0:
		return errors.New("it has no generation")
	case len(s.Files) > maxFiles:
		return fmt.Errorf("%d files, the most are %d", len(s.Files), maxFiles)
	case len(s.Author) > maxAuthor:
		return fmt.Errorf("the author has %d bytes, the most are %d", len(s.Author), maxAuthor)
	case len(s.Message) > maxMessage:
		return fmt.Errorf("the message has %d bytes, the most are %d", len(s.Message), maxMessage)
	}
	seen := map[string]bool{}
	for _, f := range s.Files {
		switch {
		case !isFileName(f.Name) || rules.IsTest(f.Name) || path.Ext(f.Name) != ".yaml" && path.Ext(f.Name) != ".yml":
			return fmt.Errorf("%.80q is no name of a rule file: letters, digits, `.`, `-` and `_`, then .yaml", f.Name)
		case seen[f.Name]:
			return fmt.Errorf("two files are called %s", f.Name)
		case !utf8.ValidString(f.Content):
			return fmt.Errorf("%s is no UTF-8 text", f.Name)
		case len(f.Advice) > maxAdvice:
			return fmt.Errorf("%s has %d pieces of advice, the most are %d", f.Name, len(f.Advice), maxAdvice)
		}
		seen[f.Name] = true
		for name, text := range f.Advice {
			if !isFileName(name) || !utf8.ValidString(text) {
				return fmt.Errorf("%.80q is no advice", name)
			}
		}
	}
	return nil
}

// isFileName says whether a file of that name can be written into whatever folder, and does not leave it.
func isFileName(name string) bool {
	if name == "" || len(name) > maxFileName || name[0] == '.' || name[0] == '-' {
		return false
	}
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// Sources returns the files for the loader of rules, named so that an error tells where they come from.
func (s *Set) Sources() []rules.Source {
	all := make([]rules.Source, 0, len(s.Files))
	for _, f := range s.Files {
		all = append(all, rules.Source{Name: fmt.Sprintf("generation-%d/%s", s.Generation, f.Name), Content: []byte(f.Content), Advice: f.Advice})
	}
	return all
}

// Pack compiles the set over the built-in rules. The error is rules.Problems.
func (s *Set) Pack() (*rules.Pack, error) { return rules.LoadLayers(s.Sources()) }

// gather makes the files of a set out of local ones. Folders are left out of the names, so that two files must not have one name, and the
// advice of all is put together.
func gather(sources []rules.Source) ([]File, error) {
	var all []File
	advice, from := map[string]string{}, map[string]string{}
	for _, s := range sources {
		name := filepath.Base(s.Name)
		if i := slices.IndexFunc(all, func(f File) bool { return f.Name == name }); i >= 0 {
			return nil, &wrong{what: "two of the files are called " + name, remedy: "give them different names: all are kept in one folder"}
		}
		all = append(all, File{Name: name, Content: string(s.Content)})
		for about, text := range s.Advice {
			folder := filepath.Dir(s.Name)
			if other, held := advice[about]; held && other != text {
				return nil, &wrong{what: fmt.Sprintf("%s and %s have different advice %s", from[about], folder, about), remedy: "give one of them another name: all advice is kept in one folder"}
			}
			advice[about], from[about] = text, folder
		}
	}
	if len(all) > 0 && len(advice) > 0 {
		all[0].Advice = advice // the loader finds it beside any file of the set
	}
	return all, nil
}

// advice returns all advice of the set; where two files differ, that of the first.
func (s *Set) advice() map[string]string {
	all := map[string]string{}
	for _, f := range slices.Backward(s.Files) {
		maps.Copy(all, f.Advice)
	}
	return all
}

// sameFiles says that two sets hold the same.
func sameFiles(a, b []File) bool {
	return slices.EqualFunc(a, b, func(a, b File) bool {
		return a.Name == b.Name && a.Content == b.Content && maps.Equal(a.Advice, b.Advice)
	})
}

// plain makes a text of somebody else fit for a terminal, in one line.
func plain(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)), " ")
}

// wrong is an error with its remedy, for wrong usage.
type wrong struct{ what, remedy string }

func (w *wrong) Error() string { return w.what }

// Hint returns the remedy.
func (w *wrong) Hint() string { return w.remedy }

// ExitCode is that of a check that failed.
func (w *wrong) ExitCode() int { return 1 }
