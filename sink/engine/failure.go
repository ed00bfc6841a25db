package engine

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Codes of ClickHouse that the gate itself answers with.
const (
	codeBadArguments   = 36
	codeNotImplemented = 48
	codeLogical        = 49
	codeSyntax         = 62
	codeDatabase       = 81
	codeSetting        = 115
	codeTimeout        = 159
	codeTooLarge       = 161
	codeReadonly       = 164
	codeBusy           = 202
	codeNoSpace        = 243
	codeMemory         = 241
	codeCanceled       = 394
	codeAccess         = 497
	codeAuthentication = 516
)

// queryError is an error in ClickHouse's own terms. It never holds a password.
type queryError struct {
	code    int
	name    string // such as SYNTAX_ERROR
	message string
	status  int // HTTP status where the code alone does not tell it; 0: by code
}

func (e *queryError) Error() string {
	return fmt.Sprintf("Code: %d. DB::Exception: %s (%s)", e.code, e.message, e.name)
}

func failure(code int, name, format string, values ...any) *queryError {
	return &queryError{code: code, name: name, message: fmt.Sprintf(format, values...)}
}

var (
	codePrefix  = regexp.MustCompile(`^(?:Code: (\d+)\. DB::Exception: )+`)
	nameSuffix  = regexp.MustCompile(`\s*\(([A-Z][A-Z0-9_]+)\)(?:\s*\(\))?\s*$`)
	buildSuffix = regexp.MustCompile(`\s*\(version [^()]*(?:\([^()]*\))?\)\s*$`)
)

// parseQueryError takes the library's text apart: it nests the same code and name up to three times.
func parseQueryError(text string) *queryError {
	e := &queryError{code: codeLogical, name: "UNKNOWN_EXCEPTION"}
	text = strings.TrimSpace(text)
	if m := codePrefix.FindStringSubmatch(text); m != nil {
		if code, err := strconv.Atoi(m[1]); err == nil {
			e.code = code
		}
		text = text[len(m[0]):]
	}
	for {
		if m := nameSuffix.FindStringSubmatchIndex(text); m != nil {
			e.name, text = text[m[2]:m[3]], text[:m[0]]
		} else if m := buildSuffix.FindStringIndex(text); m != nil {
			text = text[:m[0]]
		} else {
			break
		}
		text = strings.TrimSuffix(strings.TrimSpace(text), ".")
	}
	e.message = strings.TrimSuffix(text, ".") + "."
	return e
}

// httpStatus is the status that ClickHouse gives to the code (src/Server/HTTP/exceptionCodeToHTTPStatus.cpp), with 403 for
// what the account may not do.
func (e *queryError) httpStatus() int {
	if e.status != 0 {
		return e.status
	}
	switch e.code {
	case 194: // REQUIRED_PASSWORD
		return http.StatusUnauthorized
	case 192, 193, codeAuthentication, codeReadonly, codeAccess:
		return http.StatusForbidden
	case 6, 26, 27, 38, 41, 43, 53, 72, codeBadArguments, codeSyntax, 117, 427, 456, 457:
		return http.StatusBadRequest
	case 16, 46, 47, 50, 56, 60, 73, codeDatabase, codeSetting:
		return http.StatusNotFound
	case codeTooLarge, 307:
		return http.StatusRequestEntityTooLarge
	case codeNotImplemented:
		return http.StatusNotImplemented
	case codeTimeout:
		return http.StatusRequestTimeout
	case 209, 210, codeBusy, codeNoSpace, 439:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
