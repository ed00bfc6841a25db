package sink

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of the history: what is kept in memory, and how much of the file is read.
const (
	historyLines = 1000
	historyBytes = 4 << 20
)

// history is what was typed at the prompt, newest last, in a file of mode 0600. A line that begins with a space is not kept, nor
// one that repeats the line before it. It is the terminal's History; not safe for concurrent use.
type history struct {
	path  string
	lines []string
	err   error // the first that writing met
}

// openHistory reads the newest lines of the file at path, which need not exist. A file that others may read is closed to them.
func openHistory(path string) (*history, error) {
	h := &history{path: path}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return h, fmt.Errorf("read history: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return h, fmt.Errorf("read history: %w", err)
	}
	if !info.Mode().IsRegular() {
		return h, fmt.Errorf("read history: %s is no file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := file.Chmod(0o600); err != nil {
			return h, fmt.Errorf("close history to others: %w", err)
		}
	}
	if info.Size() > historyBytes {
		if _, err := file.Seek(-historyBytes, io.SeekEnd); err != nil {
			return h, fmt.Errorf("read history: %w", err)
		}
	}
	h.lines, err = readHistory(file)
	return h, err
}

// readHistory keeps the newest lines; what a terminal could not show again is left out.
func readHistory(from io.Reader) ([]string, error) {
	var lines []string
	scanner := bufio.NewScanner(io.LimitReader(from, historyBytes))
	scanner.Buffer(nil, maxQuery)
	for scanner.Scan() {
		if line := printable(scanner.Text()); strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
		if len(lines) > 2*historyLines {
			lines = append(lines[:0], lines[len(lines)-historyLines:]...)
		}
	}
	lines = lines[max(0, len(lines)-historyLines):]
	if err := scanner.Err(); err != nil {
		return lines, fmt.Errorf("read history: %w", err)
	}
	return lines, nil
}

// Add keeps a line and appends it to the file.
func (h *history) Add(line string) {
	line = printable(line)
	if strings.TrimSpace(line) == "" || line[0] == ' ' || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	h.lines = h.lines[max(0, len(h.lines)-historyLines):]
	if err := h.append(line); err != nil && h.err == nil {
		h.err = err
	}
}

func (h *history) append(line string) error {
	if err := os.MkdirAll(filepath.Dir(h.path), 0o700); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	file, err := os.OpenFile(h.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	_, err = file.WriteString(line + "\n")
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// Len is how many lines there are.
func (h *history) Len() int { return len(h.lines) }

// At is a line, 0 the newest.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

// printable replaces what moves a cursor or changes a terminal by spaces.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
