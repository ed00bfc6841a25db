package snapshot

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"lowtide/event"
)

// kin says whose a frame is.
type kin uint8

const (
	own      kin = iota // the program's
	library             // an installed package other than torch: an engine, a kernel library
	plumbing            // torch, the standard library, native code, generated code
)

const (
	maxFile     = 160 // bytes of a file in a summary
	maxFunction = 120 // bytes of a function's name in a summary
)

var (
	standard = regexp.MustCompile(`/lib(?:64)?/(?:python|pypy)[0-9]+(?:\.[0-9]+)?t?(?:\.zip)?/`)
	homes    = regexp.MustCompile(`(?i)(?:^|/)(?:home|users|user|u)/[^/]+/`)
	egg      = regexp.MustCompile(`^[^/]+\.egg/`)
)

// generated are folders whose files a compiler wrote; their names may carry the user's.
var generated = []string{"torchinductor", "torch_compile_cache", "torch_extensions", "triton"}

// native are the endings of files that are no Python.
var native = []string{".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".cu", ".cuh", ".so", ".S"}

// cut returns the package-relative part of a path, which names no user, and whose file it is: what follows site-packages, dist-packages
// or the standard library's folder, else the folder and the file, the home of a user left out.
func cut(path string) (string, kin) {
	path = printable(strings.ReplaceAll(path, `\`, "/"))
	if path == "" || path == "??" || strings.HasPrefix(path, "<") {
		return event.Shorten(path[strings.LastIndexByte(path, '/')+1:], maxFile), plumbing
	}
	for _, packages := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex(path, packages); i >= 0 {
			rest := egg.ReplaceAllString(path[i+len(packages):], "")
			whose := library
			if root, _, _ := strings.Cut(rest, "/"); root == "torch" || root == "triton" || root == "functorch" || isNative(rest) {
				whose = plumbing
			}
			return event.Shorten(rest, maxFile), whose
		}
	}
	if at := standard.FindAllStringIndex(path, -1); at != nil {
		return event.Shorten(path[at[len(at)-1][1]:], maxFile), plumbing
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		for _, folder := range generated {
			if part == folder || strings.HasPrefix(part, folder+"_") {
				return event.Shorten(strings.Join(append([]string{folder}, parts[max(i+1, len(parts)-1):]...), "/"), maxFile), plumbing
			}
		}
	}
	whose := own
	if isNative(path) || isEntry(parts) {
		whose = plumbing
	}
	if at := homes.FindAllStringIndex(path, -1); at != nil {
		path = path[at[len(at)-1][1]:]
	}
	parts = strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	return event.Shorten(strings.Join(parts[max(0, len(parts)-2):], "/"), maxFile), whose
}

func isNative(path string) bool {
	for _, ending := range native {
		if strings.HasSuffix(path, ending) {
			return true
		}
	}
	return strings.Contains(path, ".so.")
}

// isEntry says whether a file is the little script that pip puts into bin for a command: it is where every stack begins, and says nothing.
func isEntry(parts []string) bool {
	n := len(parts)
	return n >= 2 && parts[n-2] == "bin" && !strings.Contains(parts[n-1], ".")
}

// printable drops what must not steer a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

// text is a frame as a summary has it: "file:line function".
func (f Frame) text() (string, kin) {
	file, whose := cut(f.File)
	name := event.Shorten(printable(f.Name), maxFunction)
	if file == "" || file == "??" {
		return strings.TrimSpace("?? " + name), plumbing
	}
	return strings.TrimSpace(file + ":" + strconv.Itoa(int(f.Line)) + " " + name), whose
}
