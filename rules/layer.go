package rules

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one rule file wherever it is held: in a folder, in a bucket, in the binary.
type Source struct {
	Name    string
	Content []byte
	Advice  map[string]string // name → markdown; nil holds none
}

const (
	maxSources     = 1000
	maxAdviceBytes = 64 << 10
)

// Builtin returns the shipped rules.
func Builtin() (*Pack, error) { return LoadSources(nil) }

// Load returns the built-in rules with those of the files and folders laid over them by id, as ReadSources and LoadSources do.
func Load(paths ...string) (*Pack, error) {
	sources, err := ReadSources(paths...)
	if err != nil {
		return nil, err
	}
	return LoadSources(sources)
}

// LoadSources returns the built-in rules with those of the sources laid over them by id. The error is Problems when sources are wrong:
// every mistake of every source at once.
func LoadSources(sources []Source) (*Pack, error) { return LoadLayers(sources) }

// LoadLayers is LoadSources with several layers, the lowest first: an id may come once in a layer, and each layer is laid over those
// below it.
func LoadLayers(layers ...[]Source) (*Pack, error) {
	builtin, err := builtinSources()
	if err != nil {
		return nil, err
	}
	return load(append([][]Source{builtin}, layers...)...)
}

// ReadSources reads rule files, and of folders every .yaml and .yml file in them that is no test, sorted, with the advice that lies in the
// folder `advice` beside each. A folder without rule files gives none; a file that cannot be read is an error.
func ReadSources(paths ...string) ([]Source, error) {
	var out []Source
	var failed []error
	advice := map[string]map[string]string{}
	seen := map[string]bool{}
	for _, p := range paths {
		names, err := ruleFiles(p)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, name := range names {
			if clean := filepath.Clean(name); seen[clean] {
				continue
			} else {
				seen[clean] = true
			}
			if len(out) == maxSources {
				return nil, fmt.Errorf("read rules: more than %d files", maxSources)
			}
			content, err := readBounded(name, maxFileBytes)
			if err != nil {
				failed = append(failed, fmt.Errorf("read rules: %w", err))
				continue
			}
			beside := filepath.Join(filepath.Dir(name), "advice")
			if _, read := advice[beside]; !read {
				if advice[beside], err = readAdvice(os.DirFS(beside)); err != nil {
					failed = append(failed, fmt.Errorf("read advice in %s: %w", beside, err))
				}
			}
			out = append(out, Source{Name: name, Content: content, Advice: advice[beside]})
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return out, nil
}

// ruleFiles returns a file as it is, and the rule files of a folder. What begins with a dot is left out: a mounted ConfigMap keeps its
// versions there.
func ruleFiles(p string) ([]string, error) {
	info, err := os.Stat(p)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	if !info.IsDir() {
		return []string{p}, nil
	}
	entries, err := os.ReadDir(p)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var out []string
	for _, e := range entries {
		name := e.Name()
		if !isYAML(name) || isTest(name) || strings.HasPrefix(name, ".") {
			continue
		}
		if info, err := os.Stat(filepath.Join(p, name)); err == nil && info.Mode().IsRegular() {
			out = append(out, filepath.Join(p, name))
		}
	}
	return out, nil
}

func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")
}

// isTest says whether a file holds tests of rules rather than rules.
func isTest(name string) bool {
	return strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(name, ".yaml"), ".yml"), "_test") && isYAML(name)
}

// readBounded reads a file, and one byte more than the limit of one that is too large, so that whoever parses it says so.
func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// readAdvice reads every NAME.md of a folder; one that does not exist holds none.
func readAdvice(folder fs.FS) (map[string]string, error) {
	names, err := fs.Glob(folder, "*.md")
	if err != nil {
		return nil, err
	}
	var out map[string]string
	for _, name := range names[:min(len(names), maxSources)] {
		f, err := folder.Open(name)
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(io.LimitReader(f, maxAdviceBytes+1))
		f.Close()
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = map[string]string{}
		}
		out[strings.TrimSuffix(path.Base(name), ".md")] = string(content)
	}
	return out, nil
}

func builtinSources() ([]Source, error) {
	folder, err := fs.Sub(embedded, "builtin/advice")
	if err != nil {
		return nil, fmt.Errorf("read built-in advice: %w", err)
	}
	advice, err := readAdvice(folder)
	if err != nil {
		return nil, fmt.Errorf("read built-in advice: %w", err)
	}
	names, err := fs.Glob(embedded, "builtin/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("read built-in rules: %w", err)
	}
	var out []Source
	for _, name := range names {
		if isTest(name) {
			continue
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read built-in rules: %w", err)
		}
		out = append(out, Source{Name: name, Content: content, Advice: advice})
	}
	return out, nil
}

// library finds advice: that of the highest layer first, and within a layer what lies beside the file that asks for it.
type library struct {
	layers   [][]Source // the lowest first
	problems *Problems
}

// lines reads NAME.md: imperative lines, each at its place, list marks and headings taken off. Where nothing holds it, it returns the
// names that there are.
func (l library) lines(name, asker string) (lines []scalar, names []string) {
	for _, layer := range slices.Backward(l.layers) {
		for _, own := range []bool{true, false} {
			for _, s := range layer {
				if text, held := s.Advice[name]; held && (s.Name == asker) == own {
					return l.read(filepath.Join(filepath.Dir(s.Name), "advice", name+".md"), text), nil
				}
			}
		}
		for _, s := range layer {
			for other := range s.Advice {
				names = append(names, other)
			}
		}
	}
	slices.Sort(names)
	return nil, slices.Compact(names)
}

func (l library) read(name, text string) (lines []scalar) {
	doc := &document{name: name, problems: l.problems}
	if len(text) > maxAdviceBytes {
		doc.report(0, 0, "keep what an on-call engineer has time to read", "file has more than %d bytes", maxAdviceBytes)
		return nil
	}
	doc.lines = strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range doc.lines {
		text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "- "))
		if text != "" && !strings.HasPrefix(text, "#") {
			before, _, _ := strings.Cut(line, text)
			lines = append(lines, scalar{doc: doc, text: text, line: i + 1, column: 1 + len([]rune(before))})
		}
	}
	return lines
}
